// A line about a run that takes long, on standard error: rewritten each second on a terminal, a plain one
// every ten seconds elsewhere. Runs that are short have none.
#pragma once

#include <string>

#include "perf/tools/plan.h"
#include "runtime/deadline.h"

namespace cenote::perf {

/// "65536 bytes: 1200 of 5000" or "65536 bytes: 3 of 10 s, 1200 messages".
std::string progress_text(const Plan& plan, std::uint64_t done, Clock::duration since);

class ProgressLine {
 public:
  /// `fd`: where it is written.
  explicit ProgressLine(int fd);
  void begin();
  void show(const Plan& plan, std::uint64_t done, Clock::time_point now);
  /// Takes the line off a terminal, before something else is printed there.
  void end();

 private:
  const int fd_;
  const bool terminal_;
  bool shown_ = false;
  Clock::time_point began_, due_;
};

}  // namespace cenote::perf
