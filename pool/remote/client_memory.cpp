// Memory of the remote driver: addresses are chosen here, the worker maps memory there. An allocation asks
// the worker only when it cannot be sure that the memory is there.
#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "pool/remote/client_impl.h"
#include "runtime/process.h"

namespace cenote::pool::remote {

using cuda::Status;

namespace {

/// A mapping is certain to be granted when this many of its size were free at the last answer: others share
/// the device, and contexts and modules take some of it.
constexpr std::uint64_t certain_factor = 8;

constexpr std::size_t page = 4096;

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

}  // namespace

RemoteDriverImpl::Place RemoteDriverImpl::locate(cuda::DevicePtr pointer, RemoteDevice* preferred) {
  const auto among_globals = [&](RemoteDevice& device) -> Place {
    auto after = device.globals.upper_bound(pointer);
    if (after == device.globals.begin()) return {};
    const auto& [base, bytes] = *std::prev(after);
    return pointer - base < bytes ? Place{&device, base, bytes, true} : Place{};
  };
  for (auto& device : devices_) {
    if (!device->space.contains(pointer)) continue;
    const auto* range = device->space.find(pointer);
    if (range == nullptr) return {};
    return {device.get(), range->address, range->bytes, !range->reserved};
  }
  // Addresses of globals are the workers' own: two workers may use the same ones, so the current device goes
  // first.
  if (preferred != nullptr) {
    if (const auto place = among_globals(*preferred); place.device != nullptr) return place;
  }
  for (auto& device : devices_) {
    if (const auto place = among_globals(*device); place.device != nullptr) return place;
  }
  return {};
}

Status RemoteDriverImpl::within(cuda::DevicePtr pointer, std::size_t bytes, RemoteDevice* preferred,
                                Place& place) {
  place = locate(pointer, preferred);
  if (place.device == nullptr) return Status::invalid_value;
  const auto offset = pointer - place.base;
  return bytes <= place.bytes - offset ? Status::success : Status::invalid_value;
}

Status RemoteDriverImpl::mem_get_info(std::size_t* free, std::size_t* total) {
  if (free == nullptr || total == nullptr) return Status::invalid_value;
  const Call call(*this);
  Target target;
  if (const auto status = current(target); status != Status::success) return status;
  Reply reply;
  const auto status = ask(target, MemInfo{}, &reply);
  if (status != Status::success) return status;
  *free = reply.a;
  *total = reply.b;
  target.device->known_free = reply.a;
  return Status::success;
}

Status RemoteDriverImpl::mem_alloc(cuda::DevicePtr* pointer, std::size_t bytes) {
  if (pointer == nullptr || bytes == 0) return Status::invalid_value;
  const Call call(*this);
  Target target;
  if (const auto status = current(target); status != Status::success) return status;
  auto& device = *target.device;
  const auto made = device.space.allocate(bytes, target.context);
  if (!made) return Status::out_of_memory;
  const auto need = made->map.bytes;
  if (need != 0) {
    if (need <= device.known_free / certain_factor) {
      device.known_free -= need;
      const auto told = tell(target, MemAlloc{0, made->map.address, need});
      if (told != Status::success) return told;
    } else {
      Reply reply;
      const auto status = ask(target, MemAlloc{1, made->map.address, need}, &reply);
      if (status != Status::success) {
        if (!device.lane.lost()) device.space.undo(made->address);
        return status;
      }
      device.known_free = reply.a;
    }
  }
  *pointer = made->address;
  return Status::success;
}

Status RemoteDriverImpl::mem_free(cuda::DevicePtr pointer) {
  const Call call(*this);
  Target target;
  if (const auto status = current(target); status != Status::success) return status;
  if (pointer == 0) return Status::success;
  const auto place = locate(pointer, nullptr);
  if (place.device == nullptr || place.base != pointer || !place.exact) return Status::invalid_value;
  // Freeing ends the work in flight, as in CUDA: what was asked for has arrived.
  place.device->lane.settle_all();
  const auto piece = place.device->space.free(pointer);
  if (!piece) return Status::invalid_value;
  target = {place.device, target.device == place.device ? target.context : 0, 0};
  if (piece->bytes == 0) return tell(target, Drain{});
  place.device->known_free += piece->bytes;
  return tell(target, MemFree{piece->address, piece->bytes});
}

Status RemoteDriverImpl::mem_get_address_range(cuda::DevicePtr* base, std::size_t* size,
                                               cuda::DevicePtr pointer) {
  const Call call(*this);
  Target target;
  if (const auto status = current(target); status != Status::success) return status;
  const auto place = locate(pointer, target.device);
  if (place.device == nullptr) return Status::not_found;
  if (base != nullptr) *base = place.base;
  if (size != nullptr) *size = place.bytes;
  return Status::success;
}

// Host memory is this process's own; what "pinned" means here is that asynchronous copies into it do not
// wait.
Status RemoteDriverImpl::mem_host_alloc(void** pointer, std::size_t bytes, unsigned flags) {
  if (pointer == nullptr || bytes == 0 || flags > 7) return Status::invalid_value;
  const Call call(*this);
  Target target;
  if (const auto status = current(target); status != Status::success) return status;
  const auto whole = (bytes + page - 1) & ~(page - 1);
  void* const made = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return Status::out_of_memory;
  pinned_[address_of(made)] = whole;
  pinned_ours_.insert(address_of(made));
  *pointer = made;
  return Status::success;
}

Status RemoteDriverImpl::mem_free_host(void* pointer) {
  const Call call(*this);
  const auto found = pinned_ours_.find(address_of(pointer));
  if (found == pinned_ours_.end()) return Status::invalid_value;
  const auto bytes = pinned_[*found];
  for (auto& device : devices_) device->lane.settle(static_cast<std::byte*>(pointer), bytes);
  pinned_.erase(*found);
  pinned_ours_.erase(found);
  munmap(pointer, bytes);
  return Status::success;
}

Status RemoteDriverImpl::mem_host_register(void* pointer, std::size_t bytes, unsigned flags) {
  if (pointer == nullptr || bytes == 0 || flags > 15) return Status::invalid_value;
  const Call call(*this);
  Target target;
  if (const auto status = current(target); status != Status::success) return status;
  const auto at = address_of(pointer);
  if (is_device_address(pointer) || !is_mapped(pointer, bytes)) return Status::invalid_value;
  auto after = pinned_.lower_bound(at + bytes);
  if (after != pinned_.begin()) {
    const auto& [base, size] = *std::prev(after);
    if (base + size > at) return Status::host_memory_already_registered;
  }
  pinned_[at] = bytes;
  return Status::success;
}

Status RemoteDriverImpl::mem_host_unregister(void* pointer) {
  const Call call(*this);
  const auto found = pinned_.find(address_of(pointer));
  if (found == pinned_.end() || pinned_ours_.contains(found->first))
    return Status::host_memory_not_registered;
  for (auto& device : devices_) device->lane.settle(static_cast<std::byte*>(pointer), found->second);
  pinned_.erase(found);
  return Status::success;
}

bool RemoteDriverImpl::is_pinned(const void* pointer, std::size_t bytes) const {
  auto after = pinned_.upper_bound(address_of(pointer));
  if (after == pinned_.begin()) return false;
  const auto& [base, size] = *std::prev(after);
  const auto offset = address_of(pointer) - base;
  return offset < size && bytes <= size - offset;
}

Status RemoteDriverImpl::pointer_get_attribute(void* value, cuda::PointerAttribute attribute,
                                               cuda::DevicePtr pointer) {
  if (value == nullptr) return Status::invalid_value;
  const Call call(*this);
  const auto place = locate(pointer, nullptr);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's interface has addresses as numbers
  const bool pinned = place.device == nullptr && is_pinned(reinterpret_cast<void*>(pointer), 1);
  if (place.device == nullptr && !pinned) return Status::invalid_value;
  switch (attribute) {
    case cuda::PointerAttribute::context:
      if (pinned) return Status::invalid_value;
      {
        const auto* range = place.device->space.find(pointer);
        const auto index = range == nullptr ? 0 : range->context;
        cuda::Context found = nullptr;
        place.device->contexts.each([&](Handle handle, ContextEntry&) {
          if (handle.index() == index) found = handle.as<cuda::Context>();
        });
        *static_cast<cuda::Context*>(value) = found;
      }
      return Status::success;
    case cuda::PointerAttribute::memory_type:
      *static_cast<unsigned*>(value) = pinned ? 1 : 2;
      return Status::success;
    case cuda::PointerAttribute::device_pointer:
      if (pinned) return Status::invalid_value;  // no device reaches this process's memory
      *static_cast<cuda::DevicePtr*>(value) = pointer;
      return Status::success;
    case cuda::PointerAttribute::host_pointer:
      if (!pinned) return Status::invalid_value;
      *static_cast<std::uint64_t*>(value) = pointer;
      return Status::success;
    case cuda::PointerAttribute::is_managed:
      *static_cast<unsigned*>(value) = 0;
      return Status::success;
    case cuda::PointerAttribute::device_ordinal:
      *static_cast<int*>(value) = pinned ? 0 : static_cast<int>(place.device->lane.ordinal());
      return Status::success;
    case cuda::PointerAttribute::range_start_address:
      *static_cast<std::uint64_t*>(value) =
          pinned ? std::prev(pinned_.upper_bound(pointer))->first : place.base;
      return Status::success;
    case cuda::PointerAttribute::range_size:
      *static_cast<std::size_t*>(value) =
          pinned ? std::prev(pinned_.upper_bound(pointer))->second : place.bytes;
      return Status::success;
    case cuda::PointerAttribute::mapped:
      *static_cast<unsigned*>(value) = 1;
      return Status::success;
  }
  return Status::invalid_value;
}

// Handles of memory are good in one machine only, and this process may be on another than the GPU.
Status RemoteDriverImpl::ipc_get_mem_handle(cuda::IpcMemHandle*, cuda::DevicePtr) {
  return explain(Status::not_supported, "memory of a leased GPU cannot be shared between client processes");
}
Status RemoteDriverImpl::ipc_open_mem_handle(cuda::DevicePtr*, cuda::IpcMemHandle, unsigned) {
  return explain(Status::not_supported, "memory of a leased GPU cannot be shared between client processes");
}
Status RemoteDriverImpl::ipc_close_mem_handle(cuda::DevicePtr) { return Status::invalid_value; }
Status RemoteDriverImpl::mem_get_dmabuf_fd(int*, cuda::DevicePtr, std::size_t) {
  return explain(Status::not_supported, "memory of a leased GPU has no dma-buf on the client's machine");
}

Status RemoteDriverImpl::mem_address_reserve(cuda::DevicePtr* pointer, std::size_t bytes,
                                             std::size_t alignment, cuda::DevicePtr hint) {
  if (pointer == nullptr || (alignment != 0 && !std::has_single_bit(alignment))) return Status::invalid_value;
  const Call call(*this);
  if (!initialized_) return Status::not_initialized;
  // Reservations belong to no device in CUDA; here they lie in some device's range: the hinted one's, the
  // current one's, or the first.
  RemoteDevice* device = nullptr;
  for (auto& candidate : devices_) device = candidate->space.contains(hint) ? candidate.get() : device;
  Target target;
  if (device == nullptr && current(target) == Status::success) device = target.device;
  if (device == nullptr && !devices_.empty()) device = devices_.front().get();
  if (device == nullptr) return Status::no_device;
  if (bytes == 0 || bytes % device->info.granularity != 0) return Status::invalid_value;
  const auto made = device->space.reserve(bytes, alignment, hint);
  if (!made) return Status::out_of_memory;
  *pointer = *made;
  return Status::success;
}

Status RemoteDriverImpl::mem_address_free(cuda::DevicePtr pointer, std::size_t bytes) {
  const Call call(*this);
  const auto place = locate(pointer, nullptr);
  if (place.device == nullptr || place.exact || place.base != pointer || place.bytes != bytes)
    return Status::invalid_value;
  const auto inside = place.device->mapped.lower_bound(pointer);
  if (inside != place.device->mapped.end() && inside->first < pointer + bytes) return Status::invalid_value;
  place.device->space.free(pointer);
  return Status::success;
}

Status RemoteDriverImpl::mem_create(cuda::AllocationHandle* handle, std::size_t bytes, cuda::DeviceId id) {
  if (handle == nullptr) return Status::invalid_value;
  const Call call(*this);
  auto* device = device_at(id);
  if (device == nullptr) return Status::invalid_device;
  if (bytes == 0 || bytes % device->info.granularity != 0) return Status::invalid_value;
  const auto number = device->next_physical++;
  Reply reply;
  const auto status = ask({device, 0, 0}, VmmCreate{0, static_cast<std::uint32_t>(number), bytes}, &reply);
  if (status != Status::success) return status;
  device->known_free = reply.a;
  *handle = static_cast<std::uint64_t>(device->lane.ordinal() + 1) << 32 | number;
  device->physical.insert(*handle);
  return Status::success;
}

Status RemoteDriverImpl::mem_release(cuda::AllocationHandle handle) {
  const Call call(*this);
  auto* device = device_at(static_cast<int>(handle >> 32) - 1);
  if (device == nullptr || device->physical.erase(handle) == 0) return Status::invalid_value;
  return ask({device, 0, 0}, VmmRelease{0, static_cast<std::uint32_t>(handle)});
}

Status RemoteDriverImpl::mem_map(cuda::DevicePtr pointer, std::size_t bytes, std::size_t offset,
                                 cuda::AllocationHandle handle) {
  const Call call(*this);
  Place place;
  if (const auto status = within(pointer, bytes, nullptr, place); status != Status::success) return status;
  auto* device = device_at(static_cast<int>(handle >> 32) - 1);
  if (place.exact || device == nullptr || !device->physical.contains(handle)) return Status::invalid_value;
  if (device != place.device)
    return explain(Status::not_supported,
                   "memory of one leased GPU cannot be mapped in the range of another");
  const auto status =
      ask({device, 0, 0}, VmmMap{0, pointer, bytes, offset, static_cast<std::uint32_t>(handle)});
  if (status == Status::success) device->mapped[pointer] = bytes;
  return status;
}

Status RemoteDriverImpl::mem_unmap(cuda::DevicePtr pointer, std::size_t bytes) {
  const Call call(*this);
  Place place;
  if (const auto status = within(pointer, bytes, nullptr, place); status != Status::success) return status;
  if (place.exact) return Status::invalid_value;
  const auto status = ask({place.device, 0, 0}, VmmUnmap{0, pointer, bytes});
  if (status == Status::success) place.device->mapped.erase(pointer);
  return status;
}

Status RemoteDriverImpl::mem_set_access(cuda::DevicePtr pointer, std::size_t bytes, cuda::DeviceId id) {
  const Call call(*this);
  Place place;
  if (const auto status = within(pointer, bytes, nullptr, place); status != Status::success) return status;
  auto* device = device_at(id);
  if (device == nullptr) return Status::invalid_device;
  if (place.exact) return Status::invalid_value;
  if (&device->lane.worker() != &place.device->lane.worker()) return Status::peer_access_unsupported;
  return ask({place.device, 0, 0}, VmmAccess{0, pointer, bytes, device->lane.index_in_worker()});
}

Status RemoteDriverImpl::mem_get_allocation_granularity(std::size_t* granularity, cuda::DeviceId id) {
  if (granularity == nullptr) return Status::invalid_value;
  const Call call(*this);
  const auto* device = device_at(id);
  if (device == nullptr) return Status::invalid_device;
  *granularity = device->info.granularity;
  return Status::success;
}

Status RemoteDriverImpl::flush_gpu_direct_rdma_writes() {
  const Call call(*this);
  Target target;
  if (const auto status = current(target); status != Status::success) return status;
  return ask(target, FlushWrites{});
}

}  // namespace cenote::pool::remote
