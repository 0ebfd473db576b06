// TcpCore: what the TCP transport, its endpoints and its regions share. It lives as long as any of them, so
// they may be destroyed in any order.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/unique_fd.h"
#include "transports/listening_core.h"
#include "transports/meeting_place.h"
#include "transports/regions.h"
#include "transports/socket.h"
#include "transports/tcp/tcp.h"

namespace cenote::transport::tcp {

class TcpEndpoint;

struct TcpAddress : MeetingAddress {
  static Result<TcpAddress> parse(std::span<const std::byte> bytes) {
    CENOTE_ASSIGN(auto address, MeetingAddress::parse(bytes, "tcp"));
    return TcpAddress{std::move(address)};
  }
};

struct Guest : GuestBase {
  UniqueFd fd;
  Bytes got;
};

/// A connection whose endpoint has ended, while its last words leave. Closing it at once could destroy them:
/// the kernel answers what the peer still sends to a closed socket by a reset, which drops what has not left.
struct Parting {
  UniqueFd fd;
  std::uint64_t serial = 0;
  Bytes words;
  std::size_t said = 0;
  Clock::time_point until;

  /// Never blocks. False: nothing is left to do.
  bool proceed();
};

class TcpCore final : public ListeningCore<TcpEndpoint, Guest, TcpAddress> {
 public:
  static Result<std::shared_ptr<TcpCore>> create(const TcpOptions& options);

  [[nodiscard]] Result<void> reachable(const TcpAddress& peer) const {
    return can_meet(self.header.host, self.place, peer.header.host, peer.place, "TCP");
  }
  bool progress();
  bool arm();
  void disarm();
  void shut();

  void remove(TcpEndpoint* endpoint) { std::erase(endpoints, endpoint); }
  [[nodiscard]] Result<void> tune(int fd) const { return tune_socket(fd, options.silence); }
  /// Sends `words`, now as far as the kernel takes them (`said`, may be null), the rest while this transport
  /// lives; then hangs up. False: not all of them are on their way.
  bool part(UniqueFd fd, Bytes words, bool watched, std::size_t* said = nullptr);
  /// Reads what guests have sent: one may have brought a peer's note.
  void look_for_notes();

  TcpOptions options;
  std::shared_ptr<RegionTable> regions;
  Bytes scratch;  ///< what was read and not parsed, while one endpoint reads

 private:
  bool look();
  bool invite(UniqueFd fd, std::uint64_t serial, Guest& guest) override;
  bool serve_guest(std::uint64_t serial) override;
  void proceed_parting(std::uint64_t serial);

  std::vector<Parting> partings_;
};

}  // namespace cenote::transport::tcp
