// Two pinned processes, joined by one endpoint each, as a peer's own benchmark would run.
#pragma once

#include <functional>
#include <memory>

#include "runtime/result.h"
#include "transports/transport.h"

namespace cenote::perf {

/// The two processors that a comparison runs on. Errors: not_supported (this process may use only one).
struct Processors {
  int first = 0;
  int second = 1;
  static Result<Processors> choose();
};
Result<void> pin_to(int processor);

/// One of the two processes: its transport, its endpoint, memory of its own and the key of the other's.
struct Side {
  bool first = false;  ///< the process that measures
  transport::Transport& transport;
  transport::Endpoint& endpoint;
  transport::Region& memory;
  transport::RemoteKey peer_key;
};

/// Forks; runs `work` in both processes, each pinned and with its end of a socket between them; returns what
/// the first one's returned. Every wait of `work` should end at a deadline. The child is gone when this
/// returns. Errors: those of `work`, system_error, peer_failed (the child ended badly).
Result<double> in_two_processes(const Processors& processors,
                                const std::function<Result<double>(bool first, int socket)>& work);
/// The same with a transport of `make` in each, connected, and `bytes` of memory for the other.
Result<double> in_two_processes(const Processors& processors,
                                const std::function<Result<std::unique_ptr<transport::Transport>>()>& make,
                                std::size_t bytes, const std::function<Result<double>(Side&)>& work);

}  // namespace cenote::perf
