// Devices and contexts of the remote driver. Queries are answered from what the worker said at connect.
#include <algorithm>
#include <cstring>

#include "pool/remote/client_impl.h"

namespace cenote::pool::remote {

using cuda::Status;

RemoteDevice* RemoteDriverImpl::device_at(cuda::DeviceId id) {
  return id >= 0 && static_cast<std::size_t>(id) < devices_.size()
             ? devices_[static_cast<std::size_t>(id)].get()
             : nullptr;
}

RemoteDevice* RemoteDriverImpl::device_of(Handle handle) {
  return device_at(static_cast<int>(handle.lane()));
}

Status RemoteDriverImpl::current(Target& target) {
  if (!initialized_) return Status::not_initialized;
  const auto& stack = thread_state().stack;
  if (stack.empty() || stack.back() == nullptr) return Status::invalid_context;
  const auto handle = Handle::of(stack.back());
  auto* device = device_of(handle);
  const auto* context = device == nullptr ? nullptr : device->contexts.get(handle);
  if (context == nullptr || (context->primary && context->retained == 0)) return Status::context_is_destroyed;
  target = {device, handle.index(), 0};
  return well(*device, target.context);
}

Status RemoteDriverImpl::init(unsigned flags) {
  if (flags != 0) return Status::invalid_value;
  const Call call(*this);
  initialized_ = true;
  return Status::success;
}

Status RemoteDriverImpl::driver_get_version(int* version) {
  if (version == nullptr) return Status::invalid_value;
  const Call call(*this);
  // The least of the workers' versions: what a program may use on every device.
  int least = devices_.empty() ? 0 : devices_.front()->info.driver_version;
  for (const auto& device : devices_) least = std::min(least, device->info.driver_version);
  *version = least;
  return Status::success;
}

Status RemoteDriverImpl::device_get_count(int* count) {
  if (count == nullptr) return Status::invalid_value;
  const Call call(*this);
  if (!initialized_) return Status::not_initialized;
  *count = static_cast<int>(devices_.size());
  return Status::success;
}

Status RemoteDriverImpl::device_get(cuda::DeviceId* device, int ordinal) {
  if (device == nullptr) return Status::invalid_value;
  const Call call(*this);
  if (!initialized_) return Status::not_initialized;
  if (device_at(ordinal) == nullptr) return Status::invalid_device;
  *device = ordinal;
  return Status::success;
}

Status RemoteDriverImpl::device_get_name(char* name, int length, cuda::DeviceId id) {
  if (name == nullptr || length <= 0) return Status::invalid_value;
  const Call call(*this);
  if (!initialized_) return Status::not_initialized;
  const auto* device = device_at(id);
  if (device == nullptr) return Status::invalid_device;
  const auto count = std::min<std::size_t>(device->info.name.size(), static_cast<std::size_t>(length) - 1);
  std::memcpy(name, device->info.name.data(), count);
  name[count] = '\0';
  return Status::success;
}

Status RemoteDriverImpl::device_get_uuid(cuda::DeviceUuid* uuid, cuda::DeviceId id) {
  if (uuid == nullptr) return Status::invalid_value;
  const Call call(*this);
  if (!initialized_) return Status::not_initialized;
  const auto* device = device_at(id);
  if (device == nullptr) return Status::invalid_device;
  *uuid = device->info.uuid;
  return Status::success;
}

Status RemoteDriverImpl::device_total_mem(std::size_t* bytes, cuda::DeviceId id) {
  if (bytes == nullptr) return Status::invalid_value;
  const Call call(*this);
  if (!initialized_) return Status::not_initialized;
  const auto* device = device_at(id);
  if (device == nullptr) return Status::invalid_device;
  *bytes = device->info.total_memory;
  return Status::success;
}

Status RemoteDriverImpl::device_get_attribute(int* value, cuda::DeviceAttribute attribute,
                                              cuda::DeviceId id) {
  if (value == nullptr) return Status::invalid_value;
  const Call call(*this);
  if (!initialized_) return Status::not_initialized;
  const auto* device = device_at(id);
  if (device == nullptr) return Status::invalid_device;
  switch (attribute) {
    // What cannot be reached from another process: exports that are descriptors, and NICs beside the GPU.
    case cuda::DeviceAttribute::can_map_host_memory:
    case cuda::DeviceAttribute::managed_memory:
    case cuda::DeviceAttribute::handle_type_posix_file_descriptor:
    case cuda::DeviceAttribute::gpu_direct_rdma:
    case cuda::DeviceAttribute::dma_buf_supported:
      *value = 0;
      return Status::success;
    default:
      break;
  }
  for (const auto& [known, answer] : device->info.attributes) {
    if (known != static_cast<int>(attribute)) continue;
    *value = answer;
    return Status::success;
  }
  return Status::invalid_value;
}

Status RemoteDriverImpl::primary_ctx_retain(cuda::Context* context, cuda::DeviceId id) {
  if (context == nullptr) return Status::invalid_value;
  const Call call(*this);
  if (!initialized_) return Status::not_initialized;
  auto* device = device_at(id);
  if (device == nullptr) return Status::invalid_device;
  if (device->lane.lost()) return report(*device, Status::launch_failed, "");
  ++device->contexts.get(device->primary)->retained;
  *context = device->primary.as<cuda::Context>();
  return Status::success;
}

void RemoteDriverImpl::drop_context(RemoteDevice& device, Handle context) {
  const auto index = context.index();
  device.functions.each([&](Handle h, FunctionEntry& f) {
    if (f.context == index) device.functions.remove(h);
  });
  device.modules.each([&](Handle h, ModuleEntry& m) {
    if (m.context != index) return;
    for (const auto base : m.globals) device.globals.erase(base);
    device.modules.remove(h);
  });
  device.events.each([&](Handle h, EventEntry& e) {
    if (e.context == index) device.events.remove(h);
  });
  device.streams.each([&](Handle h, StreamEntry& s) {
    if (s.context == index) device.streams.remove(h);
  });
  // The context first: what its streams still wait for ends with it. Then its memory, which nobody uses any
  // more.
  Reply reply;
  reply.context = index;
  device.lane.ask(reply, CtxDestroy{0, index});
  while (const auto* range = device.space.any_of(index)) {
    const auto piece = device.space.free(range->address);
    if (piece && piece->bytes != 0) device.lane.issue(0, MemFree{piece->address, piece->bytes});
  }
  device.known_free = reply.a;
  device.lane.fault(index) = {};
}

Status RemoteDriverImpl::primary_ctx_release(cuda::DeviceId id) {
  const Call call(*this);
  auto* device = device_at(id);
  if (device == nullptr) return Status::invalid_device;
  auto& primary = *device->contexts.get(device->primary);
  if (primary.retained == 0) return Status::invalid_context;
  if (--primary.retained == 0) drop_context(*device, device->primary);
  return Status::success;
}

Status RemoteDriverImpl::ctx_create(cuda::Context* context, unsigned flags, cuda::DeviceId id) {
  if (context == nullptr) return Status::invalid_value;
  const Call call(*this);
  if (!initialized_) return Status::not_initialized;
  auto* device = device_at(id);
  if (device == nullptr) return Status::invalid_device;
  const auto handle = device->contexts.add({false, 0, flags});
  const auto status = ask({device, 0, 0}, CtxCreate{0, handle.index(), flags});
  if (status != Status::success) {
    device->contexts.remove(handle);
    return status;
  }
  *context = handle.as<cuda::Context>();
  thread_state().stack.push_back(*context);
  return Status::success;
}

Status RemoteDriverImpl::ctx_destroy(cuda::Context context) {
  const Call call(*this);
  const auto handle = Handle::of(context);
  auto* device = device_of(handle);
  const auto* entry = device == nullptr ? nullptr : device->contexts.get(handle);
  if (entry == nullptr || entry->primary) return Status::invalid_context;
  drop_context(*device, handle);
  device->contexts.remove(handle);
  auto& stack = thread_state().stack;
  if (!stack.empty() && stack.back() == context) stack.pop_back();
  return Status::success;
}

Status RemoteDriverImpl::ctx_set_current(cuda::Context context) {
  const Call call(*this);
  if (!initialized_) return Status::not_initialized;
  auto& stack = thread_state().stack;
  if (context == nullptr) {
    if (!stack.empty()) stack.pop_back();
    return Status::success;
  }
  const auto handle = Handle::of(context);
  auto* device = device_of(handle);
  if (device == nullptr || device->contexts.get(handle) == nullptr) return Status::invalid_context;
  if (stack.empty())
    stack.push_back(context);
  else
    stack.back() = context;
  return Status::success;
}

Status RemoteDriverImpl::ctx_get_current(cuda::Context* context) {
  if (context == nullptr) return Status::invalid_value;
  const Call call(*this);
  if (!initialized_) return Status::not_initialized;
  const auto& stack = thread_state().stack;
  *context = stack.empty() ? nullptr : stack.back();
  return Status::success;
}

Status RemoteDriverImpl::ctx_push_current(cuda::Context context) {
  const Call call(*this);
  const auto handle = Handle::of(context);
  auto* device = device_of(handle);
  if (context == nullptr || device == nullptr || device->contexts.get(handle) == nullptr)
    return Status::invalid_context;
  thread_state().stack.push_back(context);
  return Status::success;
}

Status RemoteDriverImpl::ctx_pop_current(cuda::Context* context) {
  const Call call(*this);
  auto& stack = thread_state().stack;
  if (stack.empty()) return Status::invalid_context;
  if (context != nullptr) *context = stack.back();
  stack.pop_back();
  return Status::success;
}

Status RemoteDriverImpl::ctx_get_device(cuda::DeviceId* id) {
  if (id == nullptr) return Status::invalid_value;
  const Call call(*this);
  const auto& stack = thread_state().stack;
  if (stack.empty()) return Status::invalid_context;
  *id = static_cast<int>(Handle::of(stack.back()).lane());
  return Status::success;
}

Status RemoteDriverImpl::ctx_synchronize() {
  const Call call(*this);
  Target target;
  if (const auto status = current(target); status != Status::success) return status;
  return synchronize(target, CtxSync{});
}

Status RemoteDriverImpl::device_can_access_peer(int* can, cuda::DeviceId id, cuda::DeviceId peer) {
  if (can == nullptr) return Status::invalid_value;
  const Call call(*this);
  const auto* device = device_at(id);
  const auto* other = device_at(peer);
  if (device == nullptr || other == nullptr) return Status::invalid_device;
  const auto lane = other->lane.index_in_worker();
  const bool together = device != other && &device_at(id)->lane.worker() == &device_at(peer)->lane.worker();
  *can = together && lane < device->info.peers.size() && device->info.peers[lane] != 0 ? 1 : 0;
  return Status::success;
}

Status RemoteDriverImpl::ctx_enable_peer_access(cuda::Context peer, unsigned flags) {
  const Call call(*this);
  Target target;
  if (const auto status = current(target); status != Status::success) return status;
  const auto handle = Handle::of(peer);
  auto* other = device_of(handle);
  if (flags != 0) return Status::invalid_value;
  if (other == nullptr || other->contexts.get(handle) == nullptr) return Status::invalid_context;
  if (&other->lane.worker() != &target.device->lane.worker()) return Status::peer_access_unsupported;
  return ask(target, CtxPeer{0, other->lane.index_in_worker(), handle.index()});
}

}  // namespace cenote::pool::remote
