// ControlChannel: packets and descriptors between two processes over a unix SOCK_SEQPACKET socket. Never
// blocks: what the kernel does not take now is kept. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/bytes.h"
#include "runtime/result.h"
#include "runtime/unique_fd.h"
#include "transports/ring_queue.h"

namespace cenote::transport::shm {

enum class PacketType : std::uint8_t {
  challenge,
  hello,
  welcome,    ///< proof; descriptors: inbox, door
  resources,  ///< descriptors: the same, of the dialer
  want_region,
  region,       ///< one descriptor
  no_region,    ///< unknown, or destroyed
  region_gone,  ///< unmap it
  close,        ///< a reason
  wake,         ///< nothing but a reason to wake up
};

struct Packet {
  PacketType type{};
  Bytes body;
  std::vector<UniqueFd> fds;
};

class ControlChannel {
 public:
  static constexpr std::size_t max_body = 512;  // a reason fits
  static constexpr std::size_t max_fds = 2;

  ControlChannel() = default;
  explicit ControlChannel(UniqueFd fd) : fd_(std::move(fd)) {}
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] bool open() const { return static_cast<bool>(fd_); }
  /// Descriptors are copied: the caller keeps its own. Errors: peer_failed, resource_exhausted (the peer does
  /// not read), system_error.
  Result<void> send(PacketType type, std::span<const std::byte> body, std::span<const int> fds = {});
  /// Makes the peer's socket readable. A full socket already is, so nothing is kept and nothing can block.
  void wake();
  /// Sends what was kept, as far as the kernel takes it now.
  Result<void> flush();
  /// Whether the socket becomes writable when the kernel takes more. It may refuse for other reasons, too.
  [[nodiscard]] bool waits_for_room() const { return !unsent_.empty() && full_; }
  [[nodiscard]] bool has_unsent() const { return !unsent_.empty(); }
  /// Of the packets that were kept, how many carry descriptors.
  [[nodiscard]] std::size_t unsent_with_fds() const { return unsent_with_fds_; }
  /// nullopt: nothing there now. Errors: peer_failed (the other side is gone), protocol_error.
  Result<std::optional<Packet>> receive();
  void close() { fd_.reset(); }

 private:
  /// False: the kernel does not take it now.
  Result<bool> write(const Packet& packet);

  UniqueFd fd_;
  RingQueue<Packet> unsent_;
  std::size_t unsent_with_fds_ = 0;
  bool full_ = false;
  bool told_reset_ = false;
};

}  // namespace cenote::transport::shm
