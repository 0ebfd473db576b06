// Interrupt: SIGINT, SIGTERM and SIGHUP as a cancel flag and a descriptor, for commands that hold something.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "runtime/deadline.h"
#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace cenote::pool::cli {

/// Make it before any other thread: it blocks the signals for the threads that come after. Children made with
/// posix_spawn get them back (see process_set.cpp, cmd_lease.cpp).
class Interrupt {
 public:
  static Result<std::unique_ptr<Interrupt>> create();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// Raised by the first signal.
  [[nodiscard]] const CancelFlag& flag() const { return flag_; }
  /// The signal that came; 0 = none yet.
  [[nodiscard]] int signal() const { return signal_.load(); }
  /// Readable once a signal came; stays so.
  [[nodiscard]] int fd() const { return happened_.get(); }
  /// Waits for a signal; false = the deadline passed.
  [[nodiscard]] bool wait(Deadline deadline) const;
  /// Raises it from inside, as a signal would: for whatever else ends the command.
  void raise();

 private:
  Interrupt(UniqueFd signals, UniqueFd happened, UniqueFd stop);

  CancelFlag flag_;
  std::atomic<int> signal_{0};
  UniqueFd signals_, happened_, stop_;
  std::thread thread_;
};

/// Says on standard error that the signal ended `command`; returns the exit code for it, 128 + signal.
int interrupted(const std::string& command, const Interrupt& interrupt);

}  // namespace cenote::pool::cli
