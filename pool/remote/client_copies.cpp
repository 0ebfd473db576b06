// Copies and fills of the remote driver. Uploads are on their way when a call returns, and the caller's
// memory is its own again; downloads into pinned memory arrive later, into any other memory before the call
// returns.
#include <algorithm>

#include "pool/remote/client_impl.h"

namespace cenote::pool::remote {

using cuda::Status;

bool RemoteDriverImpl::is_device_address(const void* pointer) const {
  return std::any_of(devices_.begin(), devices_.end(), [&](const auto& device) {
    return device->space.contains(reinterpret_cast<std::uint64_t>(pointer));
  });
}

Status RemoteDriverImpl::upload(cuda::DevicePtr dst, const void* src, std::size_t bytes,
                                const Target& target) {
  if (bytes == 0) return Status::success;
  if (src == nullptr || is_device_address(src)) return Status::invalid_value;
  Place place;
  if (const auto status = within(dst, bytes, target.device, place); status != Status::success) return status;
  const auto* from = static_cast<const std::byte*>(src);
  for (auto& device : devices_) device->lane.settle(from, bytes);
  auto& lane = target.device->lane;
  if (is_pinned(src, bytes) && !lane.host_functions.empty()) {
    // A host function before this copy may be what fills the source.
    lane.flush();
    session_.wait([&] { return lane.lost() || lane.host_functions.empty(); }, "host functions");
  }
  if (place.device == target.device) {
    if (!lane.upload(target.context, target.stream, dst, {from, bytes}))
      return well(*target.device, target.context);
    return Status::success;
  }
  // Memory of another device than the stream's: ordered in the stream by waiting for it.
  Reply reply;
  reply.context = target.context;
  const auto status = lane.ask(reply, StreamSync{0, target.stream});
  if (const auto ended = synchronized(target, reply, status); ended != Status::success) return ended;
  if (!place.device->lane.upload(0, 0, dst, {from, bytes})) return well(*place.device, 0);
  Reply done;
  const Target there{place.device, 0, 0};
  const auto arrived = place.device->lane.ask(done, StreamSync{});
  return synchronized(there, done, arrived);
}

Status RemoteDriverImpl::memcpy_htod(cuda::DevicePtr dst, const void* src, std::size_t bytes) {
  const Call call(*this);
  Target target;
  if (const auto status = current(target); status != Status::success) return status;
  return upload(dst, src, bytes, target);
}

Status RemoteDriverImpl::memcpy_htod_async(cuda::DevicePtr dst, const void* src, std::size_t bytes,
                                           cuda::Stream stream) {
  const Call call(*this);
  Target target;
  if (const auto status = target_of(stream, target); status != Status::success) return status;
  return upload(dst, src, bytes, target);
}

Status RemoteDriverImpl::memcpy_dtoh(void* dst, cuda::DevicePtr src, std::size_t bytes) {
  const Call call(*this);
  Target target;
  if (const auto status = current(target); status != Status::success) return status;
  if (bytes == 0) return Status::success;
  if (dst == nullptr || is_device_address(dst)) return Status::invalid_value;
  Place place;
  if (const auto status = within(src, bytes, target.device, place); status != Status::success) return status;
  if (place.device != target.device) target = {place.device, 0, 0};
  Reply reply;
  reply.context = target.context;
  reply.into = static_cast<std::byte*>(dst);
  reply.room = bytes;
  const auto status = target.device->lane.ask(reply, Download{0, src, bytes, 0});
  return synchronized(target, reply, status);
}

Status RemoteDriverImpl::memcpy_dtoh_async(void* dst, cuda::DevicePtr src, std::size_t bytes,
                                           cuda::Stream stream) {
  const Call call(*this);
  Target target;
  if (const auto status = target_of(stream, target); status != Status::success) return status;
  if (bytes == 0) return Status::success;
  if (dst == nullptr || is_device_address(dst)) return Status::invalid_value;
  Place place;
  if (const auto status = within(src, bytes, target.device, place); status != Status::success) return status;
  if (place.device != target.device) {
    if (&place.device->lane.worker() != &target.device->lane.worker()) return Status::invalid_value;
    order_after(*target.device, *place.device);
  }
  auto reply = std::make_unique<Reply>();
  reply->context = target.context;
  reply->into = static_cast<std::byte*>(dst);
  reply->room = bytes;
  const Download command{0, src, bytes, target.stream};
  if (is_pinned(dst, bytes)) {
    target.device->lane.start_owned(std::move(reply), command);
    return well(*target.device, target.context);
  }
  const auto status = target.device->lane.ask(*reply, command);
  return synchronized(target, *reply, status);
}

void RemoteDriverImpl::order_after(RemoteDevice& later, RemoteDevice& earlier) {
  if (&later == &earlier || !earlier.lane.flush()) return;
  later.lane.issue(0, LaneWait{earlier.lane.index_in_worker(), earlier.lane.counters().commands});
}

Status RemoteDriverImpl::copy_across(cuda::DevicePtr dst, const Place& to, cuda::DevicePtr src,
                                     const Place& from, std::size_t bytes, const Target& target) {
  // Two workers, perhaps on two machines: through this process, in pieces, after what the stream has in
  // flight.
  Reply reply;
  reply.context = target.context;
  const auto before = target.device->lane.ask(reply, StreamSync{0, target.stream});
  if (const auto status = synchronized(target, reply, before); status != Status::success) return status;
  std::vector<std::byte> piece(std::min<std::size_t>(bytes, std::size_t{1} << 20));
  for (std::size_t done = 0; done < bytes; done += piece.size()) {
    piece.resize(std::min(piece.size(), bytes - done));
    Reply data;
    data.into = piece.data();
    data.room = piece.size();
    const auto got = from.device->lane.ask(data, Download{0, src + done, piece.size(), 0});
    if (const auto status = synchronized({from.device, 0, 0}, data, got); status != Status::success)
      return status;
    if (!to.device->lane.upload(0, 0, dst + done, piece)) return well(*to.device, 0);
  }
  Reply arrived;
  const auto after = to.device->lane.ask(arrived, StreamSync{});
  return synchronized({to.device, 0, 0}, arrived, after);
}

Status RemoteDriverImpl::copy(cuda::DevicePtr dst, cuda::DevicePtr src, std::size_t bytes,
                              const Target& target, bool wait) {
  if (bytes == 0) return Status::success;
  Place to, from;
  if (const auto status = within(dst, bytes, target.device, to); status != Status::success) return status;
  if (const auto status = within(src, bytes, target.device, from); status != Status::success) return status;
  auto* const worker = &target.device->lane.worker();
  if (&to.device->lane.worker() != worker || &from.device->lane.worker() != worker)
    return copy_across(dst, to, src, from, bytes, target);
  order_after(*target.device, *to.device);
  order_after(*target.device, *from.device);
  const auto told = tell(target, Copy{dst, src, bytes, target.stream});
  const bool two = to.device != from.device || to.device != target.device;
  if (told != Status::success || !wait || !two) return told;
  Reply reply;
  reply.context = target.context;
  const auto status = target.device->lane.ask(reply, StreamSync{0, target.stream});
  return synchronized(target, reply, status);
}

Status RemoteDriverImpl::memcpy_dtod(cuda::DevicePtr dst, cuda::DevicePtr src, std::size_t bytes) {
  const Call call(*this);
  Target target;
  if (const auto status = current(target); status != Status::success) return status;
  return copy(dst, src, bytes, target, true);
}

Status RemoteDriverImpl::memcpy_dtod_async(cuda::DevicePtr dst, cuda::DevicePtr src, std::size_t bytes,
                                           cuda::Stream stream) {
  const Call call(*this);
  Target target;
  if (const auto status = target_of(stream, target); status != Status::success) return status;
  return copy(dst, src, bytes, target, false);
}

Status RemoteDriverImpl::fill(cuda::DevicePtr dst, std::uint32_t value, std::uint32_t width,
                              std::size_t count, cuda::Stream stream) {
  const Call call(*this);
  Target target;
  if (const auto status = target_of(stream, target); status != Status::success) return status;
  if (count == 0) return Status::success;
  if (dst % width != 0 || count > SIZE_MAX / width) return Status::invalid_value;
  Place place;
  if (const auto status = within(dst, count * width, target.device, place); status != Status::success)
    return status;
  if (&place.device->lane.worker() != &target.device->lane.worker()) {
    target = {place.device, 0, 0};
  } else {
    order_after(*target.device, *place.device);
  }
  return tell(target, Fill{dst, value, width, count, target.stream});
}

Status RemoteDriverImpl::memset_d8(cuda::DevicePtr dst, unsigned char value, std::size_t count) {
  return fill(dst, value, 1, count, nullptr);
}

Status RemoteDriverImpl::memset_d8_async(cuda::DevicePtr dst, unsigned char value, std::size_t count,
                                         cuda::Stream stream) {
  return fill(dst, value, 1, count, stream);
}

Status RemoteDriverImpl::memset_d32_async(cuda::DevicePtr dst, unsigned value, std::size_t count,
                                          cuda::Stream stream) {
  return fill(dst, value, 4, count, stream);
}

}  // namespace cenote::pool::remote
