// ChildProcess: a program started and, whatever happens, ended and reaped.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/deadline.h"
#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace cenote::pool::cli {

struct ChildOptions {
  std::vector<std::string> command;                  ///< program (looked up in PATH) and arguments
  std::map<std::string, std::string> environment{};  ///< added to that of this process
  std::map<std::string, std::string>
      path_front{};       ///< LD_LIBRARY_PATH and the like: a folder put before the rest
  std::string without{};  ///< variables whose names begin so are not handed on; "" = none
  bool own_group = true;  ///< a Ctrl-C at the terminal does not reach it
  int output = -1;        ///< its standard output; -1 = this process's
  int error = -1;         ///< its standard error; -1 = this process's
  int pass = -1;          ///< a descriptor that it finds as number 3; -1 = none
};

/// Movable; not thread-safe. The destructor kills (SIGKILL) and reaps what still runs.
class ChildProcess {
 public:
  /// Errors: not_found (no such program), system_error.
  static Result<ChildProcess> start(const ChildOptions& options);
  ChildProcess() = default;
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Readable once the process has ended.
  [[nodiscard]] int fd() const { return pidfd_.get(); }
  [[nodiscard]] bool running();
  void signal(int number) const;
  /// The wait status (waitpid), or nullopt when it still runs at the deadline.
  std::optional<int> wait(Deadline deadline);
  /// SIGTERM, then after `grace` SIGKILL; reaps it.
  void end(Clock::duration grace);

  /// A shell's way to say how it ended: the exit code, or 128 + signal.
  static int exit_code(int status);

 private:
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  std::optional<int> status_;
};

/// Processes whose parent is `parent`, by /proc; none for a number that is no process's.
std::vector<pid_t> children_of(pid_t parent);
/// Whether this process, of anybody, still runs: one that is dead and not yet reaped does not.
bool is_running(pid_t pid);

}  // namespace cenote::pool::cli
