// StreamQueue: one stream. A thread of its own runs what is queued, in order; it starts with the first task,
// stays awake for a moment after the last one, then sleeps in the kernel.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "cuda/emulator/fault_state.h"
#include "cuda/emulator/task.h"

namespace cenote::cuda::emulator {

class StreamQueue;

/// A place in a stream: everything up to its `sequence`-th task.
struct Mark {
  std::shared_ptr<StreamQueue> stream;
  std::uint64_t sequence = 0;
};

struct StreamOptions {
  bool blocking = true;      ///< synchronises with the legacy default stream
  bool adversarial = false;  ///< delays tasks, drawn on `seed`
  std::uint64_t seed = 0;
};

/// Thread-safe, but for join().
class StreamQueue {
 public:
  /// Tasks that may wait in a stream before enqueue() blocks, as launches do in CUDA when the queue is full.
  static constexpr std::size_t depth = 16384;

  StreamQueue(std::shared_ptr<FaultState> faults, StreamOptions options);
  /// join() came first, or nothing was ever queued.
  ~StreamQueue();
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;

  /// Queues `task`, to run once `after` have been reached. Once the context is at fault or cancelled, tasks
  /// count as completed without being run. Returns its sequence; 0 when no thread could be started.
  std::uint64_t enqueue(Task task, std::vector<Mark> after = {});

  /// Sequence of the last task queued, and of the last one completed.
  [[nodiscard]] std::uint64_t queued() const { return queued_.load(std::memory_order_acquire); }
  [[nodiscard]] std::uint64_t completed() const { return completed_.load(std::memory_order_acquire); }
  [[nodiscard]] bool reached(std::uint64_t sequence) const { return completed() >= sequence; }
  [[nodiscard]] bool idle() const { return reached(queued()); }
  [[nodiscard]] bool blocking() const { return options_.blocking; }
  [[nodiscard]] const FaultState& faults() const { return *faults_; }

  /// Returns when `sequence` has been completed, or soon after `cancel` is raised (false).
  bool wait(std::uint64_t sequence, const CancelFlag& cancel);

  /// What is queued still runs; then the thread ends. enqueue() afterwards is refused.
  void close();
  [[nodiscard]] bool closed() const { return closed_.load(std::memory_order_acquire); }
  [[nodiscard]] bool finished() const { return finished_.load(std::memory_order_acquire); }
  /// Waits for the thread's end, after close().
  void join();

 private:
  struct Entry {
    Task task;
    std::vector<Mark> after;
  };

  void serve();
  /// The next batch; false when the stream is closed and empty.
  bool next(std::vector<Entry>& batch);
  void run(Entry& entry);
  void lag();
  void complete();

  const std::shared_ptr<FaultState> faults_;
  const StreamOptions options_;
  std::atomic<std::uint64_t> queued_{0};
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<unsigned> waiters_{0};
  std::atomic<bool> finished_{false};

  std::mutex mutex_;
  std::condition_variable work_;  // the thread sleeps here
  std::condition_variable done_;  // waiters sleep here
  std::vector<Entry> pending_;
  bool asleep_ = false;
  std::atomic<bool> closed_{false};
  std::thread thread_;
  std::uint64_t dice_;
};

}  // namespace cenote::cuda::emulator
