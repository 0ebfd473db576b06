// VerbsEndpoint: one connected pair over rails. How the sides agree is in negotiate.cpp, what goes out in
// verbs_endpoint.cpp, what comes in in verbs_receive.cpp.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "transports/endpoint_base.h"
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
  [[nodiscard]] bool is_unsettled() const { return stage_ != Stage::ready && !failure_; }
  [[nodiscard]] bool is_ending() const { return ending_ != nullptr && !failure_; }
  void adopt(std::uint64_t serial, SideGuest guest);
  /// Posts what waits. True: something was.
  bool flush();
  /// Reads the side channel. True: something came.
  bool read();
  void tick();
  /// Everything up to `number` is done; the last with `status`.
  void sent_until(Rail& rail, std::uint32_t number, ibv_wc_status status);
  void arrived(const ibv_wc& completion, std::span<const std::byte> slot);
  /// Ends it when what came before its peer's end has been taken. `dry`: no completion is left.
  bool finish_ending(bool dry);
  void break_with(Error error, bool tell_peer = true);
  [[nodiscard]] bool uses(const Nic& nic) const;
  void queue_pair_failed(std::uint32_t queue_pair, const std::string& what);

 private:
  enum class Stage : std::uint8_t { meeting, exchanging, connecting, proving, ready };
  enum class Kind : std::uint8_t { put, get, atomic, message, credit };
  /// What was asked for and is not posted whole.
  struct Request {
    Kind kind = Kind::put;
    std::uint32_t signal = no_signal;
    std::uint32_t block = Blocks::none;  ///< the message
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::size_t size = 0;
    std::size_t posted = 0;  ///< bytes of it
    std::uint64_t remote = 0;
    std::uint64_t value = 0;  ///< to add; credit
    std::uint64_t* old = nullptr;
    std::uint64_t tag = 0;
    std::uint64_t loan = 0;
    std::array<std::uint32_t, max_ports> rkeys{};
  };
  /// A rail and what belongs to it on the other side.
  struct Lane {
    std::unique_ptr<Rail> rail;
    std::size_t mine = 0, theirs = 0;  ///< ports by index
    std::vector<GidPair> candidates;
    RailOffer offer;
    bool proved = false, mine_done = false, mine_ok = false;
    std::string why_not;  ///< of the latest attempt
  };

  VerbsEndpoint(std::shared_ptr<VerbsCore> core, VerbsAddress peer, std::string name, std::uint32_t channel,
                Deadline deadline);
  // negotiate.cpp
  void say_ports();
  Result<void> take_note(std::uint8_t type, std::span<const std::byte> body);
  Result<void> take_ports(Reader& in);
  Result<void> begin_attempt();
  Result<void> take_offer(Reader& in);
  Result<void> take_primed(Reader& in);
  Result<void> take_proved(Reader& in);
  void probe_done(Rail& rail, ibv_wc_status status);
  void say_proved();
  Result<void> settle(const std::vector<bool>& theirs);
  void take_farewell(Reader& in);
  void become_ready();
  // verbs_endpoint.cpp
  Result<void> check(const RemoteSlice& slice, std::uint64_t length, const char* stage, Request& request);
  [[nodiscard]] bool full() const { return done_.size() + operations_ >= queue_depth; }
  [[nodiscard]] Rail& lead() const { return *lanes_.front().rail; }
  void submit(Request& request);
  /// True: posted whole.
  Result<bool> issue(Request& request);
  Result<bool> issue_put(Request& request);
  Result<bool> issue_get(Request& request);
  Result<bool> issue_atomic(Request& request);
  Result<bool> issue_message(Request& request);
  Result<bool> lend(Request& request, unsigned access);
  void finish_sent(const Sent& sent);
  void give_up(const Sent& sent);
  [[nodiscard]] std::uint32_t next_immediate(std::uint32_t slot);
  void say_farewell(std::string_view reason, std::uint32_t events);
  void drop_rails();
  // verbs_receive.cpp
  Result<void> take_event(std::uint32_t sequence);
  Result<void> take_message(std::span<const std::byte> body);
  void return_credit();

  Stage stage_ = Stage::meeting;
  std::size_t operations_ = 0;  ///< with a tag, accepted, not finished
  std::size_t borrowed_ = 0;    ///< under way in the caller's memory
  std::vector<Lane> lanes_;
  RingQueue<Request> waiting_;
  std::uint32_t events_sent_ = 0, events_acknowledged_ = 0, events_received_ = 0;
  std::array<std::uint64_t, signal_slots> signals_{};

  std::size_t window_used_ = 0;   ///< of messages to the peer
  std::size_t inbox_read_ = 0;    ///< where in inbox_ the oldest message begins
  std::size_t inbox_charge_ = 0;  ///< held there, as the peer counts it
  std::size_t credit_due_ = 0;    ///< taken, not said so
  Bytes inbox_;                   ///< messages: u32 size, bytes

  std::unordered_map<std::uint64_t, std::unique_ptr<Registered>> loans_;
  std::uint64_t next_loan_ = 1;

  std::shared_ptr<VerbsCore> core_;
  VerbsAddress peer_;
  std::uint32_t channel_;
  Deadline deadline_;
  std::uint64_t serial_ = 0;
  std::unique_ptr<SideChannel> side_;
  std::vector<Port> their_ports_;
  std::uint8_t attempt_ = 0;
  bool offer_taken_ = false, primed_taken_ = false, said_proved_ = false;
  std::optional<std::vector<bool>> theirs_proved_;
  std::unique_ptr<Error> ending_;
  std::uint64_t ending_round_ = 0;
  std::uint32_t ending_events_ = 0;
};

/// How the 32 bits of an immediate value are used: the signal's slot, and the event's number modulo 2^26.
inline constexpr std::uint32_t sequence_bits = 26;
inline constexpr std::uint32_t sequence_mask = (1U << sequence_bits) - 1;
static_assert(signal_slots <= 1U << (32 - sequence_bits));

enum class MessageType : std::uint8_t { message = 1, credit = 2 };
/// Messages under way in one direction: their bytes and `message_charge` for each.
inline constexpr std::size_t message_window = std::size_t{128} * 1024;
inline constexpr std::size_t message_charge = 16;
inline constexpr std::size_t max_reason = 512;

}  // namespace cenote::transport::verbs
