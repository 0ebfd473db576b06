// VerbsEndpoint: one connected pair over rails. How the sides agree is in negotiate.cpp, what the caller asks
// for in verbs_endpoint.cpp, how it is cut into pieces and posted in issue.cpp (small_*.cpp: the usual small
// one, at once), what comes in in verbs_receive.cpp, what happens when a rail dies in recovery.cpp, and when
// nobody uses it in parking.cpp.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "transports/endpoint_base.h"
#include "transports/verbs/event_order.h"
#include "transports/verbs/lane.h"
#include "transports/verbs/staging.h"
#include "transports/verbs/verbs_core.h"

namespace cenote::transport::verbs {

class VerbsEndpoint final : public EndpointBase {
 public:
  static Result<std::unique_ptr<VerbsEndpoint>> connect(std::shared_ptr<VerbsCore> core, VerbsAddress peer,
                                                        std::string peer_name, std::uint32_t channel,
                                                        Deadline deadline);
  ~VerbsEndpoint() override;
  VerbsEndpoint(const VerbsEndpoint&) = delete;
  VerbsEndpoint& operator=(const VerbsEndpoint&) = delete;

  Result<void> put(std::span<const std::byte> src, RemoteSlice dst, std::uint32_t signal,
                   std::uint64_t tag) override;
  Result<void> get(std::span<std::byte> dst, RemoteSlice src, std::uint64_t tag) override;
  Result<void> atomic_add(RemoteSlice dst, std::uint64_t value, std::uint64_t* old,
                          std::uint64_t tag) override;
  Result<void> send(std::span<const std::byte> message) override;
  Result<std::optional<std::size_t>> receive(std::span<std::byte> out) override;
  [[nodiscard]] std::uint64_t signal(std::uint32_t slot) const override {
    return slot < signal_slots ? signals_[slot] : 0;
  }
  [[nodiscard]] bool drained() const override;
  void close(std::string_view reason) override;
  [[nodiscard]] std::string_view transport_name() const override { return "verbs"; }

  // For the core.
  [[nodiscard]] std::uint64_t serial() const { return serial_; }
  [[nodiscard]] bool is(std::uint64_t peer, std::uint32_t channel) const {
    return peer_.header.id == peer && channel_ == channel && !failure_;
  }
  [[nodiscard]] bool waits_for_guest() const { return side_ && side_->waiting() && !failure_; }
  /// Whether it has to be looked after though nothing comes for it.
  [[nodiscard]] bool is_unsettled() const {
    return (stage_ != Stage::ready || unwell_ || (parking_ != Parking::none && !waiting_.empty())) &&
           !failure_;
  }
  [[nodiscard]] bool is_ending() const { return ending_ != nullptr && !failure_; }
  void adopt(std::uint64_t serial, SideGuest guest);
  /// Posts what waits. True: something was. `last`: nothing follows soon, this side goes to sleep.
  bool flush(bool last = false);
  /// Reads the side channel. True: something came.
  bool read();
  void tick();
  /// Everything of `rail` up to `number` is done; the last with `status`.
  void sent_until(Rail& rail, std::uint32_t number, ibv_wc_status status);
  /// Whether there is nothing to retire, and nothing to flush but what needs a poke.
  [[nodiscard]] bool is_calm() const {
    const bool nothing_to_post = open_ != nullptr || (parking_ == Parking::parked && waiting_.empty());
    return nothing_to_post && !unwell_ && !side_->has_unsent();
  }
  /// Calm, and no rail that would be poked.
  [[nodiscard]] bool is_settled() const;
  void arrived(const Rail& rail, const ibv_wc& completion, std::span<const std::byte> slot);
  /// Ends it when what came before its peer's end has been taken. `dry`: no completion is left.
  bool finish_ending(bool dry);
  /// Takes down the rails that have failed. `dry`: what had arrived over them has been taken.
  bool retire_rails(bool dry);
  /// From now on what is put may lie in GPU memory.
  void look_at_memory() { open_ = nullptr; }
  /// Tells of what has arrived and can be seen now. True: something was told.
  bool tell_seen();
  /// Whether a copy from GPU memory or to it is under way, of which no descriptor tells.
  [[nodiscard]] bool copies() const { return !held_.empty() || (staging_ && staging_->copies()); }
  /// Whether anything waits to be seen.
  /// What waits can not be made visible: it is not told, and the endpoint fails.
  void break_unseen(Error error);
  [[nodiscard]] bool holds() const { return !held_.empty(); }
  void break_with(Error error, bool tell_peer = true);
  void nic_failed(const Nic& nic, const std::string& cause);
  void nic_is_up(const Nic& nic);
  void queue_pair_failed(std::uint32_t queue_pair, const std::string& what);
  // For the bound on connections with queue pairs.
  /// It has some, and is not about to give them up.
  [[nodiscard]] bool keeps_queue_pairs(Clock::time_point now) const;
  void note_use(Clock::time_point now);
  [[nodiscard]] Clock::time_point last_used() const { return last_used_; }
  [[nodiscard]] bool may_ask_to_park(Clock::time_point now) const;
  void ask_to_park(Clock::time_point now);

 private:
  enum class Stage : std::uint8_t { meeting, exchanging, connecting, proving, ready };
  enum class Parking : std::uint8_t {
    none,
    asked,   ///< the peer; nothing is posted until it has answered
    agreed,  ///< rails are being taken down, on both sides
    parked,  ///< all are gone
    waking,  ///< until the first is back
  };
  enum class Kind : std::uint8_t { put, get, atomic, message };
  /// What was asked for and is not posted whole.
  struct Request {
    Kind kind = Kind::put;
    MessageType type = MessageType::message;
    bool on_device = false;     ///< `local` is GPU memory
    bool staged_there = false;  ///< what it reads or writes there is GPU memory that no card comes to
    std::uint32_t signal = no_signal;
    std::uint32_t block = Blocks::none;  ///< the message
    std::uint32_t key = 0;
    std::uint32_t operation = no_operation;
    std::byte* local = nullptr;
    std::size_t size = 0;
    std::size_t posted = 0;  ///< bytes of it
    std::uint64_t remote = 0;
    std::uint64_t value = 0;  ///< to add; credit
    std::uint64_t* old = nullptr;
    VerbsKey staged_key{};
    std::uint64_t tag = 0;
  };
  /// One that is cut into several pieces, or whose memory is registered for its time only.
  struct Operation {
    std::uint64_t tag = 0;
    std::size_t pieces = 0;  ///< under way
    bool whole = false;      ///< all are posted
    bool used = false;
    std::unique_ptr<Registered> loan;
  };
  static constexpr std::uint32_t no_operation = ~0U;
  /// Has arrived, and is told when it can be seen (visibility.h): a signal, a message, or a get.
  struct Held {
    std::uint64_t round = 0;
    std::uint8_t slot = 0;
    Bytes message;
    std::optional<Piece> got;
    // Bytes on their way to GPU memory.
    std::shared_ptr<Pinned> pinned{};
    std::uint64_t copy = 0;
    bool put = false;                        ///< a peer's, who waits to be told that there is room again
    std::uint32_t operation = no_operation;  ///< a get of this side
    std::size_t bytes = 0;
  };

  VerbsEndpoint(std::shared_ptr<VerbsCore> core, VerbsAddress peer, std::string name, std::uint32_t channel,
                Deadline deadline);
  // negotiate.cpp
  void say(Note note, const Writer& body) { side_->post(static_cast<std::uint8_t>(note), body.bytes()); }
  void say_ports();
  Result<void> take_note(std::uint8_t type, std::span<const std::byte> body);
  Result<void> take_ports(Reader& in);
  RailPlan plan_lanes(const RailHome& their_home);
  Result<void> begin_attempt();
  Result<RailOffer> make_offer(Lane& lane);
  Result<void> take_offer(Reader& in);
  Result<void> take_primed(Reader& in);
  Result<void> take_proved(Reader& in);
  Result<void> probe(Lane& lane);
  void probe_done(Lane& lane, ibv_wc_status status);
  void say_proved();
  Result<void> settle(const std::vector<bool>& theirs);
  void take_farewell(Reader& in);
  void become_ready();
  [[nodiscard]] std::string path_text(const Lane& lane) const;
  // verbs_endpoint.cpp
  Result<void> check(const RemoteSlice& slice, std::uint64_t length, const char* stage, Request& request);
  std::uint32_t key_index(const VerbsKey& key);
  [[nodiscard]] bool full() const { return done_.size() + operations_ >= queue_depth; }
  void submit(Request& request);
  void say_farewell(std::string_view reason, std::uint64_t events);
  void drop_rails();
  [[gnu::cold]] void post_failed(Rail& rail, ibv_wc_status status);
  void poke_rails(bool last);
  // small_put.cpp
  [[nodiscard]] Lane* open_lane();
  template <bool with_signal>
  void post_at_once(Lane& lane, std::span<const std::byte> src, std::uint64_t remote, std::uint32_t signal,
                    std::uint64_t tag);
  [[gnu::cold]] void post_refused(Lane& lane, int error);
  /// The oldest of `rail`, a get of one piece into place.
  void finish_get(Rail& rail);
  /// The plain pieces among the `count` oldest of `rail`, up to the first other one.
  void finish_plain(Rail& rail, std::uint32_t count);
  [[gnu::cold]] Result<void> put_in_general(std::span<const std::byte> src, RemoteSlice dst,
                                            std::uint32_t signal, std::uint64_t tag);
  // small_get.cpp, small_send.cpp
  Result<void> get_in_general(std::span<std::byte> dst, RemoteSlice src, std::uint64_t tag);
  /// Its body is in `block`, which lies at `bytes`, behind the room for its head.
  void post_message(Lane& lane, std::uint32_t block, std::byte* bytes, std::size_t size);
  // issue.cpp: true = posted whole
  Result<bool> issue(Request& request);
  Result<bool> issue_any(Request& request);
  Result<bool> issue_put(Request& request);
  Result<bool> issue_get(Request& request);
  Result<bool> issue_atomic(Request& request);
  Result<bool> issue_message(Request& request);
  [[nodiscard]] Lane* first_alive();
  /// Where `bytes` may go now; null: nowhere yet.
  [[nodiscard]] Lane* lane_for(std::size_t bytes);
  [[nodiscard]] std::size_t piece_of(std::size_t left) const;
  [[nodiscard]] bool conflicts(const Lane& lane, std::uint64_t from, std::size_t bytes) const;
  /// Bytes from the caller's memory, or into it: in place, through a block, or lent. False: no block is left.
  Result<bool> find_memory(Request& request, Piece& piece, unsigned access);
  /// Makes `piece` the last part of a new event. False: a lane that needs a part has no room.
  bool make_event(Lane& lane, Piece& piece, std::uint8_t slot);
  void post_parts(const Lane& lane, const Piece& piece);
  void post(Lane& lane, Piece& piece);
  [[gnu::cold]] void refused(Lane& lane, const std::string& why);
  void ring();
  [[nodiscard]] std::uint32_t local_key(const Lane& lane, const Piece& piece) const;
  std::uint32_t begin_operation(const Request& request);
  void finish_piece(const Piece& piece);
  void finish_operation(std::uint32_t index, bool failed);
  void give_up(const Piece& piece);
  // verbs_receive.cpp
  Result<void> take_part(const EventPart& part);
  Result<void> deliver(std::uint8_t slot, std::span<const std::byte> message);
  Result<void> take_message(std::span<const std::byte> bytes);
  void tell(std::uint8_t slot, std::span<const std::byte> message);
  [[gnu::cold]] void give_credit(std::size_t credit);
  // verbs_held.cpp
  void hold(std::uint8_t slot, std::span<const std::byte> message);
  [[nodiscard]] bool hold(const Piece& got);
  void hold(Held held);
  void tell_last();
  void drop_held();
  // staged.cpp
  Staging& staging() {
    if (!staging_) staging_ = std::make_unique<Staging>();
    return *staging_;
  }
  void note_memory(Request& request) const;
  /// Null: what it names on this side is memory of the CPU.
  Result<const Registered*> gpu_memory_of(const Request& request) const;
  Result<bool> issue_staged(Request& request, const Registered* here);
  Result<bool> issue_staged_note(MessageType type, std::uint32_t block, const StagedHead& head,
                                 std::size_t bytes);
  Result<bool> put_from_staged(Request& request, const Registered& here);
  Result<bool> put_to_staged(Request& request, const Registered* here);
  Result<bool> get_into_staged(Request& request, const Registered& here);
  Result<bool> get_from_staged(Request& request, const Registered* here);
  Result<void> begin_chunks(const Request& request, const Registered* here, std::size_t most,
                            std::size_t head);
  [[nodiscard]] static StagedHead head_of(const Request& request, std::size_t bytes);
  /// What the peer asks of this side's memory, and answers.
  Result<void> take_staged(MessageType type, std::span<const std::byte> body);
  Result<void> take_staged_put(const StagedHead& head, std::span<const std::byte> bytes);
  Result<void> take_staged_get(const StagedHead& head);
  Result<void> take_staged_answer(const StagedHead& head, std::span<const std::byte> bytes);
  Result<const Registered*> staged_region(const StagedHead& head) const;
  Result<bool> serve_staged();
  Result<bool> answer_peer();
  void staged_done(const Held& held);
  void drop_staged();
  // recovery.cpp
  void lane_failed(Lane& lane, std::string why);
  void retire(Lane& lane);
  Result<void> take_gone(Reader& in);
  void recover(Lane& lane);
  bool replay();
  void all_lanes_gone();
  void revive_lanes();
  Result<void> revive(Lane& lane);
  void revival_failed(Lane& lane, std::string why);
  void lane_is_up(Lane& lane);
  Result<Lane*> lane_of(Reader& in, Lane::State expected);
  Result<void> take_revive(Reader& in);
  Result<void> take_revived(Reader& in);
  Result<void> take_up(Reader& in);
  Result<void> take_not_up(Reader& in);

  // parking.cpp
  [[nodiscard]] bool is_idle() const;
  void say_park();
  Result<void> take_park(Reader& in);
  Result<void> take_stay(Reader& in);
  Result<void> take_wake(Reader& in);
  void begin_parking(std::uint64_t their_events);
  [[nodiscard]] bool has_all_before_parking();
  void finish_parking();
  void wake(bool tell_peer);
  void is_awake();
  [[nodiscard]] bool waits_for_parked();
  /// Whether what is new has to wait.
  [[nodiscard]] bool holds_back() const { return recovering_ != 0 || parking_ != Parking::none; }

  Stage stage_ = Stage::meeting;
  Parking parking_ = Parking::none;
  bool unwell_ = false;         ///< a lane is not alive
  std::size_t recovering_ = 0;  ///< lanes that failed and are not settled: nothing new is posted
  std::size_t operations_ = 0;  ///< with a tag, accepted, not finished
  std::size_t borrowed_ = 0;    ///< pieces under way in the caller's memory
  std::vector<Lane> lanes_;
  Lane* open_ = nullptr;  ///< where a small put may go at once; null: to be found out
  RingQueue<Request> waiting_;
  std::deque<Piece> replay_;
  std::uint64_t events_sent_ = 0;
  EventOrder order_;
  std::array<std::uint64_t, signal_slots> signals_{};

  std::vector<VerbsKey> keys_;  ///< the peer's that were used
  std::unordered_map<std::uint64_t, std::uint32_t> key_of_region_;
  VerbsKey latest_{};  ///< keys_[latest_key_], when there is one
  std::uint32_t latest_key_ = 0;
  std::vector<Operation> cut_;  ///< operations of several pieces
  std::vector<std::uint32_t> free_cut_;

  std::deque<Held> held_;  ///< in their order
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<Error> doomed_;  ///< what a copy said, to be told when nothing else is being done
  std::size_t window_used_ = 0;    ///< of messages to the peer
  Inbox inbox_;

  std::shared_ptr<VerbsCore> core_;
  VerbsAddress peer_;
  std::uint32_t channel_;
  Deadline deadline_;
  std::uint64_t serial_ = 0;
  std::unique_ptr<SideChannel> side_;
  std::vector<Port> their_ports_;
  std::uint32_t their_rails_ = 0;  ///< most that the peer wants
  std::uint8_t attempt_ = 0;
  bool offer_taken_ = false, primed_taken_ = false, said_proved_ = false;
  std::optional<std::vector<bool>> theirs_proved_;
  std::uint64_t uses_ = 0;       ///< when last_used_ was noted
  std::uint64_t parted_at_ = 0;  ///< the peer's events until it parks
  Clock::time_point last_used_{}, asked_at_{}, next_asking_{}, agreed_until_{}, wake_until_{};
  Clock::duration peace_{};  ///< after an answer that it is used
  std::unique_ptr<Error> ending_;
  std::uint64_t ending_round_ = 0, ending_events_ = 0;
};

inline constexpr std::size_t max_reason = 1024;
inline constexpr auto wake_patience = std::chrono::seconds(2);  ///< for rails that cannot be revived

}  // namespace cenote::transport::verbs
