// A lane's streams and events. A synchronisation is a fence in each stream that it concerns; the answer
// leaves when they have fired.
#include <algorithm>
#include <bit>

#include "pool/remote/worker_lane_inl.h"

namespace cenote::pool::remote {

using cuda::Status;

namespace {
constexpr std::uint32_t named_streams = 3;  // default, legacy, per thread
}

bool WorkerLane::find_stream(std::uint32_t wire, cuda::Stream& stream, std::uint32_t& context) {
  if (wire < named_streams) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): CUDA's handles of these streams are the numbers 0, 1 and 2
    stream = reinterpret_cast<cuda::Stream>(static_cast<std::uintptr_t>(wire));
    context = context_;
    return true;
  }
  const auto* slot = live_slot(streams_, wire);
  if (slot == nullptr || slot->handle == nullptr) return false;
  stream = slot->handle;
  context = slot->context;
  return true;
}

WorkerLane::EventSlot* WorkerLane::find_event(std::uint32_t index) {
  auto* slot = live_slot(events_, index);
  return slot == nullptr || slot->handle == nullptr ? nullptr : slot;
}

Result<void> WorkerLane::on(const StreamCreate& c) {
  auto* slot = c.stream < named_streams ? nullptr : make_slot(streams_, c.stream);
  if (slot == nullptr)
    return tell_error(context_, Status::invalid_value, "stream number in use, or too many streams");
  *slot = {nullptr, context_, true};
  auto status = enter(context_);
  if (status == Status::success) status = shared_.driver.stream_create(&slot->handle, c.flags);
  if (status != Status::success) slot->handle = nullptr;
  return check(status);
}

Result<void> WorkerLane::on(const StreamDestroy& c) {
  auto* slot = c.stream < named_streams ? nullptr : live_slot(streams_, c.stream);
  if (slot == nullptr) return tell_error(context_, Status::invalid_handle, "no such stream");
  const auto gone = *slot;
  *slot = {};
  if (gone.handle == nullptr) return {};
  const bool watched = std::any_of(fences_live_.begin(), fences_live_.end(),
                                   [&](const Fence* fence) { return fence->stream == gone.handle; });
  if (watched) {
    doomed_streams_.emplace_back(gone.handle, gone.context);  // its fences look at it until they fire
    return {};
  }
  auto status = enter(gone.context);
  if (status == Status::success) status = shared_.driver.stream_destroy(gone.handle);
  return check(status);
}

Result<void> WorkerLane::on(const StreamSync& c) {
  cuda::Stream stream = nullptr;
  std::uint32_t context = 0;
  if (!find_stream(c.stream, stream, context))
    return answer_text(c.request, Status::invalid_handle, 0, 0, "no such stream");
  Waiter waiter;
  waiter.request = c.request;
  waiter.context = context;
  if (enter(context) == Status::success) {
    if (auto* fence = place_fence(stream, c.stream, context)) waiter.fences.push_back(fence);
  }
  waiters_.push_back(std::move(waiter));
  return {};
}

Result<void> WorkerLane::on(const CtxSync& c) {
  Waiter waiter;
  waiter.request = c.request;
  waiter.context = context_;
  waiter.fences = fence_all(false);
  waiters_.push_back(std::move(waiter));
  return {};
}

Result<void> WorkerLane::on(const StreamQuery& c) {
  cuda::Stream stream = nullptr;
  std::uint32_t context = 0;
  if (!find_stream(c.stream, stream, context))
    return answer_text(c.request, Status::invalid_handle, 0, 0, "no such stream");
  auto status = enter(context);
  if (status == Status::success) status = shared_.driver.stream_query(stream);
  if (status == Status::not_ready) {
    // Perhaps only a fence of our own is left in it.
    const auto& work = work_of(c.stream);
    const bool done = std::any_of(fences_live_.begin(), fences_live_.end(), [&](const Fence* fence) {
      return fence->stream == stream && fence->context == context && fence->fired.load() &&
             fence->mark >= work.last;
    });
    if (work.context == context && (done || work.done >= work.last)) status = Status::success;
  }
  if (status == Status::success) {
    // Finished for the device; for the client only once everything it asked for has left.
    Waiter waiter;
    waiter.request = c.request;
    waiter.context = context;
    waiters_.push_back(std::move(waiter));
    return {};
  }
  return answer(c.request, status);
}

Result<void> WorkerLane::on(const StreamWaitEvent& c) {
  if (c.lane >= shared_.lanes.size())
    return fail(ErrorCode::protocol_error, "wait for event", "no such lane");
  const auto* event = shared_.lanes[c.lane]->find_event(c.event);
  if (event == nullptr) return tell_error(context_, Status::invalid_handle, "wait for event: no such event");
  return in_stream(c.stream, "wait for event", [&](cuda::Stream stream) {
    return shared_.driver.stream_wait_event(stream, event->handle, 0);
  });
}

Result<void> WorkerLane::on(const StreamWaitValue& c) {
  if (!covers(c.address, 4))
    return tell_error(context_, Status::invalid_value, "wait for value: no memory there");
  return in_stream(c.stream, "wait for value", [&](cuda::Stream stream) {
    return shared_.driver.stream_wait_value32(stream, c.address, c.value, c.flags);
  });
}

Result<void> WorkerLane::on(const StreamWriteValue& c) {
  if (!covers(c.address, 4))
    return tell_error(context_, Status::invalid_value, "write value: no memory there");
  return in_stream(c.stream, "write value", [&](cuda::Stream stream) {
    return shared_.driver.stream_write_value32(stream, c.address, c.value, c.flags);
  });
}

// The client's function runs in the client. The stream announces it by a fence and waits for a word, which is
// written when the client says that the function has returned.
Result<void> WorkerLane::on(const HostFunc& c) {
  cuda::Stream stream = nullptr;
  std::uint32_t context = 0;
  if (!find_stream(c.stream, stream, context))
    return answer_text(c.request, Status::invalid_handle, 0, 0, "no such stream");
  auto status = enter(context);
  if (status != Status::success) return answer(c.request, status);
  const auto word = take_word();
  if (!word) return answer_text(c.request, Status::out_of_memory, 0, 0, "too many host functions in flight");
  Fence* const fence = place_fence(stream, c.stream, context);
  status = fence == nullptr ? context_status(context)
                            : shared_.driver.stream_wait_value32(stream, words_ + 4 * *word,
                                                                 word_values_[*word], cuda::wait_geq);
  if (fence == nullptr || status != Status::success) {
    free_words_.push_back(*word);
    return answer(c.request, status == Status::success ? Status::unknown : status);
  }
  worked(stream, c.stream, context);
  host_waits_.push_back({fence, c.id, *word});
  return answer(c.request, Status::success);
}

void WorkerLane::poll_host_waits() {
  for (auto wait = host_waits_.begin(); wait != host_waits_.end();) {
    if (!wait->fence->done() || !can_answer()) {
      ++wait;
      continue;
    }
    if (wait->fence->failed) {
      free_words_.push_back(wait->word);  // a lost context runs no host function
    } else {
      host_calls_.emplace(wait->id, wait->word);
      (void)say(HostCall{wait->id});  // can_answer() held
    }
    retire(wait->fence);
    wait = host_waits_.erase(wait);
  }
}

void WorkerLane::host_function_done(std::uint64_t id) {
  const auto found = host_calls_.find(id);
  if (found == host_calls_.end()) return;  // its context was reset while it ran: nothing waits for it
  const auto word = found->second;
  host_calls_.erase(found);
  free_words_.push_back(word);
  // A context that was lost meanwhile is told of by whatever the client asks of it next.
  if (enter(0) == Status::success)
    shared_.driver.stream_write_value32(control_, words_ + 4 * word, word_values_[word], 0);
}

Result<void> WorkerLane::on(const EventCreate& c) {
  auto* slot = make_slot(events_, c.event);
  if (slot == nullptr)
    return tell_error(context_, Status::invalid_value, "event number in use, or too many events");
  *slot = {nullptr, context_, true};
  auto status = enter(context_);
  if (status == Status::success) status = shared_.driver.event_create(&slot->handle, c.flags);
  if (status != Status::success) slot->handle = nullptr;
  return check(status);
}

Result<void> WorkerLane::on(const EventDestroy& c) {
  auto* slot = live_slot(events_, c.event);
  if (slot == nullptr) return tell_error(context_, Status::invalid_handle, "no such event");
  const auto gone = *slot;
  *slot = {};
  for (auto& waiter : waiters_) {
    if (waiter.event == gone.handle) waiter.event = nullptr;  // somebody still waits: it counts as happened
  }
  if (gone.handle == nullptr) return {};
  auto status = enter(gone.context);
  if (status == Status::success) status = shared_.driver.event_destroy(gone.handle);
  return check(status);
}

Result<void> WorkerLane::on(const EventRecord& c) {
  const auto* event = find_event(c.event);
  if (event == nullptr) return tell_error(context_, Status::invalid_handle, "record event: no such event");
  return in_stream(c.stream, "record event",
                   [&](cuda::Stream stream) { return shared_.driver.event_record(event->handle, stream); });
}

Result<void> WorkerLane::on(const EventSync& c) {
  const auto* event = find_event(c.event);
  if (event == nullptr) return answer_text(c.request, Status::invalid_handle, 0, 0, "no such event");
  Waiter waiter;
  waiter.request = c.request;
  waiter.context = event->context;
  waiter.event = event->handle;
  waiters_.push_back(std::move(waiter));
  return {};
}

Result<void> WorkerLane::on(const EventQuery& c) {
  const auto* event = find_event(c.event);
  if (event == nullptr) return answer_text(c.request, Status::invalid_handle, 0, 0, "no such event");
  auto status = enter(event->context);
  if (status == Status::success) status = shared_.driver.event_query(event->handle);
  if (status != Status::success) return answer(c.request, status);
  Waiter waiter;
  waiter.request = c.request;
  waiter.context = event->context;
  waiters_.push_back(std::move(waiter));
  return {};
}

Result<void> WorkerLane::on(const EventElapsed& c) {
  const auto* start = find_event(c.start);
  const auto* end = find_event(c.end);
  if (start == nullptr || end == nullptr)
    return answer_text(c.request, Status::invalid_handle, 0, 0, "no such event");
  float ms = 0;
  auto status = enter(start->context);
  if (status == Status::success) status = shared_.driver.event_elapsed_time(&ms, start->handle, end->handle);
  return answer(c.request, status, std::bit_cast<std::uint32_t>(ms), 0);
}

}  // namespace cenote::pool::remote
