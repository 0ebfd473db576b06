// Rail: one queue pair to a peer, and what has been posted on it, in order, until the card says it is done.
// Completions are asked for rarely: the first few that are under way, and then every sixteenth, tell of those
// before them too.
#pragma once

#include <memory>

#include "transports/ring_queue.h"
#include "transports/verbs/nic.h"

namespace cenote::transport::verbs {

class VerbsEndpoint;

/// What a work request was for.
enum class Purpose : std::uint8_t { put, get, atomic, message, part, probe, quiet };

/// One work request's worth of an operation: enough to post it, on this rail or, should this one die, on
/// another, and to finish it.
struct Piece {
  Purpose purpose = Purpose::quiet;
  std::uint8_t parts = 0;         ///< of the event it is a part of; 0: of none
  std::uint8_t slot = 0;          ///< the event's signal, or message_slot
  bool again = false;             ///< replayed: counted already
  bool borrows = false;           ///< the card reads or writes the caller's memory
  std::uint32_t event = 0;        ///< its number
  std::uint32_t part_number = 0;  ///< counts the parts of this rail
  std::uint32_t length = 0;
  std::uint32_t key = 0;          ///< of the peer's memory, among the endpoint's keys
  std::uint32_t block = ~0U;      ///< of Blocks, given back when it is done
  std::uint32_t operation = ~0U;  ///< of the endpoint's operations of several pieces; ~0: it is all of its
  std::uint64_t tag = 0;          ///< where it is all of its operation
  std::byte* local = nullptr;     ///< here
  void* to = nullptr;             ///< where a get or an atomic copies what came into its block
  std::uint64_t remote = 0;       ///< there
  std::uint64_t add = 0;

  [[nodiscard]] bool writes() const { return purpose == Purpose::put && length != 0; }
};

struct Work {
  ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
  bool inlined = false;  ///< the payload is taken before post() returns
  std::uint32_t length = 0;
  const void* local = nullptr;
  std::uint32_t lkey = 0;
  std::uint32_t rkey = 0;
  std::uint64_t remote = 0;
  std::uint32_t immediate = 0;
  std::uint64_t add = 0;
};

/// What a peer needs to reach a queue pair; and where a probe may be written.
struct RailOffer {
  std::uint32_t queue_pair = 0;  ///< 0: no rail
  std::uint32_t packet_sequence = 0;
  std::uint64_t probe = 0;
  std::uint32_t probe_key = 0;
  void pack(Writer& out) const { out.put(queue_pair).put(packet_sequence).put(probe).put(probe_key); }
  static RailOffer unpack(Reader& in) {
    RailOffer offer;
    offer.queue_pair = in.get<std::uint32_t>();
    offer.packet_sequence = in.get<std::uint32_t>();
    offer.probe = in.get<std::uint64_t>();
    offer.probe_key = in.get<std::uint32_t>();
    return offer;
  }
};

class Rail {
 public:
  /// A queue pair that is not connected yet. `id` comes back in wr_id. Errors: system_error,
  /// resource_exhausted.
  static Result<std::unique_ptr<Rail>> create(VerbsEndpoint& owner, Nic& nic, std::size_t nic_index,
                                              std::uint32_t id, const VerbsOptions& options);
  ~Rail();
  Rail(const Rail&) = delete;
  Rail& operator=(const Rail&) = delete;

  /// To the peer's queue pair at `theirs`. Errors: system_error, naming the step.
  Result<void> connect(const RailOffer& offer, const Port& theirs, const GidPair& gids,
                       const VerbsOptions& options);

  /// Room for a work request.
  [[nodiscard]] bool has_room() const { return sent_.size() + 2 < depth_ && nic_.send_room > 2; }
  [[nodiscard]] std::uint32_t max_inline() const { return max_inline_; }
  /// Where has_room(). Errors: system_error.
  Result<void> post(const Work& work, const Piece& piece) {
    return post(work, piece, needs_completion(work));
  }
  /// Asks for a completion where some are under way that none would tell of.
  Result<void> poke();
  /// What is under way, oldest first; then nothing is.
  Piece take_oldest();

  template <class Function>
  void each_under_way(const Function& function) {
    for (std::size_t i = 0; i < sent_.size(); ++i) function(sent_[i]);
  }
  template <class Function>
  [[nodiscard]] bool any_under_way(const Function& function) {
    for (std::size_t i = 0; i < sent_.size(); ++i) {
      if (function(sent_[i])) return true;
    }
    return false;
  }
  /// The number of the latest that is done.
  [[nodiscard]] std::uint32_t finished() const { return finished_; }
  [[nodiscard]] bool idle() const { return sent_.empty(); }
  [[nodiscard]] std::uint32_t id() const { return id_; }
  [[nodiscard]] std::uint32_t queue_pair() const { return qp_->qp_num; }
  [[nodiscard]] std::uint32_t packet_sequence() const { return packet_sequence_; }
  [[nodiscard]] std::size_t nic_index() const { return nic_index_; }
  [[nodiscard]] Nic& nic() const { return nic_; }
  std::size_t lane = 0;  ///< its place among its endpoint's
  /// Null: its endpoint has ended, and it only finishes what is under way.
  [[nodiscard]] VerbsEndpoint* owner() const { return owner_; }
  void disown() { owner_ = nullptr; }
  [[nodiscard]] std::string text() const;  ///< "mlx5_0:1 10.0.0.1 > mlx5_1:1 10.0.0.2"

 private:
  Rail(VerbsEndpoint& owner, Nic& nic, std::size_t nic_index, std::uint32_t id)
      : nic_(nic), nic_index_(nic_index), id_(id), owner_(&owner) {}
  Result<void> make_queue_pair(const VerbsOptions& options);
  Result<void> modify(ibv_qp_attr& attributes, int mask, const char* step) const;
  [[nodiscard]] bool needs_completion(const Work& work) {
    return sent_.size() < quiet_ || work.length > large_ || ++unsignaled_ >= moderation_;
  }
  Result<void> post(const Work& work, const Piece& piece, bool signaled);

  static constexpr std::uint32_t quiet_ = 4, moderation_ = 16, large_ = 8192;
  Nic& nic_;
  std::size_t nic_index_;
  std::uint32_t id_;
  VerbsEndpoint* owner_;
  std::uint32_t depth_ = 0, max_inline_ = 0, packet_sequence_ = 0;
  std::uint32_t unsignaled_ = 0;  ///< since the last that asked for a completion
  std::uint32_t posted_ = 0;      ///< number of the latest; they count from 1, modulo 2^32
  std::uint32_t asked_ = 0;       ///< the latest that asked
  std::uint32_t finished_ = 0;    ///< the latest that is done
  RingQueue<Piece> sent_;
  Owned<ibv_qp> qp_;
  std::string gids_;
};

}  // namespace cenote::transport::verbs
