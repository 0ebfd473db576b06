#include "cuda/emulator/stream.h"

#include <chrono>
#include <system_error>
#include <utility>

namespace cenote::cuda::emulator {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// A thread that has just run dry looks this often before it sleeps: waking it costs more than a null launch.
constexpr int kAwakeRounds = 200;
// Somebody who waits gives up the processor this often before it sleeps.
constexpr int kYieldRounds = 20;
// Waits look at their cancel flag at least this often.
constexpr milliseconds kCancelPeriod{20};

}  // namespace

StreamQueue::StreamQueue(std::shared_ptr<FaultState> faults, StreamOptions options)
    : faults_(std::move(faults)), options_(options), dice_(options.seed * 2 + 1) {}

StreamQueue::~StreamQueue() { join(); }

std::uint64_t StreamQueue::enqueue(Task task, std::vector<Mark> after) {
  std::unique_lock lock(mutex_);
  while (pending_.size() >= depth && !faults_->cancel.raised()) done_.wait_for(lock, kCancelPeriod);
  if (closed_.load(std::memory_order_relaxed)) return 0;
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { serve(); });
    } catch (const std::system_error&) {
      return 0;
    }
  }
  pending_.push_back({std::move(task), std::move(after)});
  const auto sequence = queued_.load(std::memory_order_relaxed) + 1;
  queued_.store(sequence, std::memory_order_release);
  if (asleep_) {
    asleep_ = false;
    work_.notify_one();
  }
  return sequence;
}

bool StreamQueue::wait(std::uint64_t sequence, const CancelFlag& cancel) {
  for (int round = 0; round < kYieldRounds; ++round) {
    if (reached(sequence)) return true;
    std::this_thread::yield();
  }
  std::unique_lock lock(mutex_);
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  while (completed_.load(std::memory_order_seq_cst) < sequence && !cancel.raised())
    done_.wait_for(lock, kCancelPeriod);
  waiters_.fetch_sub(1, std::memory_order_seq_cst);
  return reached(sequence);
}

void StreamQueue::close() {
  std::lock_guard lock(mutex_);
  closed_.store(true, std::memory_order_release);
  if (!thread_.joinable()) finished_.store(true, std::memory_order_release);
  asleep_ = false;
  work_.notify_one();
}

void StreamQueue::join() {
  if (thread_.joinable()) thread_.join();
}

void StreamQueue::serve() {
  std::vector<Entry> batch;
  while (next(batch)) {
    for (auto& entry : batch) {
      run(entry);
      complete();
    }
    batch.clear();
  }
  finished_.store(true, std::memory_order_release);
}

bool StreamQueue::next(std::vector<Entry>& batch) {
  for (int round = 0; round < kAwakeRounds; ++round) {
    if (!idle() || closed_.load(std::memory_order_acquire)) break;
    std::this_thread::yield();
  }
  std::unique_lock lock(mutex_);
  while (pending_.empty()) {
    if (closed_.load(std::memory_order_relaxed)) return false;
    asleep_ = true;
    work_.wait(lock);
    asleep_ = false;
  }
  const bool was_full = pending_.size() >= depth;
  batch.swap(pending_);
  if (was_full) done_.notify_all();
  return true;
}

void StreamQueue::run(Entry& entry) {
  for (const auto& mark : entry.after) mark.stream->wait(mark.sequence, faults_->cancel);
  if (options_.adversarial) lag();
  if (faults_->cancel.raised() || faults_->status() != Status::success) return;
  entry.task();
}

// Half of the tasks run at once; the others let the rest of the process go first, for up to 300 us.
void StreamQueue::lag() {
  dice_ = dice_ * 6364136223846793005u + 1442695040888963407u;
  const auto draw = dice_ >> 33;
  if (draw % 2 == 0) return;
  std::this_thread::sleep_for(microseconds(draw / 2 % 300));
}

void StreamQueue::complete() {
  completed_.fetch_add(1, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) == 0) return;
  std::lock_guard lock(mutex_);
  done_.notify_all();
}

}  // namespace cenote::cuda::emulator
