// The shared-memory transport: peers on the same host, found by boot id and network namespace (its sockets
// are abstract unix sockets, which live there), never by host name.
//
// Memory is made with memfd_create, sealed against every change of size, and handed over a unix socket after
// both sides proved that they know the other's address. A put is a memcpy into the peer's memory and a store
// to its signal counter. Ordinary memory cannot be registered: allocate() it here.
#pragma once

#include <memory>

#include "transports/transport.h"

namespace cenote {
class Logger;
}

namespace cenote::transport {

struct ShmOptions {
  Logger* log = nullptr;  ///< outlives the transport; connections and credentials at debug; null: none
};

/// Errors: system_error (no memfd, no descriptor left).
Result<std::unique_ptr<Transport>> make_shm_transport(const ShmOptions& options = {});

}  // namespace cenote::transport
