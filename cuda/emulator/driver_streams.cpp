// Streams, events, waits for values in memory, host functions.
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "cuda/emulator/driver_state.h"

namespace cenote::cuda::emulator {
namespace {

constexpr std::uintptr_t kLegacy = 1, kPerThread = 2;
constexpr unsigned kWaitFlush = 1u << 30;  // CU_STREAM_WAIT_VALUE_FLUSH
constexpr unsigned kWriteNoBarrier = 1;    // CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER
constexpr unsigned kEventFlags = event_blocking_sync | event_disable_timing | event_interprocess;
constexpr int kSpins = 200;
constexpr std::chrono::microseconds kShortNap{20}, kLongNap{500};

bool holds(std::uint32_t seen, std::uint32_t value, unsigned how) {
  switch (how) {
    case wait_geq:
      return static_cast<std::int32_t>(seen - value) >= 0;
    case wait_eq:
      return seen == value;
    case wait_and:
      return (seen & value) != 0;
    default:
      return ~(seen | value) != 0;
  }
}

std::atomic_ref<std::uint32_t> word_at(const Piece& piece) {
  return std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(piece.host));
}

struct HostFunctionScope {
  explicit HostFunctionScope(const void* driver) { host_function_of() = driver; }
  ~HostFunctionScope() { host_function_of() = nullptr; }
  HostFunctionScope(const HostFunctionScope&) = delete;
  HostFunctionScope& operator=(const HostFunctionScope&) = delete;
};

}  // namespace

ThreadState::~ThreadState() {
  for (const auto& one : default_streams) {
    if (auto queue = one.queue.lock()) queue->close();
  }
}

std::shared_ptr<StreamQueue> ThreadState::default_stream(const std::shared_ptr<ContextState>& context) {
  std::erase_if(default_streams,
                [](const auto& one) { return one.context.expired() || one.queue.expired(); });
  for (const auto& one : default_streams) {
    if (one.context.lock() != context) continue;
    if (auto queue = one.queue.lock()) return queue;
  }
  auto queue = context->create_stream(true);
  default_streams.push_back({context, queue});
  return queue;
}

// Whether what `handle` means may be used now; refuse() has said why when not.
std::optional<StreamState> EmulatedDriver::stream(const Entered& in, Stream handle) const {
  const auto bits = reinterpret_cast<std::uintptr_t>(handle);
  const auto& current = in.thread->contexts.back().state;
  if (bits == 0 || bits == kLegacy) return StreamState{current, current->legacy()};
  if (bits == kPerThread) return StreamState{current, in.thread->default_stream(current)};
  auto found = state_->streams.get(handle);
  if (found == nullptr) {
    refuse(*in.thread, Status::invalid_handle, "no such stream, or it was destroyed");
    return std::nullopt;
  }
  return *found;
}

Status EmulatedDriver::enqueue(const Entered& in, const StreamState& on, Task task, std::vector<Mark> after,
                               std::optional<Mark>* where) {
  auto mark = on.context->enqueue(on.queue, std::move(task), std::move(after));
  if (!mark)
    return refuse(*in.thread, Status::operating_system, "the stream has no thread: none could be started");
  if (where != nullptr) *where = std::move(mark);
  return Status::success;
}

// Afterwards the caller may read what the work has written, and so may a NIC.
Status EmulatedDriver::wait_for(const Entered& in, ContextState& context, const Mark& mark) {
  context.wait(mark);
  state_->rdma.publish();
  const auto status = context.faults().status();
  if (status != Status::success) return refuse(*in.thread, status, context.faults().detail());
  if (!context.alive())
    return refuse(*in.thread, Status::context_is_destroyed, "the context was destroyed meanwhile");
  return Status::success;
}

Status EmulatedDriver::stream_create(Stream* stream, unsigned flags) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (stream == nullptr || (flags & ~unsigned{stream_non_blocking}) != 0) return Status::invalid_value;
  auto state = std::make_shared<StreamState>();
  state->context = in.thread->contexts.back().state;
  state->queue = in.context->create_stream((flags & stream_non_blocking) == 0);
  *stream = state_->streams.put(std::move(state));
  return Status::success;
}

Status EmulatedDriver::stream_destroy(Stream stream) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  auto state = state_->streams.take(stream);
  if (state == nullptr)
    return refuse(*in.thread, Status::invalid_handle, "no such stream, or it was destroyed");
  state->queue->close();  // what is in it still runs
  return Status::success;
}

Status EmulatedDriver::stream_synchronize(Stream handle) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  const auto on = stream(in, handle);
  if (!on) return Status::invalid_handle;
  on->context->synchronize(on->queue);
  return wait_for(in, *on->context, {on->queue, 0});
}

Status EmulatedDriver::stream_query(Stream handle) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  const auto on = stream(in, handle);
  if (!on) return Status::invalid_handle;
  if (!on->queue->idle()) return Status::not_ready;
  return wait_for(in, *on->context, {on->queue, 0});
}

Status EmulatedDriver::stream_wait_event(Stream handle, Event event, unsigned flags) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (flags > 1) return Status::invalid_value;
  const auto on = stream(in, handle);
  if (!on) return Status::invalid_handle;
  const auto state = state_->events.get(event);
  if (state == nullptr)
    return refuse(*in.thread, Status::invalid_handle, "no such event, or it was destroyed");
  const auto record = state->last();
  if (record == nullptr || record->done()) return Status::success;
  return enqueue(in, *on, Task([] {}), {record->mark});
}

Status EmulatedDriver::stream_wait_value32(Stream handle, DevicePtr address, std::uint32_t value,
                                           unsigned flags) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  const auto how = flags & ~kWaitFlush;
  if (how > wait_nor || address % sizeof(value) != 0) return Status::invalid_value;
  const bool flush = (flags & kWaitFlush) != 0;
  if (flush && !device(in.context->device())->model.gpu_direct_rdma) return Status::not_supported;
  auto pieces = state_->space.resolve(address, sizeof(value));
  if (pieces.empty()) return bad_range(in, "wait for a value", address, sizeof(value));
  const auto on = stream(in, handle);
  if (!on) return Status::invalid_handle;
  auto* faults = &on->context->faults();
  return enqueue(in, *on, Task([piece = std::move(pieces[0]), value, how, flush, faults, state = state_] {
                   for (int spins = 0; !faults->cancel.raised() && faults->status() == Status::success;
                        ++spins) {
                     if (flush) state->rdma.flush();
                     if (holds(word_at(piece).load(std::memory_order_acquire), value, how)) return;
                     if (spins < kSpins) {
                       std::this_thread::yield();
                     } else {
                       std::this_thread::sleep_for(spins < 2 * kSpins ? kShortNap : kLongNap);
                     }
                   }
                 }));
}

Status EmulatedDriver::stream_write_value32(Stream handle, DevicePtr address, std::uint32_t value,
                                            unsigned flags) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (flags > kWriteNoBarrier || address % sizeof(value) != 0) return Status::invalid_value;
  auto pieces = state_->space.resolve(address, sizeof(value));
  if (pieces.empty()) return bad_range(in, "write of a value", address, sizeof(value));
  const auto on = stream(in, handle);
  if (!on) return Status::invalid_handle;
  return enqueue(in, *on, Task([piece = std::move(pieces[0]), value, state = state_] {
                   state->rdma.publish();  // who sees the value sees what came before it
                   word_at(piece).store(value, std::memory_order_release);
                   state->rdma.publish();
                 }));
}

Status EmulatedDriver::launch_host_func(Stream handle, HostFn function, void* user) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (function == nullptr) return Status::invalid_value;
  const auto on = stream(in, handle);
  if (!on) return Status::invalid_handle;
  return enqueue(in, *on, Task([function, user, state = state_] {
                   state->rdma.publish();
                   HostFunctionScope scope(state);
                   function(user);
                 }));
}

Status EmulatedDriver::event_create(Event* event, unsigned flags) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (event == nullptr || (flags & ~kEventFlags) != 0) return Status::invalid_value;
  if ((flags & event_interprocess) != 0) {
    if ((flags & event_disable_timing) == 0) return Status::invalid_value;
    return refuse(*in.thread, Status::not_supported,
                  "the emulated driver shares memory between processes, not events");
  }
  *event = state_->events.put(std::make_shared<EventState>(flags, in.context->id()));
  return Status::success;
}

Status EmulatedDriver::event_destroy(Event event) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (state_->events.take(event) == nullptr) {
    return refuse(*in.thread, Status::invalid_handle, "no such event, or it was destroyed");
  }
  return Status::success;
}

Status EmulatedDriver::event_record(Event event, Stream handle) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  const auto on = stream(in, handle);
  if (!on) return Status::invalid_handle;
  const auto state = state_->events.get(event);
  if (state == nullptr)
    return refuse(*in.thread, Status::invalid_handle, "no such event, or it was destroyed");
  if (state->context() != on->context->id()) {
    return refuse(*in.thread, Status::invalid_handle, "event and stream belong to different contexts");
  }
  auto record = std::make_shared<Record>();
  std::optional<Mark> mark;
  const auto status = enqueue(in, *on, Task([record] { record->stamp(); }), {}, &mark);
  if (status != Status::success) return status;
  record->mark = std::move(*mark);
  state->set(std::move(record));
  return Status::success;
}

Status EmulatedDriver::event_query(Event event) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  const auto state = state_->events.get(event);
  if (state == nullptr)
    return refuse(*in.thread, Status::invalid_handle, "no such event, or it was destroyed");
  const auto record = state->last();
  if (record != nullptr && !record->done()) return Status::not_ready;
  state_->rdma.publish();
  return fault_of(in);
}

Status EmulatedDriver::event_synchronize(Event event) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  const auto state = state_->events.get(event);
  if (state == nullptr)
    return refuse(*in.thread, Status::invalid_handle, "no such event, or it was destroyed");
  if (const auto record = state->last()) {
    if (auto owner = context_by_id(state->context())) return wait_for(in, *owner, record->mark);
  }
  return fault_of(in);
}

Status EmulatedDriver::event_elapsed_time(float* ms, Event start, Event end) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (ms == nullptr) return Status::invalid_value;
  const auto first = state_->events.get(start);
  const auto second = state_->events.get(end);
  if (first == nullptr || second == nullptr || !first->timed() || !second->timed())
    return Status::invalid_handle;
  const auto from = first->last();
  const auto to = second->last();
  if (from == nullptr || to == nullptr) {
    return refuse(*in.thread, Status::invalid_handle, "an event that was never recorded has no time");
  }
  if (!from->done() || !to->done()) return Status::not_ready;
  *ms = static_cast<float>(to->time_ns.load(std::memory_order_relaxed) -
                           from->time_ns.load(std::memory_order_relaxed)) *
        1e-6f;
  return Status::success;
}

}  // namespace cenote::cuda::emulator
