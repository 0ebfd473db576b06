// CallGate: how one thread ends the calls to a peer that another thread makes, and its pauses between them.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>

#include "runtime/deadline.h"

namespace cenote::pool {

/// Thread-safe; for one call at a time. Once shut it stays so.
class CallGate {
 public:
  /// A call in flight, from its constructor to its destructor; false = the gate is shut, do not begin it.
  class Call {
   public:
    /// `end` ends the call from another thread, soon and without waiting. It is called at most once, never
    /// after the destructor, and must not use the gate.
    Call(CallGate& gate, std::function<void()> end);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    explicit operator bool() const { return let_in_; }

   private:
    CallGate& gate_;
    bool let_in_ = false;
  };

  /// Ends the call in flight, refuses every later one, and ends the pauses.
  void shut();
  [[nodiscard]] bool is_shut() const;
  /// False = the gate was shut meanwhile.
  bool sleep(Clock::duration span);
  /// The same, and false once `cancel` (may be null) is raised.
  bool sleep(Clock::duration span, const CancelFlag* cancel);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> end_;  ///< of the call in flight
  bool shut_ = false;
};

}  // namespace cenote::pool
