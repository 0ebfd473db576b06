// Non-blocking TCP sockets over numeric or named addresses. All descriptors are close-on-exec. Thread-safe:
// no state. Errors name the address.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace cenote {

struct SocketAddress {
  std::string host;  ///< name or number; IPv6 without brackets
  std::uint16_t port = 0;

  /// "10.0.0.7:4700", "[::1]:4700"
  [[nodiscard]] std::string text() const;
  static Result<SocketAddress> parse(std::string_view text);
  bool operator==(const SocketAddress&) const = default;
};

/// Port 0 takes a free one. Errors: already_exists (the port is in use), system_error. Names are looked up,
/// which may block; numbers never do.
Result<UniqueFd> listen_on(const SocketAddress& address, int backlog);
/// The number behind a name: that of its first address. Errors: not_found, system_error. May block.
Result<std::string> resolve(const std::string& host);
/// Numeric: the address of this machine that what it sends to `host` leaves from. Sends nothing.
Result<std::string> address_towards(const std::string& host);
/// Whether a numeric address is one that only this machine reaches.
bool is_loopback(std::string_view host);
/// Begins to connect; the descriptor polls writable when that is over, and connect_outcome says how it went.
Result<UniqueFd> start_connecting(const SocketAddress& address);
Result<void> connect_outcome(int fd, const SocketAddress& address);
/// An invalid UniqueFd when nobody waits. Errors: resource_exhausted (out of descriptors), system_error.
Result<UniqueFd> accept_from(int listener);
/// Numeric, of this end and of the other.
Result<SocketAddress> local_address(int fd);
Result<SocketAddress> peer_address(int fd);

}  // namespace cenote
