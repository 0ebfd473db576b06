// A lane's life: batches in, answers out, and what is waited for in between.
#include "pool/remote/worker_lane.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "pool/remote/worker_lane_inl.h"

namespace cenote::pool::remote {

using cuda::Status;

namespace {
// Fences wake the serving thread; looking at the streams themselves is only for contexts that were lost
// (their host functions never run), and for events, which wake nobody.
constexpr auto lost_context_poll = std::chrono::milliseconds(2);
constexpr auto event_poll = std::chrono::microseconds(200);
constexpr std::size_t most_detail = 1024;
constexpr std::uint32_t no_wire = ~0U;  // a stream that the client has destroyed
// A stream holds at most about their product: well below the 1024 at which CUDA's launches begin to block.
constexpr unsigned checkpoint_every = 128;
constexpr unsigned most_open = 6;
}  // namespace

WorkerLane::WorkerLane(WorkerShared& shared, std::uint32_t index, cuda::DeviceId device,
                       std::uint64_t memory_limit)
    : shared_(shared), index_(index), device_(device), limit_(memory_limit) {}

WorkerLane::~WorkerLane() = default;

void WorkerLane::attach(transport::Endpoint& endpoint, std::span<std::byte> ring,
                        const transport::RemoteKey& client) {
  ring_ = ring;
  pin(ring.data(), ring.size());
  const std::span<std::byte> heads{heads_.get(), ring_slots * ring_head_bytes};
  in_ = std::make_unique<RingReceiver>(endpoint, ring, heads, client,
                                       RingPlace{index_ * ring_bytes, index_, index_});
  out_ = std::make_unique<RingSender>(endpoint, client,
                                      RingPlace{index_ * ring_bytes, max_lanes + index_, max_lanes + index_});
}

// ---- serving

Result<bool> WorkerLane::step() {
  bool moved = poll_fences();
  moved = pass_checkpoints() || moved;
  if (can_answer()) {
    CENOTE_ASSIGN(const bool finished, finish_jobs());
    moved = moved || finished;
    CENOTE_ASSIGN(const bool ran, run_commands());
    moved = moved || ran;
  }
  account_busy();
  release_words();
  release_slots();
  CENOTE_TRY(send_answers());
  CENOTE_TRY(in_->pay());
  return moved;
}

Result<bool> WorkerLane::finish_jobs() {
  // What a synchronisation waited for must reach the client before its answer: first find out which waiters
  // are ready, then look at everything that may have happened before them, and only then answer.
  for (auto& waiter : waiters_) {
    if (waiter.ready) continue;
    if (waiter.event == nullptr) {
      waiter.ready = all_done(waiter.fences);
    } else if (enter(waiter.context) == Status::success) {
      waiter.ready = shared_.driver.event_query(waiter.event) != Status::not_ready;
    } else {
      waiter.ready = true;
    }
  }
  CENOTE_ASSIGN(bool moved, poll_comms());
  poll_host_waits();
  CENOTE_ASSIGN(const bool pumped, pump_downloads());
  moved = moved || pumped;
  const auto before = waiters_.size();
  CENOTE_TRY(answer_waiters());
  return moved || waiters_.size() != before;
}

Result<void> WorkerLane::answer_waiters() {
  const bool held_back = std::any_of(downloads_.begin(), downloads_.end(), [](const auto& job) {
    return !job.chunks.empty() && job.chunks.front().fence->done();
  });
  if (held_back) return {};  // the ring was full: data that is older than the answers goes first
  for (auto waiter = waiters_.begin(); waiter != waiters_.end();) {
    if (!waiter->ready || !can_answer()) {
      ++waiter;
      continue;
    }
    const auto status = context_status(waiter->context);
    CENOTE_TRY(answer(waiter->request, status));
    retire_all(waiter->fences);
    waiter = waiters_.erase(waiter);
  }
  return {};
}

Result<bool> WorkerLane::run_commands() {
  bool moved = false;
  if (blocked_) {
    if (!blocked_()) return false;
    blocked_ = nullptr;
    if (auto after = std::exchange(after_block_, nullptr)) CENOTE_TRY(after());
    moved = true;
  }
  if (!batch_) {
    CENOTE_ASSIGN(batch_, in_->next());
    if (!batch_) return moved;
    rest_ = batch_->commands;
    moved = true;
  }
  CENOTE_TRY(execute_batch());
  return moved;
}

Result<void> WorkerLane::execute_batch() {
  while (!rest_.empty() && !blocked_ && !backed_up() && can_answer()) {
    CENOTE_ASSIGN(const std::size_t size, command_size(rest_));
    const auto command = rest_.first(size);
    rest_ = rest_.subspan(size);
    ++commands_done_;
    CENOTE_TRY(dispatch(command, [this](const auto& decoded) { return on(decoded); }));
    if (shared_.goodbye) return {};
  }
  return rest_.empty() ? end_batch() : Result<void>{};
}

Result<void> WorkerLane::end_batch() {
  SlotUse use;
  use.batch = batch_->number;
  for (std::size_t i = 0; i < uploading_.size(); ++i) {
    const auto& [wire, stream] = uploading_[i];
    if (enter(uploading_context_[i]) != Status::success) continue;
    if (auto* fence = place_fence(stream, wire, uploading_context_[i])) use.fences.push_back(fence);
  }
  uploading_.clear();
  uploading_context_.clear();
  slots_.push_back(std::move(use));
  batch_.reset();
  return {};
}

void WorkerLane::release_slots() {
  while (!slots_.empty() && all_done(slots_.front().fences)) {
    in_->release(slots_.front().batch);
    retire_all(slots_.front().fences);
    slots_.pop_front();
  }
}

// Device time is estimated: from the first work after an idle moment until the stream that got the last of it
// has come to its end.
void WorkerLane::account_busy() {
  if (busy_ != nullptr && busy_->done()) {
    busy_ns_ += static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - busy_from_).count());
    retire(busy_);
    busy_ = nullptr;
  }
  if (busy_ != nullptr || !work_since_) return;
  work_since_ = false;
  if (enter(last_context_) != Status::success) return;
  busy_from_ = Clock::now();
  busy_ = place_fence(last_stream_, last_wire_, last_context_);
}

WorkerLoad::PerDevice WorkerLane::load() const { return {used_.load(), launches_.load(), busy_ns_.load()}; }

Clock::duration WorkerLane::patience() const {
  const bool events =
      std::any_of(waiters_.begin(), waiters_.end(), [](const auto& w) { return w.event != nullptr; });
  if (events) return event_poll;
  if (!fences_live_.empty()) return lost_context_poll;
  return std::chrono::seconds(1);
}

// ---- answers

Result<void> WorkerLane::answer_text(std::uint64_t request, Status status, std::uint64_t a, std::uint64_t b,
                                     std::string_view detail) {
  return say(Answered{request, static_cast<std::int32_t>(status), a, b, detail.substr(0, most_detail)});
}

Result<void> WorkerLane::answer(std::uint64_t request, Status status, std::uint64_t a, std::uint64_t b) {
  return answer_text(request, status, a, b, status == Status::success ? std::string() : detail_of());
}

Result<void> WorkerLane::answer_blob(std::uint64_t request, std::span<const std::byte> blob, Status status) {
  if (blob.size() > ring_bulk_bytes)
    return answer_text(request, Status::unknown, 0, 0, "the answer is too long");
  if (!blob.empty()) {
    CENOTE_ASSIGN(const bool fits, bulk_fits());
    if (!fits)
      return fail(ErrorCode::resource_exhausted, "answer the client", "it does not take its answers");
    std::memcpy(out_->bulk().data(), blob.data(), blob.size());
    auto put = out_->put_bulk(out_->bulk().first(blob.size()), 0);
    for (const auto limit = Deadline::in(std::chrono::seconds(1)); !put;
         put = out_->put_bulk(out_->bulk().first(blob.size()), 0)) {
      if (put.error().code != ErrorCode::resource_exhausted || limit.passed()) return put;
      shared_.fabric.progress();
    }
    out_bulk_ = blob.size();
    CENOTE_TRY(say(DataBulk{request, 0, static_cast<std::uint32_t>(blob.size())}));
  }
  CENOTE_TRY(answer(request, status));
  return send_answers();
}

Result<bool> WorkerLane::bulk_fits() {
  const auto full = [this] {
    return out_bulk_ != 0 || out_head_ + encoded_size(DataBulk{}) > batch_capacity;
  };
  if (full()) CENOTE_TRY(send_answers());
  return out_->room() && !full();
}

Result<void> WorkerLane::tell_error(std::uint32_t context, Status status, std::string_view detail) {
  return say(AsyncError{context, static_cast<std::int32_t>(status), detail.substr(0, most_detail)});
}

Result<void> WorkerLane::check(Status status) {
  if (status == Status::success) return {};
  return tell_error(context_, status, detail_of());
}

Result<void> WorkerLane::send_answers() {
  if (out_head_ == 0) return {};
  if (!out_->room()) return {};
  auto sent = out_->commit(out_head_, out_bulk_);
  if (!sent) {
    if (sent.error().code == ErrorCode::resource_exhausted) return {};
    return sent;
  }
  out_head_ = out_bulk_ = 0;
  return {};
}

// ---- fences

Fence* WorkerLane::place_fence(cuda::Stream stream, std::uint32_t wire, std::uint32_t context) {
  if (fences_free_.empty()) fences_free_.push_back(&fence_store_.emplace_back());
  Fence* const fence = fences_free_.back();
  fence->waker = shared_.waker;
  fence->fired.store(false);
  fence->failed = false;
  fence->stream = stream;
  fence->wire_stream = wire;
  fence->context = context;
  fence->mark = work_;
  // A lost context takes no host functions: whoever waits for it need not.
  if (shared_.driver.launch_host_func(stream, &Fence::fire, fence) != Status::success) return nullptr;
  fences_free_.pop_back();
  fences_live_.push_back(fence);
  queued(stream, wire, context);
  return fence;
}

void WorkerLane::queued(cuda::Stream stream, std::uint32_t wire, std::uint32_t context) {
  if (wire == no_wire || ++work_of(wire).since < checkpoint_every) return;
  work_of(wire).since = 0;
  Fence* const fence = place_fence(stream, wire, context);
  if (fence == nullptr) return;
  checkpoints_.push_back(fence);
  if (++work_of(wire).open == most_open) ++full_streams_;
}

bool WorkerLane::pass_checkpoints() {
  const auto passed = std::erase_if(checkpoints_, [this](Fence* fence) {
    if (!fence->done()) return false;
    if (work_of(fence->wire_stream).open-- == most_open) --full_streams_;
    retire(fence);
    return true;
  });
  return passed != 0;
}

void WorkerLane::retire(Fence* fence) {
  std::erase(fences_live_, fence);
  if (fence->fired.load() && fence->wire_stream != no_wire) {
    auto& work = work_of(fence->wire_stream);
    if (work.context == fence->context) work.done = std::max(work.done, fence->mark);
  }
  if (fence->fired.load()) fences_free_.push_back(fence);
  // A fence whose context was lost is never used again: its host function may still be in the driver's hands.
  for (auto doomed = doomed_streams_.begin(); doomed != doomed_streams_.end();) {
    const bool used = std::any_of(fences_live_.begin(), fences_live_.end(),
                                  [&](const Fence* f) { return f->stream == doomed->first; });
    if (used || enter(doomed->second) != Status::success) {
      ++doomed;
    } else {
      shared_.driver.stream_destroy(doomed->first);
      doomed = doomed_streams_.erase(doomed);
    }
  }
}

void WorkerLane::retire_all(std::vector<Fence*>& fences) {
  for (auto* fence : fences) retire(fence);
  fences.clear();
}

bool WorkerLane::all_done(const std::vector<Fence*>& fences) {
  return std::all_of(fences.begin(), fences.end(), [](const Fence* fence) { return fence->done(); });
}

bool WorkerLane::poll_fences() {
  bool moved =
      std::any_of(fences_live_.begin(), fences_live_.end(), [](const Fence* f) { return f->done(); });
  const auto now = Clock::now();
  if (fences_live_.empty() || now - last_poll_ < lost_context_poll) return moved;
  last_poll_ = now;
  for (auto* fence : fences_live_) {
    if (fence->done() || enter(fence->context) != Status::success) continue;
    const auto status = shared_.driver.stream_query(fence->stream);
    if (status == Status::success || status == Status::not_ready) continue;
    fence->failed = true;
    moved = true;
  }
  return moved;
}

std::vector<Fence*> WorkerLane::fence_all(bool every_context) {
  std::vector<Fence*> fences;
  const auto add = [&](cuda::Stream stream, std::uint32_t wire, std::uint32_t context) {
    if (enter(context) != Status::success) return;
    if (auto* fence = place_fence(stream, wire, context)) fences.push_back(fence);
  };
  for (const auto& [number, context] : contexts_) {
    if (every_context || number == context_) add(nullptr, 0, number);
  }
  for (std::uint32_t i = 0; i < streams_.size(); ++i) {
    const auto& slot = streams_[i];
    if (slot.live && slot.handle != nullptr && (every_context || slot.context == context_))
      add(slot.handle, i, slot.context);
  }
  for (const auto& [stream, context] : doomed_streams_) {
    if (every_context || context == context_) add(stream, no_wire, context);
  }
  return fences;
}

void WorkerLane::drain_then(std::function<Result<void>()> action) {
  blocked_ = [this, fences = fence_all(true)]() mutable {
    if (!all_done(fences)) return false;
    retire_all(fences);
    return true;
  };
  after_block_ = std::move(action);
}

Status WorkerLane::context_status(std::uint32_t context) {
  if (const auto status = enter(context); status != Status::success) return status;
  const auto status = shared_.driver.stream_query(nullptr);
  return status == Status::not_ready ? Status::success : status;
}

}  // namespace cenote::pool::remote
