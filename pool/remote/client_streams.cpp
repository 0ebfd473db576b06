// Streams and events of the remote driver.
#include <bit>

#include "pool/remote/client_impl.h"

namespace cenote::pool::remote {

using cuda::Status;

namespace {
constexpr std::uint64_t first_real_stream =
    3;  // 0, 1 and 2 are CUDA's default, legacy and per-thread streams
constexpr std::uint64_t per_thread_stream = 2;
}  // namespace

// One thread serves all of the client's threads at the worker: what is each thread's default stream here is
// an ordinary stream there, made at its first use and gone with its context.
Status RemoteDriverImpl::own_stream(Target& target) {
  auto& own = thread_state().streams[{target.device->lane.ordinal(), target.context}];
  if (const auto* known = target.device->streams.get(own);
      known != nullptr && known->context == target.context) {
    target.stream = own.index();
    return Status::success;
  }
  own = target.device->streams.add({target.context});
  target.stream = own.index();
  return tell(target, StreamCreate{own.index(), cuda::stream_default});
}

Status RemoteDriverImpl::target_of(cuda::Stream stream, Target& target) {
  const auto handle = Handle::of(stream);
  if (handle.bits < first_real_stream) {
    if (const auto status = current(target); status != Status::success) return status;
    target.stream = static_cast<std::uint32_t>(handle.bits);
    return handle.bits == per_thread_stream ? own_stream(target) : Status::success;
  }
  auto* device = device_of(handle);
  const auto* entry = device == nullptr ? nullptr : device->streams.get(handle);
  if (entry == nullptr) return Status::invalid_handle;
  target = {device, entry->context, handle.index()};
  return well(*device, target.context);
}

Status RemoteDriverImpl::stream_create(cuda::Stream* stream, unsigned flags) {
  if (stream == nullptr || flags > cuda::stream_non_blocking) return Status::invalid_value;
  const Call call(*this);
  Target target;
  if (const auto status = current(target); status != Status::success) return status;
  const auto handle = target.device->streams.add({target.context});
  *stream = handle.as<cuda::Stream>();
  return tell(target, StreamCreate{handle.index(), flags});
}

Status RemoteDriverImpl::stream_destroy(cuda::Stream stream) {
  const Call call(*this);
  const auto handle = Handle::of(stream);
  auto* device = device_of(handle);
  const auto* entry = device == nullptr ? nullptr : device->streams.get(handle);
  if (handle.bits < first_real_stream || entry == nullptr) return Status::invalid_handle;
  const Target target{device, entry->context, handle.index()};
  device->streams.remove(handle);
  const auto status = well(*device, target.context);
  const auto told = tell(target, StreamDestroy{handle.index()});
  return status == Status::success ? told : status;
}

Status RemoteDriverImpl::stream_synchronize(cuda::Stream stream) {
  const Call call(*this);
  Target target;
  if (const auto status = target_of(stream, target); status != Status::success) return status;
  return synchronize(target, StreamSync{0, target.stream});
}

Status RemoteDriverImpl::stream_query(cuda::Stream stream) {
  const Call call(*this);
  Target target;
  if (const auto status = target_of(stream, target); status != Status::success) return status;
  return synchronize(target, StreamQuery{0, target.stream});
}

Status RemoteDriverImpl::stream_wait_event(cuda::Stream stream, cuda::Event event, unsigned flags) {
  if (flags > 1) return Status::invalid_value;
  {
    const Call call(*this);
    Target target;
    if (const auto status = target_of(stream, target); status != Status::success) return status;
    const auto handle = Handle::of(event);
    auto* owner = device_of(handle);
    if (owner == nullptr || owner->events.get(handle) == nullptr) return Status::invalid_handle;
    if (&owner->lane.worker() == &target.device->lane.worker()) {
      order_after(*target.device, *owner);
      return tell(target, StreamWaitEvent{target.stream, owner->lane.index_in_worker(), handle.index()});
    }
  }
  // An event on another worker: the stream's next command is not sent before the event has happened.
  return event_synchronize(event);
}

Status RemoteDriverImpl::stream_wait_value32(cuda::Stream stream, cuda::DevicePtr address,
                                             std::uint32_t value, unsigned flags) {
  const Call call(*this);
  Target target;
  if (const auto status = target_of(stream, target); status != Status::success) return status;
  Place place;
  if (address % 4 != 0 || flags > cuda::wait_nor) return Status::invalid_value;
  if (const auto status = within(address, 4, target.device, place); status != Status::success) return status;
  if (place.device != target.device) return Status::invalid_value;
  return tell(target, StreamWaitValue{target.stream, address, value, flags});
}

Status RemoteDriverImpl::stream_write_value32(cuda::Stream stream, cuda::DevicePtr address,
                                              std::uint32_t value, unsigned flags) {
  const Call call(*this);
  Target target;
  if (const auto status = target_of(stream, target); status != Status::success) return status;
  Place place;
  if (address % 4 != 0 || flags > 1) return Status::invalid_value;
  if (const auto status = within(address, 4, target.device, place); status != Status::success) return status;
  if (place.device != target.device) return Status::invalid_value;
  return tell(target, StreamWriteValue{target.stream, address, value, flags});
}

Status RemoteDriverImpl::launch_host_func(cuda::Stream stream, cuda::HostFn function, void* user) {
  if (function == nullptr) return Status::invalid_value;
  const Call call(*this);
  Target target;
  if (const auto status = target_of(stream, target); status != Status::success) return status;
  auto& lane = target.device->lane;
  const auto id = lane.next_host_function++;
  lane.host_functions.emplace(id, std::pair{function, user});
  const auto status = ask(target, HostFunc{0, target.stream, id});
  if (status != Status::success) lane.host_functions.erase(id);
  return status;
}

EventEntry* RemoteDriverImpl::event_of(cuda::Event event, Target& target) {
  const auto handle = Handle::of(event);
  auto* device = device_of(handle);
  auto* entry = device == nullptr ? nullptr : device->events.get(handle);
  if (entry != nullptr) target = {device, entry->context, 0};
  return entry;
}

Status RemoteDriverImpl::event_create(cuda::Event* event, unsigned flags) {
  if (event == nullptr || flags > 7) return Status::invalid_value;
  if ((flags & cuda::event_interprocess) != 0)
    return (flags & cuda::event_disable_timing) == 0 ? Status::invalid_value : Status::not_supported;
  const Call call(*this);
  Target target;
  if (const auto status = current(target); status != Status::success) return status;
  const auto handle = target.device->events.add({target.context, flags, false});
  *event = handle.as<cuda::Event>();
  return tell(target, EventCreate{handle.index(), flags});
}

Status RemoteDriverImpl::event_destroy(cuda::Event event) {
  const Call call(*this);
  Target target;
  if (event_of(event, target) == nullptr) return Status::invalid_handle;
  const auto handle = Handle::of(event);
  target.device->events.remove(handle);
  return tell(target, EventDestroy{handle.index()});
}

Status RemoteDriverImpl::event_record(cuda::Event event, cuda::Stream stream) {
  const Call call(*this);
  Target target;
  if (const auto status = target_of(stream, target); status != Status::success) return status;
  const auto handle = Handle::of(event);
  auto* entry = target.device->events.get(handle);
  if (entry == nullptr || entry->context != target.context) return Status::invalid_handle;
  entry->recorded = true;
  return tell(target, EventRecord{handle.index(), target.stream});
}

Status RemoteDriverImpl::event_query(cuda::Event event) {
  const Call call(*this);
  Target target;
  const auto* entry = event_of(event, target);
  if (entry == nullptr) return Status::invalid_handle;
  if (const auto status = well(*target.device, target.context); status != Status::success) return status;
  if (!entry->recorded) return Status::success;
  return synchronize(target, EventQuery{0, Handle::of(event).index()});
}

Status RemoteDriverImpl::event_synchronize(cuda::Event event) {
  const Call call(*this);
  Target target;
  const auto* entry = event_of(event, target);
  if (entry == nullptr) return Status::invalid_handle;
  if (const auto status = well(*target.device, target.context); status != Status::success) return status;
  if (!entry->recorded) return Status::success;
  return synchronize(target, EventSync{0, Handle::of(event).index()});
}

Status RemoteDriverImpl::event_elapsed_time(float* ms, cuda::Event start, cuda::Event end) {
  if (ms == nullptr) return Status::invalid_value;
  const Call call(*this);
  const auto first = Handle::of(start), second = Handle::of(end);
  auto* device = device_of(first);
  const auto* from = device == nullptr ? nullptr : device->events.get(first);
  const auto* to = device == nullptr ? nullptr : device->events.get(second);
  if (from == nullptr || to == nullptr || !from->recorded || !to->recorded) return Status::invalid_handle;
  if (((from->flags | to->flags) & cuda::event_disable_timing) != 0) return Status::invalid_handle;
  const Target target{device, from->context, 0};
  if (const auto status = well(*device, target.context); status != Status::success) return status;
  Reply reply;
  const auto status = ask(target, EventElapsed{0, first.index(), second.index()}, &reply);
  if (status == Status::success) *ms = std::bit_cast<float>(static_cast<std::uint32_t>(reply.a));
  return status;
}

}  // namespace cenote::pool::remote
