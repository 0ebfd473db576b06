// EventState: one event, and what its last record stands for.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "cuda/driver.h"
#include "cuda/emulator/stream.h"

namespace cenote::cuda::emulator {

/// One event_record: done when `mark` has been reached. `time` is written by the stream before that.
struct Record {
  Mark mark;
  std::atomic<std::int64_t> time_ns{0};
  void stamp() {
    time_ns.store(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(),
        std::memory_order_relaxed);
  }
  [[nodiscard]] bool done() const { return mark.stream->reached(mark.sequence); }
};

/// Thread-safe.
class EventState {
 public:
  EventState(unsigned flags, std::uint64_t context) : flags_(flags), context_(context) {}
  [[nodiscard]] bool timed() const { return (flags_ & event_disable_timing) == 0; }
  [[nodiscard]] std::uint64_t context() const { return context_; }
  /// nullptr before the first record.
  [[nodiscard]] std::shared_ptr<const Record> last() const {
    std::lock_guard lock(mutex_);
    return record_;
  }
  void set(std::shared_ptr<const Record> record) {
    std::lock_guard lock(mutex_);
    record_ = std::move(record);
  }

 private:
  const unsigned flags_;
  const std::uint64_t context_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Record> record_;
};

}  // namespace cenote::cuda::emulator
