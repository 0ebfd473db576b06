// Memory: device allocations, pinned host memory, pointer attributes, IPC, exports to NICs.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "cuda/emulator/driver_state.h"
#include "cuda/emulator/ipc.h"
#include "runtime/process.h"

namespace cenote::cuda::emulator {
namespace {

constexpr std::size_t kPage = 4096;
constexpr unsigned kHostAllocFlags = 0x7;     // portable, device map, write combined
constexpr unsigned kHostRegisterFlags = 0xf;  // portable, device map, I/O memory, read only
constexpr unsigned kIpcLazyPeerAccess = 1;
constexpr int kMemoryHost = 1, kMemoryDevice = 2;  // CUmemorytype

std::string hex(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

template <class T>
Status answer(void* out, T value) {
  std::memcpy(out, &value, sizeof(T));  // NOLINT(bugprone-sizeof-expression): handles are answers too
  return Status::success;
}

}  // namespace

Status EmulatedDriver::bad_range(const Entered& in, const char* what, DevicePtr pointer,
                                 std::size_t bytes) const {
  return refuse(*in.thread, Status::invalid_value,
                std::string(what) + " of " + std::to_string(bytes) + " bytes at " + hex(pointer) +
                    ": not all of it is memory of one allocation");
}

Status EmulatedDriver::mem_get_info(std::size_t* free, std::size_t* total) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (free == nullptr || total == nullptr) return Status::invalid_value;
  const auto& heap = *device(in.context->device())->heap;
  *free = heap.available();
  *total = heap.total();
  return Status::success;
}

Status EmulatedDriver::allocate(const Entered& in, std::size_t bytes, bool module, DevicePtr& pointer) {
  const auto id = in.context->device();
  auto& heap = *device(id)->heap;
  const auto offset = heap.allocate(bytes, false);
  if (!offset) {
    return refuse(*in.thread, Status::out_of_memory,
                  std::to_string(bytes) + " bytes asked of device " + std::to_string(id) + ", " +
                      std::to_string(heap.available()) + " of " + std::to_string(heap.total()) + " are free");
  }
  Region region;
  region.begin = heap.address(*offset);
  region.size = bytes;
  region.host = heap.host(*offset);
  region.device = id;
  region.context = in.context->id();
  region.module = module;
  state_->space.insert(region);
  pointer = region.begin;
  return Status::success;
}

// The region is out of the address space already.
void EmulatedDriver::release_region(const Region& region) {
  state_->rdma.drop(region.begin, region.size);
  if (region.kind == RegionKind::heap) {
    auto& heap = *device(region.device)->heap;
    const auto offset = heap.offset_of(region.host);
    {
      std::lock_guard lock(state_->ipc_mutex);
      ipc_withdraw(heap, offset);
    }
    heap.free(offset, region.size, false);
    return;
  }
  if (region.kind == RegionKind::ipc) {
    std::lock_guard lock(state_->ipc_mutex);
    std::erase_if(state_->opened, [&](const auto& one) { return one.second.pointer == region.begin; });
  }
}

Status EmulatedDriver::mem_alloc(DevicePtr* pointer, std::size_t bytes) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (pointer == nullptr || bytes == 0) return Status::invalid_value;
  return allocate(in, bytes, false, *pointer);
}

Status EmulatedDriver::mem_free(DevicePtr pointer) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (pointer == 0) return Status::success;
  const auto mine = [](const Region& r) { return r.kind == RegionKind::heap && !r.module; };
  const auto found = state_->space.find(pointer);
  if (!found || found->begin != pointer || !mine(*found)) {
    return refuse(*in.thread, Status::invalid_value, hex(pointer) + " is not the start of an allocation");
  }
  // As in CUDA, work that may still use the memory comes to its end first.
  if (auto owner = context_by_id(found->context)) owner->synchronize();
  auto gone = state_->space.remove(pointer, mine);
  if (!gone) return refuse(*in.thread, Status::invalid_value, hex(pointer) + " was freed by another thread");
  release_region(*gone);
  return Status::success;
}

Status EmulatedDriver::mem_get_address_range(DevicePtr* base, std::size_t* size, DevicePtr pointer) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  const auto region = state_->space.find(pointer);
  if (!region) return refuse(*in.thread, Status::not_found, hex(pointer) + " is no memory");
  if (base != nullptr) *base = region->begin;
  if (size != nullptr) *size = region->size;
  return Status::success;
}

Status EmulatedDriver::mem_host_alloc(void** pointer, std::size_t bytes, unsigned flags) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (pointer == nullptr || bytes == 0 || (flags & ~kHostAllocFlags) != 0) return Status::invalid_value;
  const auto mapped = (bytes + kPage - 1) / kPage * kPage;
  void* memory = mapped >= bytes
                     ? mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                     : MAP_FAILED;
  if (memory == MAP_FAILED) return refuse(*in.thread, Status::out_of_memory, "no host memory of that size");
  Region region;
  region.begin = reinterpret_cast<DevicePtr>(memory);
  region.size = bytes;
  region.host = static_cast<std::byte*>(memory);
  region.kind = RegionKind::pinned;
  region.context = in.context->id();
  region.keep = std::shared_ptr<void>(memory, [mapped](void* at) { munmap(at, mapped); });
  state_->space.insert(std::move(region));
  *pointer = memory;
  return Status::success;
}

Status EmulatedDriver::mem_free_host(void* pointer) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  const auto mine = [](const Region& r) { return r.kind == RegionKind::pinned && !r.registered; };
  const auto address = reinterpret_cast<DevicePtr>(pointer);
  const auto found = state_->space.find(address);
  if (!found || found->begin != address || !mine(*found)) {
    return refuse(*in.thread, Status::invalid_value, hex(address) + " is not of mem_host_alloc");
  }
  if (auto owner = context_by_id(found->context)) owner->synchronize();
  auto gone = state_->space.remove(address, mine);
  if (!gone) return Status::invalid_value;
  release_region(*gone);
  drop_views();
  return Status::success;
}

Status EmulatedDriver::mem_host_register(void* pointer, std::size_t bytes, unsigned flags) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (pointer == nullptr || bytes == 0 || (flags & ~kHostRegisterFlags) != 0) return Status::invalid_value;
  const auto address = reinterpret_cast<DevicePtr>(pointer);
  if (state_->space.touches(address, bytes)) {
    return refuse(*in.thread, Status::host_memory_already_registered,
                  hex(address) + ": part of it is known already");
  }
  if (is_device_address(address) || !is_mapped(pointer, bytes)) {
    return refuse(*in.thread, Status::invalid_value, hex(address) + " is not memory of this process");
  }
  Region region;
  region.begin = address;
  region.size = bytes;
  region.host = static_cast<std::byte*>(pointer);
  region.kind = RegionKind::pinned;
  region.registered = true;
  region.context = in.context->id();
  if (!state_->space.insert(std::move(region))) return Status::host_memory_already_registered;
  return Status::success;
}

Status EmulatedDriver::mem_host_unregister(void* pointer) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  const auto address = reinterpret_cast<DevicePtr>(pointer);
  const auto mine = [](const Region& r) { return r.kind == RegionKind::pinned && r.registered; };
  const auto found = state_->space.find(address);
  if (!found || found->begin != address || !mine(*found)) {
    return refuse(*in.thread, Status::host_memory_not_registered, hex(address) + " is not registered");
  }
  // Work in flight may read it; afterwards the owner may unmap it.
  if (auto owner = context_by_id(found->context)) owner->synchronize();
  if (!state_->space.remove(address, mine)) return Status::host_memory_not_registered;
  return Status::success;
}

Status EmulatedDriver::pointer_get_attribute(void* value, PointerAttribute attribute, DevicePtr pointer) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (value == nullptr) return Status::invalid_value;
  const auto region = state_->space.find(pointer);
  if (!region) return refuse(*in.thread, Status::invalid_value, hex(pointer) + " is unknown to the driver");
  const bool host = region->kind == RegionKind::pinned;
  switch (attribute) {
    case PointerAttribute::context: {
      std::lock_guard lock(state_->contexts_mutex);
      auto owner = state_->live.find(region->context);
      return answer(value, owner != state_->live.end() ? owner->second.handle : nullptr);
    }
    case PointerAttribute::memory_type:
      return answer(value, host ? kMemoryHost : kMemoryDevice);
    case PointerAttribute::device_pointer:
      return answer(value, pointer);
    case PointerAttribute::host_pointer:
      if (!host) return refuse(*in.thread, Status::invalid_value, "device memory has no host pointer");
      return answer(value, pointer);
    case PointerAttribute::is_managed:
      return answer(value, 0u);
    case PointerAttribute::device_ordinal:
      return answer(value, host ? in.context->device() : region->device);
    case PointerAttribute::range_start_address:
      return answer(value, region->begin);
    case PointerAttribute::range_size:
      return answer(value, region->size);
    case PointerAttribute::mapped:
      return answer(value, 1u);
  }
  return refuse(*in.thread, Status::invalid_value, "the emulated driver has no such pointer attribute");
}

Status EmulatedDriver::ipc_get_mem_handle(IpcMemHandle* handle, DevicePtr pointer) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (handle == nullptr) return Status::invalid_value;
  if (state_->refusals.ipc)
    return refuse(*in.thread, Status::not_supported, "this machine refuses IPC handles");
  const auto region = state_->space.find(pointer);
  if (!region || region->kind != RegionKind::heap || region->module) {
    return refuse(*in.thread, Status::invalid_value, hex(pointer) + " is not memory of mem_alloc");
  }
  const auto* card = device(region->device);
  std::lock_guard lock(state_->ipc_mutex);
  auto made = ipc_export(*card->heap, card->uuid, card->heap->offset_of(region->host), region->size);
  if (!made) return refuse(*in.thread, Status::out_of_memory, made.error().message());
  *handle = *made;
  return Status::success;
}

Status EmulatedDriver::ipc_open_mem_handle(DevicePtr* pointer, IpcMemHandle handle, unsigned flags) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (pointer == nullptr || (flags & ~kIpcLazyPeerAccess) != 0) return Status::invalid_value;
  if (state_->refusals.ipc)
    return refuse(*in.thread, Status::not_supported, "this machine refuses IPC handles");
  return ipc_open_in(in, handle, *pointer);
}

Status EmulatedDriver::ipc_open_in(const Entered& in, const IpcMemHandle& bytes, DevicePtr& pointer) {
  const auto handle = ipc_handle(bytes);
  if (!handle) return refuse(*in.thread, Status::invalid_value, "these bytes are no IPC memory handle");
  if (handle->process == static_cast<std::uint32_t>(getpid())) {
    return refuse(*in.thread, Status::invalid_context, "the handle was made by this very process");
  }
  int card = -1;
  for (std::size_t i = 0; i < state_->devices.size(); ++i) {
    if (std::memcmp(&state_->devices[i].uuid, &handle->uuid, sizeof(handle->uuid)) == 0)
      card = static_cast<int>(i);
  }
  if (card < 0)
    return refuse(*in.thread, Status::invalid_device, "the handle is for a card that is not in this machine");
  std::lock_guard lock(state_->ipc_mutex);
  std::array<std::uint8_t, 16> secret;
  std::memcpy(secret.data(), handle->secret, secret.size());
  if (auto known = state_->opened.find(secret); known != state_->opened.end()) {
    ++known->second.users;
    pointer = known->second.pointer;
    return Status::success;
  }
  auto memory = ipc_open(*handle);
  if (!memory) return refuse(*in.thread, Status::map_failed, memory.error().message());
  Region region;
  region.begin = (*memory)->address();
  region.size = handle->size;
  region.host = (*memory)->host();
  region.kind = RegionKind::ipc;
  region.device = card;
  region.context = in.context->id();
  region.keep = *memory;
  state_->opened[secret] = {region.begin, 1};
  pointer = region.begin;
  state_->space.insert(std::move(region));
  return Status::success;
}

Status EmulatedDriver::ipc_close_mem_handle(DevicePtr pointer) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  const auto foreign = [](const Region& r) { return r.kind == RegionKind::ipc; };
  const auto found = state_->space.find(pointer);
  if (!found || found->begin != pointer || !foreign(*found)) {
    return refuse(*in.thread, Status::invalid_value, hex(pointer) + " is not of ipc_open_mem_handle");
  }
  {
    // Whoever takes the last use takes the handle out at once: no other closes it too, or opens it meanwhile.
    std::lock_guard lock(state_->ipc_mutex);
    const auto opened = std::find_if(state_->opened.begin(), state_->opened.end(),
                                     [&](const auto& one) { return one.second.pointer == pointer; });
    if (opened == state_->opened.end())
      return refuse(*in.thread, Status::invalid_value, hex(pointer) + " was closed by another thread");
    if (--opened->second.users > 0) return Status::success;
    state_->opened.erase(opened);
  }
  if (auto owner = context_by_id(found->context)) owner->synchronize();
  auto gone = state_->space.remove(pointer, foreign);
  if (!gone) return Status::invalid_value;
  release_region(*gone);
  drop_views();
  return Status::success;
}

Status EmulatedDriver::mem_get_dmabuf_fd(int* fd, DevicePtr pointer, std::size_t bytes) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (fd == nullptr || bytes == 0) return Status::invalid_value;
  const auto* card = device(in.context->device());
  if (state_->refusals.dmabuf || !card->model.gpu_direct_rdma) {
    return refuse(*in.thread, Status::not_supported,
                  "this machine does not export device memory as a dma-buf");
  }
  if (pointer % kPage != 0 || bytes % kPage != 0) {
    return refuse(*in.thread, Status::invalid_value, "a dma-buf starts and ends at a page of the host");
  }
  const bool of_device = state_->space.covered(pointer, bytes, [](const Region& r) {
    return r.kind == RegionKind::heap || (r.kind == RegionKind::mapped && r.access != 0);
  });
  const auto pieces = state_->space.resolve(pointer, bytes);
  if (!of_device || pieces.empty()) return bad_range(in, "dma-buf", pointer, bytes);
  auto opened = state_->rdma.open(pointer, bytes, pieces);
  if (!opened) return refuse(*in.thread, Status::operating_system, opened.error().message());
  *fd = *opened;
  return Status::success;
}

Status EmulatedDriver::flush_gpu_direct_rdma_writes() {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (!device(in.context->device())->model.gpu_direct_rdma) return Status::not_supported;
  state_->rdma.flush();
  return Status::success;
}

}  // namespace cenote::cuda::emulator
