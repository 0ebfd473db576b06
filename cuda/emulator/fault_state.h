// FaultState: what ends a context early. A fault (illegal address and its kin) is sticky, as in CUDA; the
// cancel flag is raised when the context is destroyed. Shared by a context, its streams and the work in them.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "cuda/driver.h"
#include "runtime/deadline.h"

namespace cenote::cuda::emulator {

/// Thread-safe.
class FaultState {
 public:
  /// Only the first fault counts.
  void raise(Status status, std::string detail) {
    std::lock_guard lock(mutex_);
    if (status_.load(std::memory_order_relaxed) != Status::success) return;
    detail_ = std::move(detail);
    status_.store(status, std::memory_order_release);
  }
  [[nodiscard]] Status status() const { return status_.load(std::memory_order_acquire); }
  [[nodiscard]] std::string detail() const {
    std::lock_guard lock(mutex_);
    return detail_;
  }

  /// Work that is in flight ends soon, work that is queued is dropped.
  CancelFlag cancel;

 private:
  std::atomic<Status> status_{Status::success};
  mutable std::mutex mutex_;
  std::string detail_;
};

}  // namespace cenote::cuda::emulator
