// Fences: how the worker learns that a stream has come to a point, without a thread that waits for it. A
// fence is a host function in the stream; it sets a flag and wakes the serving thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "cuda/driver.h"
#include "transports/fabric.h"

namespace cenote::pool::remote {

/// Wakes the serving thread out of its sleep. Any thread.
class Waker {
 public:
  explicit Waker(transport::Fabric& fabric) : fabric_(&fabric) {}

  void wake() {
    events_.fetch_add(1);
    if (!asleep_.load()) return;
    const std::lock_guard lock(mutex_);
    if (fabric_ != nullptr) fabric_->interrupt();
  }
  /// How often wake() was called. To sleep without missing one: read it, look at everything, doze(), compare.
  [[nodiscard]] std::uint64_t events() const { return events_.load(); }
  /// Between these two, wake() interrupts.
  void doze() { asleep_.store(true); }
  void rise() { asleep_.store(false); }
  /// From here on wake() does nothing: the fabric may go.
  void detach() {
    const std::lock_guard lock(mutex_);
    fabric_ = nullptr;
  }

 private:
  std::mutex mutex_;
  transport::Fabric* fabric_;
  std::atomic<bool> asleep_{false};
  std::atomic<std::uint64_t> events_{0};
};

struct Fence {
  std::shared_ptr<Waker> waker{};
  std::atomic<bool> fired{false};
  cuda::Stream stream = nullptr;  ///< the driver's
  std::uint32_t context = 0;      ///< the lane's number of it
  std::uint32_t wire_stream = 0;
  std::uint64_t mark = 0;  ///< the lane's count of work when it was placed
  bool failed = false;     ///< the stream will never get there: its context is lost

  [[nodiscard]] bool done() const { return failed || fired.load(); }

  static void fire(void* user) {
    auto* fence = static_cast<Fence*>(user);
    // Once it has fired, the fence may be reused and the worker may be gone: the waker is held by itself.
    const auto waker = fence->waker;
    fence->fired.store(true);
    waker->wake();
  }
};

}  // namespace cenote::pool::remote
