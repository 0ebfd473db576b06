// A lane's contexts: made, entered, destroyed with all that was made in them; and what the client asks of the
// device as a whole.
#include <algorithm>
#include <utility>

#include "pool/remote/device_info.h"
#include "pool/remote/worker_lane_inl.h"

namespace cenote::pool::remote {

using cuda::Status;

namespace {
constexpr std::size_t most_contexts = 64;
}  // namespace

Status WorkerLane::enter(std::uint32_t context) {
  const auto found = contexts_.find(context);
  if (found == contexts_.end()) return Status::invalid_context;
  if (shared_.current == found->second) return Status::success;
  const auto status = shared_.driver.ctx_set_current(found->second);
  shared_.current = status == Status::success ? found->second : nullptr;
  return status;
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

Result<void> WorkerLane::on(const LaneWait& c) {
  if (c.lane >= shared_.lanes.size()) return fail(ErrorCode::protocol_error, "wait for lane", "no such lane");
  blocked_ = [other = shared_.lanes[c.lane].get(), c] { return other->commands_done_ >= c.commands; };
  return {};
}

Result<void> WorkerLane::on(const Goodbye&) {
  shared_.goodbye = true;
  return {};
}

}  // namespace cenote::pool::remote
