#include "cuda/emulator/context.h"

#include <algorithm>

namespace cenote::cuda::emulator {

ContextState::ContextState(ContextOptions options)
    : options_(options),
      faults_(std::make_shared<FaultState>()),
      peers_(std::uint64_t{1} << options.device),
      legacy_(std::make_shared<StreamQueue>(
          faults_, StreamOptions{true, options.adversarial, options.seed * 1000003})) {}

ContextState::~ContextState() { shutdown(); }

std::shared_ptr<StreamQueue> ContextState::create_stream(bool blocking) {
  std::lock_guard lock(streams_mutex_);
  const auto seed = options_.seed * 1000003 + ++stream_count_;
  // Streams that were destroyed and have run dry are joined here, so that their number stays bounded.
  std::erase_if(streams_, [](const auto& stream) {
    if (!stream->finished()) return false;
    stream->join();
    return true;
  });
  auto stream = std::make_shared<StreamQueue>(faults_, StreamOptions{blocking, options_.adversarial, seed});
  streams_.push_back(stream);
  if (blocking) blocking_streams_.fetch_add(1, std::memory_order_release);
  return stream;
}

std::vector<Mark> ContextState::busy_streams(bool blocking_only) {
  std::vector<Mark> busy;
  std::lock_guard lock(streams_mutex_);
  for (const auto& stream : streams_) {
    const auto last = stream->queued();
    if ((stream->blocking() || !blocking_only) && !stream->reached(last)) busy.push_back({stream, last});
  }
  return busy;
}

std::optional<Mark> ContextState::enqueue(const std::shared_ptr<StreamQueue>& stream, Task task,
                                          std::vector<Mark> after) {
  if (stream == legacy_) {
    if (blocking_streams_.load(std::memory_order_acquire) > 0) {
      auto busy = busy_streams(true);
      after.insert(after.end(), busy.begin(), busy.end());
    }
  } else if (stream->blocking()) {
    const auto last = legacy_->queued();
    if (!legacy_->reached(last)) after.push_back({legacy_, last});
  }
  const auto sequence = stream->enqueue(std::move(task), std::move(after));
  if (sequence == 0) return std::nullopt;
  return Mark{stream, sequence};
}

void ContextState::synchronize(const std::shared_ptr<StreamQueue>& stream) {
  if (stream == legacy_) {
    for (const auto& mark : busy_streams(true)) wait(mark);
  }
  wait({stream, stream->queued()});
}

void ContextState::synchronize() {
  auto marks = busy_streams(false);
  marks.push_back({legacy_, legacy_->queued()});
  for (const auto& mark : marks) wait(mark);
  // Nothing is left in a destroyed stream, so its thread is about to end: nobody else may wait for that any
  // more.
  std::vector<std::shared_ptr<StreamQueue>> ending;
  {
    std::lock_guard lock(streams_mutex_);
    std::erase_if(streams_, [&](const auto& stream) {
      if (!stream->closed() || !stream->idle()) return false;
      ending.push_back(stream);
      return true;
    });
  }
  for (const auto& stream : ending) stream->join();
}

bool ContextState::enable_peer(int device) {
  const auto bit = std::uint64_t{1} << device;
  return (peers_.fetch_or(bit, std::memory_order_acq_rel) & bit) == 0;
}

std::shared_ptr<const View> ContextState::view(const AddressSpace& space) {
  std::lock_guard lock(view_mutex_);
  view_ = space.view(options_.device, peers_.load(std::memory_order_acquire), std::move(view_));
  return view_;
}

void ContextState::drop_view() {
  std::lock_guard lock(view_mutex_);
  view_ = nullptr;
}

void ContextState::shutdown() {
  alive_.store(false, std::memory_order_release);
  faults_->cancel.raise();
  std::vector<std::shared_ptr<StreamQueue>> streams;
  {
    std::lock_guard lock(streams_mutex_);
    streams.swap(streams_);
  }
  streams.push_back(legacy_);
  for (const auto& stream : streams) stream->close();
  for (const auto& stream : streams) stream->join();
}

}  // namespace cenote::cuda::emulator
