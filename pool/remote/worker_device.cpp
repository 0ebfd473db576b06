// How a lane takes its device and gives it back: the primary context, and in it what the worker itself needs
// (pinned memory, a control stream, words that streams wait for).
#include <algorithm>
#include <utility>

#include "pool/remote/worker_lane_inl.h"

namespace cenote::pool::remote {

using cuda::Status;

namespace {
constexpr std::size_t staging_buffers = 16;  // of ring_bulk_bytes: downloads in flight
constexpr std::size_t word_count = 1024;     // words that streams can wait for at the same time
}  // namespace

Result<void> WorkerLane::open() {
  auto& driver = shared_.driver;
  cuda::Context primary = nullptr;
  auto status = driver.primary_ctx_retain(&primary, device_);
  if (status == Status::success) {
    contexts_[0] = primary;
    status = enter(0);
  }
  std::size_t granularity = 0, total = 0;
  if (status == Status::success) status = driver.mem_get_allocation_granularity(&granularity, device_);
  if (status == Status::success) status = driver.device_total_mem(&total, device_);
  if (status == Status::success) status = open_housekeeping();
  if (status != Status::success) {
    return fail(Error{ErrorCode::driver_error, "open device",
                      std::string(cuda::status_name(status)) + " " + detail_of(),
                      "cuda:" + std::to_string(device_), "", "", static_cast<int>(status)});
  }
  granularity_ = granularity;
  total_ = std::min<std::uint64_t>(total, limit_);
  return {};
}

Status WorkerLane::open_housekeeping() {
  auto& driver = shared_.driver;
  if (!heads_) heads_.reset(new std::byte[ring_slots * ring_head_bytes]);
  if (!staging_) staging_.reset(new std::byte[staging_buffers * ring_bulk_bytes]);
  // Pinned, copies from and to here do not hold up the serving thread. Where pinning is refused they do, no
  // more.
  pinned_.clear();
  pin(heads_.get(), ring_slots * ring_head_bytes);
  pin(staging_.get(), staging_buffers * ring_bulk_bytes);
  if (!ring_.empty()) pin(ring_.data(), ring_.size());
  auto status = Status::success;
  if (control_ == nullptr) status = driver.stream_create(&control_, cuda::stream_non_blocking);
  if (status == Status::success && words_ == 0) {
    status = driver.mem_alloc(&words_, word_count * sizeof(std::uint32_t));
    if (status == Status::success)
      status = driver.memset_d8_async(words_, 0, word_count * sizeof(std::uint32_t), control_);
    // Another stream's wait must not see what the memory held before.
    if (status == Status::success) status = driver.stream_synchronize(control_);
    word_values_.assign(word_count, 0);
    free_words_.clear();
    for (std::size_t i = word_count; i-- > 0;) free_words_.push_back(i);
  }
  if (free_staging_.empty() && sent_.empty()) {
    for (std::size_t i = staging_buffers; i-- > 0;) free_staging_.push_back(i);
  }
  return status;
}

void WorkerLane::pin(void* memory, std::size_t bytes) {
  if (shared_.driver.mem_host_register(memory, bytes, 0) == Status::success) pinned_.push_back(memory);
}

void WorkerLane::close_housekeeping() {
  auto& driver = shared_.driver;
  if (enter(0) != Status::success) return;
  for (auto* memory : pinned_) driver.mem_host_unregister(memory);
  pinned_.clear();
  if (words_ != 0) driver.mem_free(words_);
  if (control_ != nullptr) driver.stream_destroy(control_);
  words_ = 0;
  control_ = nullptr;
}

std::optional<std::size_t> WorkerLane::take_word() {
  if (free_words_.empty()) return std::nullopt;
  const auto word = free_words_.back();
  free_words_.pop_back();
  ++word_values_[word];
  return word;
}

// The words' memory is about to go. Streams of other contexts that wait for one are let go first, and nothing
// that was in flight may give a word back to, or write it in, the memory that comes next.
void WorkerLane::forget_words() {
  auto& driver = shared_.driver;
  std::vector<Fence*> fences;
  const auto release = [&](std::uint64_t address, std::uint32_t value) {
    driver.stream_write_value32(control_, address, value, 0);
  };
  if (contexts_.size() > 1 && enter(0) == Status::success) {
    for (const auto& [id, word] : host_calls_) release(words_ + 4 * word, word_values_[word]);
    for (const auto& wait : host_waits_) release(words_ + 4 * wait.word, word_values_[wait.word]);
    for (const auto& waiting : collectives_) release(waiting.operation.word, waiting.operation.value);
    driver.stream_synchronize(control_);  // holds nothing but such writes
  }
  fences.reserve(host_waits_.size() + collectives_.size() + words_in_use_.size());
  for (const auto& wait : host_waits_) fences.push_back(wait.fence);
  for (const auto& waiting : collectives_) fences.push_back(waiting.fence);
  for (const auto& use : words_in_use_) fences.push_back(use.first);
  host_calls_.clear();
  host_waits_.clear();
  collectives_.clear();
  words_in_use_.clear();
  retire_all(fences);
}

bool WorkerLane::settle(Deadline until) {
  comms_.clear();  // their threads release what streams wait for
  for (auto& [id, word] : host_calls_)
    shared_.driver.stream_write_value32(control_, words_ + 4 * word, word_values_[word], 0);
  // Host functions that have not been announced yet release their word here, too.
  for (auto& wait : host_waits_)
    shared_.driver.stream_write_value32(control_, words_ + 4 * wait.word, word_values_[wait.word], 0);
  for (auto& waiting : collectives_)
    shared_.driver.stream_write_value32(control_, waiting.operation.word, waiting.operation.value, 0);
  fence_all(true);
  const auto pending = [this] {
    poll_fences();
    return std::any_of(fences_live_.begin(), fences_live_.end(), [](const Fence* f) { return !f->done(); });
  };
  while (pending()) {
    if (until.passed()) return false;
    shared_.fabric.wait(Deadline::in(std::chrono::milliseconds(1)), nullptr, "the device to finish");
  }
  settled_ = true;
  return true;
}

// A stream that never comes to its end (it waits for a word that nobody will write, a kernel spins) ends with
// its context; so do the host functions in it, which would call back into this lane. Freeing its parts one by
// one would wait for it.
void WorkerLane::end_contexts() {
  auto& driver = shared_.driver;
  if (contexts_.empty()) return;
  for (const auto& [number, context] : contexts_) {
    if (settled_) destroy_context(number);
    if (number == 0) continue;
    driver.ctx_destroy(context);
    shared_.current = nullptr;
  }
  if (settled_) close_housekeeping();
  driver.primary_ctx_release(device_);
  contexts_.clear();
  shared_.current = nullptr;
}

void WorkerLane::give_back() {
  auto& driver = shared_.driver;
  for (const auto& [address, mapping] : std::exchange(mappings_, {})) {
    driver.mem_unmap(address, mapping.bytes);
    if (mapping.owned) driver.mem_release(mapping.handle);
  }
  for (const auto& [number, physical] : std::exchange(physical_, {})) driver.mem_release(physical->handle);
  if (range_bytes_ != 0) driver.mem_address_free(range_, range_bytes_);
  range_ = range_bytes_ = 0;
  used_ = 0;
}

}  // namespace cenote::pool::remote
