// WorkerProcesses: the real WorkerHost. Each worker is a process of its own (`cenote worker`), told what to
// do over a socket pair, killed with its agent (PR_SET_PDEATHSIG), and reaped before anybody hears of its
// end.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "pool/agent/cages.h"
#include "pool/agent/worker_host.h"
#include "runtime/deadline.h"
#include "runtime/result.h"

namespace cenote::pool::agent {

struct WorkerProcessOptions {
  std::string executable = "/proc/self/exe";
  std::vector<std::string> arguments{"worker"};
  /// Between asking a worker to end and killing it.
  Clock::duration grace = std::chrono::milliseconds(500);
  /// Workers report their load several times a second; one that says nothing for so long is stopped or hung,
  /// and is killed.
  Clock::duration silence = std::chrono::seconds(20);
  Cages cages{};
};

/// All processes are made by one thread that lives as long as this object: the death signal of a child fires
/// when the thread that made it ends, not the process.
class WorkerProcesses : public WorkerHost {
 public:
  static Result<std::unique_ptr<WorkerProcesses>> create(WorkerProcessOptions options);
  /// Before the first start().
  virtual void on_exit(OnExit told) = 0;
  /// Of the workers that live, for errors and tests.
  [[nodiscard]] virtual std::vector<pid_t> pids() const = 0;
};

}  // namespace cenote::pool::agent
