// ShmEndpoint: one connected pair over shared memory. The path of an established connection is in
// shm_endpoint.cpp, the way there in shm_connect.cpp.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "transports/endpoint_base.h"
#include "transports/shm/shm_core.h"
#include "transports/shm/small_puts.h"

namespace cenote::transport::shm {

class ShmEndpoint final : public EndpointBase {
 public:
  static Result<std::unique_ptr<ShmEndpoint>> connect(std::shared_ptr<ShmCore> core, ShmAddress peer,
                                                      std::string peer_name, std::uint32_t channel,
                                                      Deadline deadline);
  ~ShmEndpoint() override;
  ShmEndpoint(const ShmEndpoint&) = delete;
  ShmEndpoint& operator=(const ShmEndpoint&) = delete;

  Result<void> put(std::span<const std::byte> src, RemoteSlice dst, std::uint32_t signal,
                   std::uint64_t tag) override;
  Result<void> get(std::span<std::byte> dst, RemoteSlice src, std::uint64_t tag) override;
  Result<void> atomic_add(RemoteSlice dst, std::uint64_t value, std::uint64_t* old,
                          std::uint64_t tag) override;
  Result<void> send(std::span<const std::byte> message) override;
  Result<std::optional<std::size_t>> receive(std::span<std::byte> out) override;
  [[nodiscard]] std::uint64_t signal(std::uint32_t slot) const override;
  [[nodiscard]] bool drained() const override { return failure_ != nullptr || deferred_.empty(); }
  void close(std::string_view reason) override;
  [[nodiscard]] std::string_view transport_name() const override { return "shm"; }

  // For the core.
  [[nodiscard]] std::uint64_t serial() const { return serial_; }
  [[nodiscard]] bool is(std::uint64_t peer, std::uint32_t channel) const {
    return peer_.header.id == peer && channel_ == channel && !failure_;
  }
  /// Looks at shared memory only. True: something came.
  bool progress();
  /// Whether progress() would find something.
  [[nodiscard]] bool pending() const;
  /// Reads the socket.
  void serve();
  /// Continues what waits for time or for room: unsent packets, dialing again, the deadline.
  void tick();
  /// Wakes the transport also when the socket takes more, if that is waited for.
  void watch_room(bool on);
  [[nodiscard]] bool has_unsent() const { return !failure_ && control_.has_unsent(); }
  void adopt(std::uint64_t serial, Guest guest);
  [[nodiscard]] bool waits_for_guest() const { return stage_ == Stage::waiting && !failure_; }
  [[nodiscard]] bool is_unsettled() const { return stage_ != Stage::ready && !failure_; }
  void break_with(Error error, bool tell_peer = true);
  void region_died(std::uint64_t region);

 private:
  enum class Stage : std::uint8_t { dialing, greeting, proving, waiting, welcoming, ready };
  enum class Kind : std::uint8_t { put, get, add, send };
  /// Posted before the connection or the mapping of the peer's region was there.
  struct Deferred {
    Kind kind{};
    RemoteKey key;
    std::uint64_t offset = 0, tag = 0, value = 0;
    std::uint32_t signal = no_signal;
    std::span<const std::byte> src;
    std::span<std::byte> dst;
    std::uint64_t* old = nullptr;
    Bytes message;
  };
  struct Import {
    RegionKey key;
    Mapping mapping;
    [[nodiscard]] bool revoked() const {
      return static_cast<RegionHeader*>(mapping.base())->revoked.load(std::memory_order_acquire) != 0;
    }
    /// Whether nothing speaks against writing there; where something does, lookup() tells what.
    [[nodiscard]] bool holds(const RemoteSlice& slice, std::size_t length) const {
      return slice.key->size == sizeof key && std::memcmp(slice.key->bytes.data(), &key, sizeof key) == 0 &&
             slice.offset <= key.size && length <= key.size - slice.offset && !revoked();
    }
    [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(mapping.base()) + page_size; }
  };

  ShmEndpoint(std::shared_ptr<ShmCore> core, ShmAddress peer, std::string name, std::uint32_t channel,
              Deadline deadline);
  [[nodiscard]] Inbox& inbox() const { return *static_cast<Inbox*>(inbox_.mapping.base()); }
  [[nodiscard]] bool flows() const { return stage_ == Stage::ready && deferred_.empty(); }
  [[nodiscard]] bool full() const { return done_.size() + deferred_.size() >= queue_depth; }

  /// Where the slice lies in this process; null: not mapped yet, or the endpoint has just failed.
  std::byte* reach(const RemoteSlice& slice, std::size_t length, const char* stage);
  std::byte* lookup(const RegionKey& key, const RemoteSlice& slice, std::size_t length, const char* stage);
  /// Whether an operation on these bytes has to wait until the peer has taken a small put to them.
  bool blocked(std::uint64_t region, std::uint64_t offset, std::size_t length);
  void give_signal(std::uint32_t slot);
  Result<void> put_otherwise(std::span<const std::byte> src, const RemoteSlice& dst, std::uint32_t signal,
                             std::uint64_t tag);
  bool write(std::byte* at, std::span<const std::byte> src, std::uint64_t offset, std::uint32_t signal);
  void posted_put(std::size_t bytes, std::uint64_t tag);
  /// Wakes the peer if it sleeps. Call it after whatever it should see.
  void ring_bell();
  void wake_peer(std::uint64_t sleep);
  bool push_message(std::span<const std::byte> message);
  void report_taken();
  Result<void> defer(Deferred operation);
  /// False: it has to wait on.
  bool run(Deferred& operation);
  bool run_deferred();
  void want(const RegionKey& key);
  /// Into shared memory, which stays when this process ends; and by the socket, for a peer whose memory is
  /// not here yet.
  void say_goodbye(std::string_view reason);
  /// Why the peer went, where it said so.
  std::optional<Error> last_words();
  std::optional<Error> last_packet();

  // shm_connect.cpp
  Result<void> dial();
  Result<void> start_waiting();
  void look_for_dialer();
  void flush_packets();
  void handle(Packet packet);
  Result<void> on_challenge(const Packet& packet);
  Result<void> on_welcome(Packet& packet);
  Result<void> on_resources(Packet& packet);
  Result<void> on_want_region(const Packet& packet);
  Result<void> on_region(Packet& packet);
  Result<void> send_resources(PacketType type, std::span<const std::byte> body);
  Result<void> take_resources(Packet& packet);
  Result<void> tell(PacketType type, std::span<const std::byte> body, std::span<const int> fds = {});

  // What the fast path reads comes first.
  Stage stage_ = Stage::dialing;
  Inbox* peer_inbox_ = nullptr;
  const Door* peer_door_ = nullptr;
  const Import* last_ = nullptr;
  std::uint64_t rung_ = 0;  ///< the peer's sleep that was already ended by this side
  std::uint64_t peer_activity_ = 0, peer_control_ = 0;
  std::uint64_t next_line_ = 0, credit_ = 0;  ///< messages to the peer: written, known to be taken
  std::uint64_t taken_ = 0, reported_ = 0;    ///< messages from the peer: taken, said so
  std::uint64_t seen_activity_ = 0, seen_control_ = 0, seen_head_ = ~0ULL, seen_small_ = 0;
  std::uint64_t asked_ = 0;  ///< what was sent when the peer was asked what it has taken
  mutable SmallPuts small_;  ///< to look for a signal is to take what has come
  std::array<std::uint64_t, signal_slots> given_{};
  RingQueue<Deferred> deferred_;

  std::shared_ptr<ShmCore> core_;
  ShmAddress peer_;
  std::uint32_t channel_;
  Deadline deadline_;
  PeerProcess process_;
  std::uint64_t serial_ = 0;
  ControlChannel control_;
  bool watching_room_ = false;
  SharedMemory inbox_;
  Mapping peer_inbox_mapping_, peer_door_mapping_;
  std::unordered_map<std::uint64_t, Import> imports_;
  RegionKey wanted_{};  ///< asked for, not here yet; region 0: none
  Clock::duration call_pause_ = std::chrono::milliseconds(25);
  Clock::time_point next_call_{};
  Nonce acceptor_nonce_{};
  Hello hello_;
};

}  // namespace cenote::transport::shm
