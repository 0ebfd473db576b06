// Sockets to peers, as every transport that meets them there makes them.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace cenote::transport {

/// A numeric address as the socket calls want it. Errors: invalid_argument.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  static Result<SocketAddress> parse(const std::string& host, std::uint16_t port);
  [[nodiscard]] sockaddr* get() { return static_cast<sockaddr*>(static_cast<void*>(&storage)); }
};

/// Listens on any free port of `host`, which `port` tells. Errors: invalid_argument, system_error.
Result<UniqueFd> listen_on(const std::string& host, std::uint16_t& port);

/// Sends at once, and notices within `silence` that nobody acknowledges. Errors: system_error.
Result<void> tune_socket(int fd, std::chrono::milliseconds silence);

}  // namespace cenote::transport
