// Silence: for how long a peer that was expected to speak has said nothing. Only time that was watched
// counts: the watcher looks often, and a look after a long pause counts for little, so that a watcher that
// was itself stopped, starved or busy elsewhere does not blame the peer. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>

#include "runtime/deadline.h"

namespace cenote::pool::remote {

class Silence {
 public:
  explicit Silence(Clock::duration limit) : limit_(limit) {}

  /// Look about this often; a single look counts for at most this much.
  [[nodiscard]] Clock::duration step() const {
    return std::max<Clock::duration>(limit_ / 16, Clock::duration(1));
  }
  void look(Clock::time_point now) {
    if (last_ != Clock::time_point{}) silent_ += std::clamp(now - last_, Clock::duration::zero(), step());
    last_ = now;
  }
  void heard() { silent_ = Clock::duration::zero(); }
  [[nodiscard]] bool over() const { return silent_ >= limit_; }
  [[nodiscard]] Clock::duration so_far() const { return silent_; }
  /// "did not answer for 10.0 s"
  [[nodiscard]] std::string text() const {
    char text[64];
    std::snprintf(text, sizeof text, "did not answer for %.1f s",
                  std::chrono::duration<double>(silent_).count());
    return text;
  }

 private:
  Clock::duration limit_;
  Clock::duration silent_{};
  Clock::time_point last_{};
};

}  // namespace cenote::pool::remote
