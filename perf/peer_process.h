// A program that is measured, ours or somebody else's: started with its output in pipes, awaited with a
// deadline, gone when its object goes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/deadline.h"
#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace cenote::perf {

class PeerProcess {
 public:
  struct Options {
    std::vector<std::string> command;           ///< the first is the program's path
    int processor = -1;                         ///< it is pinned to; -1: to none
    std::vector<std::string> environment = {};  ///< NAME=VALUE, beside PATH
  };
  /// Errors: system_error.
  static Result<PeerProcess> start(const Options& options);
  PeerProcess(PeerProcess&& other) noexcept;
  PeerProcess& operator=(PeerProcess&&) = delete;
  PeerProcess(const PeerProcess&) = delete;
  ~PeerProcess();

  /// All it prints on standard output, until it ends. Errors: deadline_exceeded; peer_failed (it ended with
  /// another exit status than 0), with the end of what it said on standard error.
  Result<std::string> finish(Deadline deadline);
  [[nodiscard]] bool ended() const;

 private:
  PeerProcess() = default;
  pid_t pid_ = -1;
  std::string name_;
  UniqueFd output_, error_;
};

/// A TCP port that nobody listens on at the moment. Errors: system_error.
Result<std::uint16_t> free_port();
/// Until somebody listens there; without connecting, for a server would take that for its client. Errors:
/// deadline_exceeded, peer_failed (`server` ended).
Result<void> await_listener(std::uint16_t port, const PeerProcess& server, Deadline deadline);

}  // namespace cenote::perf
