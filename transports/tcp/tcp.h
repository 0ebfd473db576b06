// The TCP transport: reaches any peer over sockets. Non-blocking, one epoll descriptor, no thread of its own.
//
// A put is one frame: header and payload leave in one system call straight from the caller's buffer, and the
// receiver reads the payload straight into the target region. What the kernel does not take at once, and
// small operations that follow each other without a progress() between them, leave at the next progress().
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "transports/transport.h"

namespace cenote {
class Logger;
}

namespace cenote::transport {

struct TcpOptions {
  std::string host = "127.0.0.1";  ///< numeric address to listen on and to publish; any free port is taken
  /// A peer that acknowledges nothing for that long (machine lost, cable cut) has failed. A process that ends
  /// is noticed at once. Also the longest that a peer may leave a full connection unread.
  std::chrono::milliseconds silence{30'000};
  Logger* log = nullptr;  ///< outlives the transport; connections at debug; null: none
};

/// Errors: invalid_argument (host is no numeric address), system_error.
Result<std::unique_ptr<Transport>> make_tcp_transport(const TcpOptions& options = {});

}  // namespace cenote::transport
