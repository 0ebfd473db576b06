// Virtual memory management: reserved ranges, memory without an address, and one mapped into the other.
#include <sys/mman.h>

#include <bit>
#include <utility>
#include <vector>

#include "cuda/emulator/driver_state.h"

namespace cenote::cuda::emulator {
namespace {

constexpr std::size_t kGranularity = DeviceHeap::granularity;

bool granular(std::uint64_t value) { return value % kGranularity == 0; }

// Without a hint, or where the hint is taken: anywhere, aligned.
DevicePtr reserve_anywhere(std::size_t bytes, std::size_t alignment) {
  const auto slack = alignment;
  void* raw = mmap(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return 0;
  auto* begin = static_cast<std::byte*>(raw);
  const auto head = (slack - reinterpret_cast<std::uintptr_t>(raw) % slack) % slack;
  if (head > 0) munmap(begin, head);
  munmap(begin + head + bytes, slack - head);
  return reinterpret_cast<DevicePtr>(begin + head);
}

DevicePtr reserve_at(DevicePtr hint, std::size_t bytes) {
  void* wanted = reinterpret_cast<void*>(hint);  // NOLINT(performance-no-int-to-ptr)
  void* got = mmap(wanted, bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == MAP_FAILED) return 0;
  if (got != wanted) {  // a kernel that does not know MAP_FIXED_NOREPLACE took it for a hint
    munmap(got, bytes);
    return 0;
  }
  return hint;
}

}  // namespace

Status EmulatedDriver::mem_get_allocation_granularity(std::size_t* granularity, DeviceId id) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  if (granularity == nullptr) return Status::invalid_value;
  if (device(id) == nullptr) return Status::invalid_device;
  *granularity = kGranularity;
  return Status::success;
}

Status EmulatedDriver::mem_address_reserve(DevicePtr* pointer, std::size_t bytes, std::size_t alignment,
                                           DevicePtr hint) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  if (pointer == nullptr || bytes == 0 || !granular(bytes)) return Status::invalid_value;
  if (alignment != 0 && !std::has_single_bit(alignment)) return Status::invalid_value;
  alignment = std::max(alignment, kGranularity);
  if (bytes > ~std::size_t{0} - alignment) return Status::out_of_memory;
  DevicePtr got = 0;
  const bool usable =
      hint != 0 && hint % alignment == 0 && hint < generic_windows && bytes <= generic_windows - hint;
  if (usable && !state_->refusals.address_hints) got = reserve_at(hint, bytes);
  if (got == 0) got = reserve_anywhere(bytes, alignment);
  if (got == 0)
    return refuse(*in.thread, Status::out_of_memory, "no range of addresses of that size is left");
  std::lock_guard lock(state_->vmm_mutex);
  state_->reservations[got] = bytes;
  *pointer = got;
  return Status::success;
}

Status EmulatedDriver::mem_address_free(DevicePtr pointer, std::size_t bytes) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  std::lock_guard lock(state_->vmm_mutex);
  auto it = state_->reservations.find(pointer);
  if (it == state_->reservations.end() || it->second != bytes) {
    return refuse(*in.thread, Status::invalid_value, "that is no range of mem_address_reserve");
  }
  if (state_->space.touches(pointer, bytes)) {
    return refuse(*in.thread, Status::invalid_value, "memory is still mapped in the range");
  }
  munmap(reinterpret_cast<void*>(pointer), bytes);  // NOLINT(performance-no-int-to-ptr)
  state_->reservations.erase(it);
  return Status::success;
}

Status EmulatedDriver::mem_create(AllocationHandle* handle, std::size_t bytes, DeviceId id) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  if (handle == nullptr || bytes == 0 || !granular(bytes)) return Status::invalid_value;
  auto* card = device(id);
  if (card == nullptr) return Status::invalid_device;
  const auto offset = card->heap->allocate(bytes, true);
  if (!offset) {
    return refuse(*in.thread, Status::out_of_memory,
                  std::to_string(bytes) + " bytes asked of device " + std::to_string(id) + ", " +
                      std::to_string(card->heap->available()) + " are free");
  }
  auto memory = std::make_shared<PhysicalMemory>(*card->heap, id, *offset, bytes);
  std::lock_guard lock(state_->vmm_mutex);
  *handle = ++state_->last_memory;
  state_->memory[*handle] = std::move(memory);
  return Status::success;
}

Status EmulatedDriver::mem_release(AllocationHandle handle) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  std::shared_ptr<PhysicalMemory> last;  // goes after the lock
  std::lock_guard lock(state_->vmm_mutex);
  auto it = state_->memory.find(handle);
  if (it == state_->memory.end())
    return refuse(*in.thread, Status::invalid_value, "no such allocation handle");
  last = std::move(it->second);
  state_->memory.erase(it);
  return Status::success;
}

Status EmulatedDriver::mem_map(DevicePtr pointer, std::size_t bytes, std::size_t offset,
                               AllocationHandle handle) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  if (bytes == 0 || !granular(bytes) || !granular(pointer) || offset != 0) return Status::invalid_value;
  std::lock_guard lock(state_->vmm_mutex);
  auto it = state_->memory.find(handle);
  if (it == state_->memory.end())
    return refuse(*in.thread, Status::invalid_value, "no such allocation handle");
  const auto& memory = it->second;
  if (bytes > memory->size)
    return refuse(*in.thread, Status::invalid_value, "the allocation is smaller than that");
  auto range = state_->reservations.upper_bound(pointer);
  if (range == state_->reservations.begin())
    return refuse(*in.thread, Status::invalid_value, "not a reserved range");
  --range;
  if (pointer - range->first > range->second || bytes > range->second - (pointer - range->first)) {
    return refuse(*in.thread, Status::invalid_value, "the range was not reserved as a whole");
  }
  Region region;
  region.begin = pointer;
  region.size = bytes;
  region.host = memory->heap.host(memory->offset);
  region.kind = RegionKind::mapped;
  region.device = memory->device;
  region.handle = handle;
  if (!state_->space.insert(std::move(region))) {
    return refuse(*in.thread, Status::already_mapped, "memory is mapped in the range already");
  }
  state_->mapped[pointer] = memory;
  return Status::success;
}

Status EmulatedDriver::mem_unmap(DevicePtr pointer, std::size_t bytes) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  std::vector<std::shared_ptr<PhysicalMemory>> freed;  // goes after the lock
  std::lock_guard lock(state_->vmm_mutex);
  const auto inside = [&](const Region& r) {
    return r.kind == RegionKind::mapped && r.begin >= pointer && r.size <= bytes &&
           r.begin - pointer <= bytes - r.size;
  };
  if (bytes == 0 || !state_->space.covered(pointer, bytes, inside)) {
    return refuse(*in.thread, Status::invalid_value, "unmapping takes whole mappings, side by side");
  }
  for (const auto& region : state_->space.remove_all(inside)) {
    state_->rdma.drop(region.begin, region.size);
    freed.push_back(std::move(state_->mapped[region.begin]));
    state_->mapped.erase(region.begin);
  }
  return Status::success;
}

Status EmulatedDriver::mem_set_access(DevicePtr pointer, std::size_t bytes, DeviceId id) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  const auto* card = device(id);
  if (card == nullptr) return Status::invalid_device;
  const auto region = state_->space.find(pointer);
  if (bytes == 0 || !region) return refuse(*in.thread, Status::invalid_value, "nothing is mapped there");
  const bool reachable =
      region->device == id || (!state_->refusals.peer_access && (card->peers >> region->device & 1) != 0);
  if (!reachable) {
    return refuse(
        *in.thread, Status::invalid_device,
        "device " + std::to_string(id) + " has no link to device " + std::to_string(region->device));
  }
  if (!state_->space.allow(pointer, bytes, id)) {
    return refuse(*in.thread, Status::invalid_value, "access is set for whole mappings, side by side");
  }
  return Status::success;
}

}  // namespace cenote::cuda::emulator
