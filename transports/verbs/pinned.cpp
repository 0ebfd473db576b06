#include "transports/verbs/pinned.h"

#include <cstring>
#include <thread>

namespace cenote::transport::verbs {

Result<std::shared_ptr<Pinned>> Pinned::open(const Registrations& registrations,
                                             std::shared_ptr<const DeviceAccess> access,
                                             Clock::duration patience) {
  std::shared_ptr<Pinned> made(new Pinned(std::move(access), patience));
  CENOTE_ASSIGN(made->copies_, made->access_->open_copies(std::size_t{2} * slots * size));
  const auto memory = made->copies_->pinned();
  CENOTE_ASSIGN(made->registered_, registrations.make(memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE));
  for (std::uint32_t i = 0; i < slots; ++i) made->free_.push_back(i);
  made->landing_.resize(slots);
  return made;
}

// A device that is stuck may still write into the memory, or never end: both are left to the process.
Pinned::~Pinned() {
  if (stuck_) (void)copies_.release();
}

Result<std::uint64_t> Pinned::noted(Result<std::uint64_t> copy) {
  if (!copy) return copy;
  if (finished_ == latest_) finished_since_ = Clock::now();
  latest_ = *copy;
  return copy;
}

std::uint32_t Pinned::take() {
  if (free_.empty()) return Blocks::none;
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

Result<std::uint64_t> Pinned::land(std::uint64_t device, std::span<const std::byte> bytes) {
  std::uint64_t& latest = landing_[next_landing_];
  for (;;) {
    CENOTE_ASSIGN(const bool done, is_done(latest));
    if (done) break;
    std::this_thread::yield();
  }
  std::byte* const slot = at(slots + next_landing_);
  std::memcpy(slot, bytes.data(), bytes.size());
  CENOTE_ASSIGN(latest, store(device, slot, bytes.size()));
  next_landing_ = (next_landing_ + 1) % slots;
  return latest;
}

Result<bool> Pinned::is_done(std::uint64_t copy) {
  if (stuck_) return fail(*stuck_);
  CENOTE_ASSIGN(const std::uint64_t finished, copies_->finished());
  if (copy <= finished) return true;
  const auto now = Clock::now();
  if (finished != finished_) {
    finished_ = finished;
    finished_since_ = now;
  }
  if (now - finished_since_ < patience_) return false;
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - finished_since_).count();
  stuck_ = Error{ErrorCode::deadline_exceeded, "copy between GPU memory and pinned memory",
                 "the device has finished no copy for " + std::to_string(waited) + " ms, with " +
                     std::to_string(latest_ - finished) + " under way"}
               .on(copies_->home())
               .fix("look at the device: nvidia-smi, dmesg (Xid)");
  return fail(*stuck_);
}

Result<void> Pinned::finish_all() {
  for (;;) {
    CENOTE_ASSIGN(const bool done, is_done(latest_));
    if (done) return {};
    std::this_thread::yield();
  }
}

}  // namespace cenote::transport::verbs
