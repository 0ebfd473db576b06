// A lane's addresses and memory. Everything is charged against the lease's share before the driver is asked.
#include <algorithm>
#include <utility>

#include "pool/remote/worker_lane_inl.h"

namespace cenote::pool::remote {

using cuda::Status;

namespace {
constexpr std::size_t most_physical = 1U << 16;
}  // namespace

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

}  // namespace cenote::pool::remote
