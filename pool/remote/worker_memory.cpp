// A lane's device: contexts, addresses, memory. Everything is charged against the lease's share before the
// driver is asked.
#include <algorithm>
#include <utility>

#include "pool/remote/device_info.h"
#include "pool/remote/worker_lane_inl.h"

namespace cenote::pool::remote {

using cuda::Status;

namespace {
constexpr std::size_t staging_buffers = 16;  // of ring_bulk_bytes: downloads in flight
constexpr std::size_t word_count = 1024;     // words that streams can wait for at the same time
constexpr std::size_t most_contexts = 64;
constexpr std::size_t most_physical = 1U << 16;
}  // namespace

Status WorkerLane::enter(std::uint32_t context) {
  const auto found = contexts_.find(context);
  if (found == contexts_.end()) return Status::invalid_context;
  if (shared_.current == found->second) return Status::success;
  const auto status = shared_.driver.ctx_set_current(found->second);
  shared_.current = status == Status::success ? found->second : nullptr;
  return status;
}

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

void WorkerLane::destroy_context(std::uint32_t number) {
  auto& driver = shared_.driver;
  if (enter(number) != Status::success) return;
  for (std::uint32_t i = 0; i < modules_.size(); ++i) {
    if (!modules_[i].live || modules_[i].context != number) continue;
    driver.module_unload(modules_[i].handle);
    forget_module(i);
  }
  for (auto& event : events_) {
    if (event.live && event.context == number && event.handle != nullptr) driver.event_destroy(event.handle);
    if (event.live && event.context == number) event = {};
  }
  for (auto& stream : streams_) {
    if (stream.live && stream.context == number && stream.handle != nullptr)
      driver.stream_destroy(stream.handle);
    if (stream.live && stream.context == number) stream = {};
  }
  std::erase_if(doomed_streams_, [&](const auto& doomed) {
    if (doomed.second == number) driver.stream_destroy(doomed.first);
    return doomed.second == number;
  });
}

// The primary context is the lane's home: it is released and taken again, so that the client finds it as new.
void WorkerLane::forget_context(std::uint32_t number) {
  for (std::uint32_t i = 0; i < modules_.size(); ++i) {
    if (modules_[i].live && modules_[i].context == number) forget_module(i);
  }
  for (auto& event : events_) {
    if (event.context == number) event = {};
  }
  for (auto& stream : streams_) {
    if (stream.context == number) stream = {};
  }
  for (auto& waiter : waiters_) {
    if (waiter.context == number) waiter.event = nullptr;
  }
  std::erase_if(doomed_streams_, [&](const auto& doomed) { return doomed.second == number; });
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
  for (const auto& wait : host_waits_) fences.push_back(wait.fence);
  for (const auto& waiting : collectives_) fences.push_back(waiting.fence);
  for (const auto& use : words_in_use_) fences.push_back(use.first);
  host_calls_.clear();
  host_waits_.clear();
  collectives_.clear();
  words_in_use_.clear();
  retire_all(fences);
}

Result<void> WorkerLane::on(const CtxDestroy& c) {
  if (!contexts_.contains(c.context))
    return answer_text(c.request, Status::invalid_context, 0, 0, "no such context");
  std::erase_if(comms_,
                [&](const auto& entry) { return c.context == 0 || entry.second.context == c.context; });
  forget_context(c.context);
  auto& driver = shared_.driver;
  auto status = Status::success;
  if (c.context != 0) {
    status = driver.ctx_destroy(contexts_[c.context]);
    contexts_.erase(c.context);
    shared_.current = nullptr;
  } else {
    // Words and control stream go with the context. Freeing them one by one would wait for its kernels.
    forget_words();
    driver.primary_ctx_release(device_);
    shared_.current = nullptr;
    words_ = 0;
    control_ = nullptr;
    status = driver.primary_ctx_retain(&contexts_[0], device_);
    if (status == Status::success) status = enter(0);
    for (auto* memory : pinned_) driver.mem_host_unregister(memory);
    if (status == Status::success) status = open_housekeeping();
  }
  // The context's streams are gone, whatever they were waiting for: their fences fire no more.
  for (auto* fence : fences_live_) {
    if (fence->context == c.context && !fence->fired.load()) fence->failed = true;
  }
  // What a lost context would not let go of goes now.
  for (const auto address : std::exchange(stale_, {})) unmap_memory(address, mappings_[address].bytes);
  if (context_ == c.context) context_ = 0;
  return answer(c.request, status, free_memory(), 0);
}

Result<void> WorkerLane::on(const CtxCreate& c) {
  if (contexts_.contains(c.context) || contexts_.size() >= most_contexts)
    return answer_text(c.request, Status::invalid_value, 0, 0, "context number in use, or too many");
  cuda::Context made = nullptr;
  if (const auto status = enter(0); status != Status::success) return answer(c.request, status);
  const auto status = shared_.driver.ctx_create(&made, c.flags, device_);
  shared_.current = nullptr;
  if (status == Status::success) {
    contexts_[c.context] = made;
    cuda::Context popped = nullptr;
    shared_.driver.ctx_pop_current(&popped);
  }
  return answer(c.request, status);
}

Result<void> WorkerLane::on(const CtxSelect& c) {
  context_ = c.context;
  return {};
}

Result<void> WorkerLane::on(const CtxPeer& c) {
  if (c.lane >= shared_.lanes.size())
    return answer_text(c.request, Status::invalid_context, 0, 0, "no such lane");
  auto& other = *shared_.lanes[c.lane];
  const auto peer = other.contexts_.find(c.context);
  if (peer == other.contexts_.end())
    return answer_text(c.request, Status::invalid_context, 0, 0, "no such context");
  auto status = enter(context_);
  if (status == Status::success) status = shared_.driver.ctx_enable_peer_access(peer->second, 0);
  // What cuMemAlloc gives is reachable by that alone; mappings of our own have to be opened one by one.
  for (const auto& [address, mapping] : other.mappings_) {
    if (status == Status::success) status = shared_.driver.mem_set_access(address, mapping.bytes, device_);
  }
  if (status == Status::success) other.peers_.push_back(device_);
  return answer(c.request, status);
}

Result<void> WorkerLane::on(const DeviceInfo& c) {
  auto& driver = shared_.driver;
  DeviceDescription device;
  char name[256] = {};
  auto status = driver.device_get_name(name, sizeof name, device_);
  if (status == Status::success) status = driver.device_get_uuid(&device.uuid, device_);
  if (status == Status::success) status = driver.driver_get_version(&device.driver_version);
  if (status != Status::success) return answer(c.request, status);
  device.name = name;
  device.total_memory = total_;
  device.granularity = granularity_;
  for (const auto attribute : device_attributes) {
    int value = 0;
    if (driver.device_get_attribute(&value, attribute, device_) == Status::success)
      device.attributes.emplace_back(static_cast<int>(attribute), value);
  }
  for (const auto& lane : shared_.lanes) {
    int can = 0;
    if (lane.get() != this) driver.device_can_access_peer(&can, device_, lane->device_);
    device.peers.push_back(static_cast<std::uint8_t>(can));
  }
  return answer_blob(c.request, pack(device));
}

Result<void> WorkerLane::on(const RangeReserve& c) {
  auto& driver = shared_.driver;
  if (!mappings_.empty() || c.bytes == 0 || c.bytes % granularity_ != 0 || c.bytes > (1ULL << 46))
    return answer_text(c.request, Status::invalid_value, 0, 0,
                       "the range cannot be changed, or its size is wrong");
  if (const auto status = enter(0); status != Status::success) return answer(c.request, status);
  if (range_bytes_ != 0) driver.mem_address_free(range_, range_bytes_);
  range_ = range_bytes_ = 0;
  cuda::DevicePtr got = 0;
  const auto status = driver.mem_address_reserve(&got, c.bytes, granularity_, c.hint);
  if (status == Status::success) {
    range_ = got;
    range_bytes_ = c.bytes;
  }
  return answer(c.request, status, got, 0);
}

Result<void> WorkerLane::on(const LaneWait& c) {
  if (c.lane >= shared_.lanes.size()) return fail(ErrorCode::protocol_error, "wait for lane", "no such lane");
  blocked_ = [other = shared_.lanes[c.lane].get(), c] { return other->commands_done_ >= c.commands; };
  return {};
}

Result<void> WorkerLane::on(const Goodbye&) {
  shared_.goodbye = true;
  return {};
}

// ---- memory

bool WorkerLane::in_range(std::uint64_t address, std::uint64_t bytes) const {
  return bytes != 0 && address >= range_ && bytes <= range_bytes_ &&
         address - range_ <= range_bytes_ - bytes && address % granularity_ == 0 && bytes % granularity_ == 0;
}

bool WorkerLane::is_free(std::uint64_t address, std::uint64_t bytes) const {
  const auto next = mappings_.lower_bound(address + bytes);
  if (next == mappings_.begin()) return true;
  const auto& [base, mapping] = *std::prev(next);
  return base + mapping.bytes <= address;
}

bool WorkerLane::covers(std::uint64_t address, std::uint64_t bytes) const {
  if (bytes > UINT64_MAX - address) return false;
  if (const auto after = globals_.upper_bound(address); after != globals_.begin()) {
    const auto& [base, size] = *std::prev(after);
    if (address - base < size && bytes <= size - (address - base)) return true;
  }
  // Mappings that stand side by side count as one.
  for (auto left = bytes; left != 0;) {
    const auto after = mappings_.upper_bound(address);
    if (after == mappings_.begin()) return false;
    const auto& [base, mapping] = *std::prev(after);
    if (address - base >= mapping.bytes) return false;
    const auto here = std::min(left, mapping.bytes - (address - base));
    address += here;
    left -= here;
  }
  return true;
}

bool WorkerLane::accessible(std::uint64_t address, std::uint64_t bytes) const {
  return std::any_of(shared_.lanes.begin(), shared_.lanes.end(),
                     [&](const auto& lane) { return lane->covers(address, bytes); });
}

std::uint64_t WorkerLane::free_on_device() {
  std::size_t free = 0, total = 0;
  if (enter(0) != Status::success || shared_.driver.mem_get_info(&free, &total) != Status::success) return 0;
  return free;
}

std::uint64_t WorkerLane::free_memory() {
  const auto used = used_.load();
  // In whole granules: so much can really be mapped.
  return std::min<std::uint64_t>(free_on_device(), total_ > used ? total_ - used : 0) / granularity_ *
         granularity_;
}

Status WorkerLane::map_memory(std::uint64_t address, std::uint64_t bytes) {
  auto& driver = shared_.driver;
  if (!in_range(address, bytes) || !is_free(address, bytes)) return Status::invalid_value;
  if (bytes > total_ || used_ > total_ - bytes) return Status::out_of_memory;
  auto status = enter(context_);
  if (status != Status::success) return status;
  cuda::AllocationHandle handle = 0;
  status = driver.mem_create(&handle, bytes, device_);
  if (status != Status::success) return status;
  status = driver.mem_map(address, bytes, 0, handle);
  if (status == Status::success) {
    status = driver.mem_set_access(address, bytes, device_);
    if (status != Status::success) driver.mem_unmap(address, bytes);
  }
  if (status != Status::success) {
    driver.mem_release(handle);
    return status;
  }
  for (const auto peer : peers_) driver.mem_set_access(address, bytes, peer);
  mappings_[address] = {bytes, handle, true, {}};
  used_ += bytes;
  return Status::success;
}

void WorkerLane::unmap_memory(std::uint64_t address, std::uint64_t bytes) {
  const auto found = mappings_.find(address);
  if (found == mappings_.end() || !found->second.owned || found->second.bytes != bytes) return;
  enter(context_);
  if (shared_.driver.mem_unmap(address, bytes) != Status::success) {
    stale_.push_back(address);
    return;
  }
  shared_.driver.mem_release(found->second.handle);
  used_ -= bytes;
  mappings_.erase(found);
}

Result<void> WorkerLane::on(const MemInfo& c) {
  return answer(c.request, Status::success, free_memory(), total_);
}

Result<void> WorkerLane::on(const MemAlloc& c) {
  const auto status = map_memory(c.address, c.bytes);
  if (c.request != 0) return answer(c.request, status, status == Status::success ? free_memory() : 0, 0);
  return check(status);
}

Result<void> WorkerLane::on(const MemFree& c) {
  const auto found = mappings_.find(c.address);
  if (found == mappings_.end() || !found->second.owned || found->second.bytes != c.bytes)
    return tell_error(context_, Status::invalid_value, "freed memory that is not mapped");
  drain_then([this, c]() -> Result<void> {
    unmap_memory(c.address, c.bytes);
    return {};
  });
  return {};
}

Result<void> WorkerLane::on(const Drain&) {
  drain_then({});
  return {};
}

Result<void> WorkerLane::on(const VmmCreate& c) {
  if (physical_.contains(c.handle) || physical_.size() >= most_physical)
    return answer_text(c.request, Status::invalid_value, 0, 0, "handle in use, or too many");
  if (c.bytes == 0 || c.bytes % granularity_ != 0)
    return answer_text(c.request, Status::invalid_value, 0, 0, "no multiple of the granularity");
  if (c.bytes > total_ || used_ > total_ - c.bytes)
    return answer_text(c.request, Status::out_of_memory, 0, 0, "beyond the lease's memory");
  auto status = enter(0);
  cuda::AllocationHandle handle = 0;
  if (status == Status::success) status = shared_.driver.mem_create(&handle, c.bytes, device_);
  if (status == Status::success) {
    physical_[c.handle] = std::make_shared<const Physical>(Physical{handle, c.bytes});
    used_ += c.bytes;
  }
  return answer(c.request, status, free_memory(), 0);
}

void WorkerLane::let_go(std::shared_ptr<const Physical>& physical) {
  if (physical.use_count() == 1) used_ -= physical->bytes;
  physical.reset();
}

Result<void> WorkerLane::on(const VmmRelease& c) {
  const auto found = physical_.find(c.handle);
  if (found == physical_.end()) return answer_text(c.request, Status::invalid_value, 0, 0, "no such handle");
  // As in CUDA the memory lives on while it is mapped: it stays charged until its last unmapping.
  auto physical = std::move(found->second);
  physical_.erase(found);
  const auto status = shared_.driver.mem_release(physical->handle);
  let_go(physical);
  return answer(c.request, status);
}

Result<void> WorkerLane::on(const VmmMap& c) {
  const auto found = physical_.find(c.handle);
  if (found == physical_.end() || !in_range(c.address, c.bytes) || c.offset > found->second->bytes ||
      c.bytes > found->second->bytes - c.offset)
    return answer_text(c.request, Status::invalid_value, 0, 0, "no such memory, or it is smaller");
  if (!is_free(c.address, c.bytes))
    return answer_text(c.request, Status::already_mapped, 0, 0, "something is mapped there");
  const auto status = shared_.driver.mem_map(c.address, c.bytes, c.offset, found->second->handle);
  if (status == Status::success) mappings_[c.address] = {c.bytes, 0, false, found->second};
  return answer(c.request, status);
}

Result<void> WorkerLane::on(const VmmUnmap& c) {
  const auto found = mappings_.find(c.address);
  if (found == mappings_.end() || found->second.owned || found->second.bytes != c.bytes)
    return answer_text(c.request, Status::invalid_value, 0, 0, "nothing of that size is mapped there");
  drain_then([this, c]() -> Result<void> {
    const auto status = shared_.driver.mem_unmap(c.address, c.bytes);
    if (status == Status::success) {
      let_go(mappings_[c.address].physical);
      mappings_.erase(c.address);
    }
    return answer(c.request, status);
  });
  return {};
}

Result<void> WorkerLane::on(const VmmAccess& c) {
  if (c.lane >= shared_.lanes.size() || !in_range(c.address, c.bytes) || !covers(c.address, c.bytes))
    return answer_text(c.request, Status::invalid_value, 0, 0, "nothing is mapped there");
  const auto status = shared_.driver.mem_set_access(c.address, c.bytes, shared_.lanes[c.lane]->device_);
  return answer(c.request, status);
}

Result<void> WorkerLane::on(const FlushWrites& c) {
  auto status = enter(context_);
  if (status == Status::success) status = shared_.driver.flush_gpu_direct_rdma_writes();
  return answer(c.request, status);
}

bool WorkerLane::close(Clock::duration patience) {
  const auto until = Deadline::in(patience);
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
  while (!mappings_.empty()) {
    const auto at = mappings_.begin();
    enter(0);
    shared_.driver.mem_unmap(at->first, at->second.bytes);
    if (at->second.owned) shared_.driver.mem_release(at->second.handle);
    mappings_.erase(at);
  }
  for (const auto& [number, physical] : physical_) shared_.driver.mem_release(physical->handle);
  physical_.clear();
  if (range_bytes_ != 0) shared_.driver.mem_address_free(range_, range_bytes_);
  for (const auto& [number, context] : contexts_) {
    destroy_context(number);
    if (number == 0) continue;
    shared_.driver.ctx_destroy(context);
    shared_.current = nullptr;
  }
  close_housekeeping();
  if (!contexts_.empty()) shared_.driver.primary_ctx_release(device_);
  contexts_.clear();
  shared_.current = nullptr;
  used_ = 0;
  return true;
}

}  // namespace cenote::pool::remote
