// The UCX transport: the contract over UCP, for networks that UCX reaches and we do not. libucp.so.0 is
// opened at run time. Non-blocking; UCX keeps a thread of its own for its connections.
//
// Everything travels as UCP active messages. UCX's remote memory access is left off: with it, whoever speaks
// UCX's protocol over a socket may write to any address of this process, proved or not.
//
// Peers meet over a socket (handshake.h), which then carries UCX's addresses, shows at once when a process
// ends, and takes farewells.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "transports/transport.h"

namespace cenote {
class Logger;
}

namespace cenote::transport {

struct UcxOptions {
  std::string host = "127.0.0.1";  ///< numeric address of the socket where peers meet; any free port is taken
  std::string tls = "all";         ///< UCX's own transports: "posix", "tcp", "rc,self" (UCX_TLS)
  /// A peer whose socket acknowledges nothing for that long has failed. A process that ends is noticed at
  /// once.
  std::chrono::milliseconds silence{30'000};
  Logger* log = nullptr;  ///< outlives the transport; connections at debug; null: none
};

/// Errors: not_supported (no libucp here, or it knows no such transports), invalid_argument, system_error.
Result<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions& options = {});

}  // namespace cenote::transport
