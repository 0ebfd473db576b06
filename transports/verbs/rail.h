// Rail: one queue pair to a peer, and what has been posted on it, in order, until the card says it is done.
// Completions are asked for rarely: the first few that are under way, and then every sixteenth, tell of those
// before them too; what none will tell of is asked after once nothing new follows.
#pragma once

#include <endian.h>

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "transports/ring_queue.h"
#include "transports/verbs/nic.h"

namespace cenote::transport::verbs {

class VerbsEndpoint;

/// What a work request was for.
enum class Purpose : std::uint8_t { put, get, atomic, message, part, probe, quiet };

/// One work request's worth of an operation: enough to post it, on this rail or, should this one die, on
/// another, and to finish it. One cache line.
struct Piece {
  Purpose purpose = Purpose::quiet;
  std::uint8_t parts = 0;         ///< of the event it is a part of; 0: of none
  std::uint8_t slot = 0;          ///< the event's signal, or message_slot
  bool again = false;             ///< replayed: counted already
  bool borrows = false;           ///< the card reads or writes the caller's memory
  bool plain = false;             ///< a small put, all of its operation, with nothing to give back
  bool on_device = false;         ///< `local` is GPU memory, which the CPU may not touch
  std::uint8_t unused = 0;        //   (with the number, bytes that are written at once)
  std::uint32_t event = 0;        ///< its number
  std::uint32_t part_number = 0;  ///< counts the parts of this rail
  std::uint32_t length = 0;
  std::uint32_t key = 0;          ///< of the peer's memory, among the endpoint's keys
  std::uint32_t block = ~0U;      ///< of Blocks: where the card reads or writes instead; given back when done
  std::uint32_t operation = ~0U;  ///< of the endpoint's operations of several pieces; ~0: it is all of its
  std::uint64_t tag = 0;          ///< where it is all of its operation
  std::byte* local = nullptr;     ///< the caller's memory
  std::uint64_t remote = 0;       ///< there
  std::uint64_t unused_too = 0;

  /// A small get, all of its operation, into memory of the CPU.
  [[nodiscard]] bool is_whole_get() const {
    return purpose == Purpose::get && operation == ~0U && block == ~0U && !on_device && length <= 8192;
  }
  [[nodiscard]] bool is_message() const { return purpose == Purpose::message && length <= 8192; }
  [[nodiscard]] bool writes() const { return purpose == Purpose::put && length != 0; }
};
static_assert(sizeof(Piece) == 64);

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
  std::uint8_t path_bits = 0;  ///< of InfiniBand: the low bits of the LID that it sends from
  void pack(Writer& out) const {
    out.put(queue_pair).put(packet_sequence).put(probe).put(probe_key).put(path_bits);
  }
  static RailOffer unpack(Reader& in) {
    RailOffer offer;
    offer.queue_pair = in.get<std::uint32_t>();
    offer.packet_sequence = in.get<std::uint32_t>();
    offer.probe = in.get<std::uint64_t>();
    offer.probe_key = in.get<std::uint32_t>();
    offer.path_bits = in.get<std::uint8_t>();
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
  [[nodiscard]] bool has_room() const { return sent_.size() < most_ && nic_.send_room > 2; }
  [[nodiscard]] std::uint32_t max_inline() const { return max_inline_; }
  /// Takes it in; it goes to the card with ring() at the latest: a list takes one doorbell. Where has_room().
  /// Errors: as ring().
  Result<void> queue(const Work& work, const Piece& piece) {
    return queue(work, piece, needs_completion(work));
  }
  [[nodiscard]] bool has_queued() const { return queued_ != 0; }
  /// Posts what is queued. Errors: system_error; then take_refused() has what the card did not take.
  Result<void> ring();
  [[nodiscard]] std::vector<Piece> take_refused() { return std::exchange(refused_pieces_, {}); }
  /// One by itself.
  Result<void> post(const Work& work, const Piece& piece) {
    CENOTE_TRY(queue(work, piece));
    return ring();
  }
  /// To be filled in before; what is under way from then on.
  [[nodiscard]] Piece& next_piece() { return sent_.next(); }
  /// A write of 1 to max_inline() bytes, taken before it returns. Where has_room(). 0, or errno: nothing was
  /// posted.
  int write_inline(std::span<const std::byte> bytes, std::uint64_t remote, std::uint32_t rkey) {
    write_.opcode = IBV_WR_RDMA_WRITE;
    return post_one(bytes, remote, rkey, IBV_SEND_INLINE);
  }
  int write_inline(std::span<const std::byte> bytes, std::uint64_t remote, std::uint32_t rkey,
                   std::uint32_t immediate) {
    write_.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    write_.imm_data = htobe32(immediate);
    return post_one(bytes, remote, rkey, IBV_SEND_INLINE);
  }
  /// The same of a read into registered memory, and of a message from it (`local_key`).
  int read(std::span<std::byte> into, std::uint32_t local_key, std::uint64_t remote, std::uint32_t rkey) {
    write_.opcode = IBV_WR_RDMA_READ;
    write_part_.lkey = local_key;
    return post_one(into, remote, rkey, 0);
  }
  int send(std::span<const std::byte> bytes, std::uint32_t local_key) {
    write_.opcode = IBV_WR_SEND;
    write_part_.lkey = local_key;
    const unsigned inlined = bytes.size() <= max_inline_ ? unsigned{IBV_SEND_INLINE} : 0U;
    return post_one(bytes, 0, 0, inlined | (bytes.size() > large_ ? unsigned{IBV_SEND_SIGNALED} : 0U));
  }
  /// Asks for a completion where some are under way that none would tell of.
  Result<void> poke();
  /// Only a completion makes it true: who posts while nothing is asked for, asks.
  [[nodiscard]] bool needs_poke() const { return posted_ != finished_ && asked_ == finished_; }
  /// Whether anything was posted since the last time it was asked: what follows may soon tell of it.
  [[nodiscard]] bool is_busy() { return std::exchange(seen_, posted_) != posted_; }
  /// What is under way, oldest first; then nothing is.
  Piece take_oldest() {
    const Piece oldest = sent_.pop();
    finished_more(1);
    return oldest;
  }
  [[nodiscard]] const Piece& oldest() { return sent_.front(); }
  [[nodiscard]] const Piece& latest() const { return sent_.back(); }
  /// The oldest under way, at most `most`, as far as they lie in one piece; finish() takes some of them.
  [[nodiscard]] std::span<const Piece> oldest(std::size_t most) { return sent_.run(most); }
  void finish(std::size_t count) {
    sent_.drop(count);
    finished_more(static_cast<std::uint32_t>(count));
  }

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
  std::size_t lane = 0;        ///< its place among its endpoint's
  std::uint8_t path_bits = 0;  ///< offered to the peer; before connect()
  /// Null: its endpoint has ended, and it only finishes what is under way.
  [[nodiscard]] VerbsEndpoint* owner() const { return owner_; }
  void disown() { owner_ = nullptr; }
  [[nodiscard]] std::string text() const;  ///< "mlx5_0:1 10.0.0.1 > mlx5_1:1 10.0.0.2"

 private:
  Rail(VerbsEndpoint& owner, Nic& nic, std::size_t nic_index, std::uint32_t id)
      : nic_(nic),
        nic_index_(nic_index),
        id_(id),
        mark_(std::uint64_t{id} << 32),
        owner_(&owner),
        post_send_(nic.api.post_send) {
    write_.sg_list = &write_part_;
    write_.num_sge = 1;
  }
  Result<void> make_queue_pair(const VerbsOptions& options);
  Result<void> modify(ibv_qp_attr& attributes, int mask, const char* step) const;
  Result<void> queue(const Work& work, const Piece& piece, bool signaled);
  [[nodiscard]] bool needs_completion(const Work& work) const {
    return is_asked_for(posted_ + 1) || work.length > large_;
  }
  [[nodiscard]] bool is_asked_for(std::uint32_t number) const {
    return static_cast<std::int32_t>(number - next_ask_) >= 0;
  }
  void ask(std::uint32_t number) {
    asked_ = number;
    next_ask_ = number + (sent_.size() < quiet_ ? 1 : moderation_);
  }
  void finished_more(std::uint32_t count) {
    finished_ += count;
    nic_.send_room += count;
    if (sent_.size() < quiet_) next_ask_ = posted_ + 1;
  }
  // All is counted before the call, so that little has to be kept over it.
  int post_one(std::span<const std::byte> bytes, std::uint64_t remote, std::uint32_t rkey, unsigned flags) {
    const std::uint32_t number = posted_ + 1;
    if (is_asked_for(number) || (flags & IBV_SEND_SIGNALED) != 0) {
      flags |= unsigned{IBV_SEND_SIGNALED};
      ask(number);
    }
    posted_ = number;
    write_part_.addr = reinterpret_cast<std::uintptr_t>(bytes.data());
    write_part_.length = static_cast<std::uint32_t>(bytes.size());
    write_.wr_id = mark_ | number;
    write_.send_flags = flags;
    write_.wr.rdma.remote_addr = remote;
    write_.wr.rdma.rkey = rkey;
    sent_.added(1);
    --nic_.send_room;
    const int failed = post_send_(qp_.get(), &write_, &refused_);
    if (failed != 0) [[unlikely]]
      forget_latest();
    return failed;
  }
  void forget_latest() {
    sent_.take_back();
    ++nic_.send_room;
    --posted_;
    asked_ = finished_;  // what is under way is asked after by the next one, or poke()
    next_ask_ = posted_ + 1;
  }

  static constexpr std::uint32_t quiet_ = 4, moderation_ = 16, large_ = 8192;
  Nic& nic_;
  std::size_t nic_index_;
  std::uint32_t id_;
  std::uint64_t mark_;  ///< the id, where wr_id has it
  VerbsEndpoint* owner_;
  std::uint32_t most_ = 0, max_inline_ = 0, packet_sequence_ = 0;
  std::uint32_t posted_ = 0;    ///< number of the latest; they count from 1, modulo 2^32
  std::uint32_t asked_ = 0;     ///< the latest that asked
  std::uint32_t next_ask_ = 1;  ///< from this one on the next asks
  std::uint32_t finished_ = 0;  ///< the latest that is done
  std::uint32_t seen_ = 0;      ///< the latest when is_busy() was asked
  RingQueue<Piece> sent_;
  std::array<ibv_send_wr, 16> list_{};
  std::array<ibv_sge, 16> list_parts_{};
  std::size_t queued_ = 0;
  std::vector<Piece> refused_pieces_;
  // What post_one() posts: most of it stays from write to write.
  ibv_send_wr write_{};
  ibv_sge write_part_{};
  ibv_send_wr* refused_ = nullptr;
  decltype(VerbsApi::post_send) post_send_;
  Owned<ibv_qp> qp_;
  std::string gids_;
};

}  // namespace cenote::transport::verbs
