// Deadline and CancelFlag: every wait takes one of each.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

namespace cenote {

using Clock = std::chrono::steady_clock;

/// A point in monotonic time at which a wait gives up. Cheap to copy.
class Deadline {
 public:
  static Deadline in(Clock::duration span) { return Deadline(Clock::now() + span); }
  static Deadline at(Clock::time_point when) { return Deadline(when); }
  /// For waits that only a cancel ends. Use it where a person is the deadline.
  static Deadline never() { return Deadline(Clock::time_point::max()); }

  [[nodiscard]] bool passed() const { return when_ != Clock::time_point::max() && Clock::now() >= when_; }
  [[nodiscard]] Clock::time_point when() const { return when_; }
  /// Time left, never negative; a year for never().
  [[nodiscard]] Clock::duration left() const {
    if (when_ == Clock::time_point::max()) return std::chrono::hours(24 * 365);
    return std::max(Clock::duration::zero(), when_ - Clock::now());
  }
  /// Milliseconds for poll(2): rounded up, at most `most`.
  [[nodiscard]] int poll_ms(int most = 1'000'000) const {
    auto ms = std::chrono::ceil<std::chrono::milliseconds>(left()).count();
    return static_cast<int>(std::min<decltype(ms)>(ms, most));
  }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}
  Clock::time_point when_;
};

/// Raised by any thread to end waits; never lowered. Waiters look at it at least every 50 ms.
class CancelFlag {
 public:
  void raise() { raised_.store(true, std::memory_order_release); }
  [[nodiscard]] bool raised() const { return raised_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> raised_{false};
};

}  // namespace cenote
