#include "transports/verbs/pinned.h"

#include <cstring>
#include <thread>

namespace cenote::transport::verbs {

Result<std::shared_ptr<Pinned>> Pinned::open(const Registrations& registrations,
                                             std::shared_ptr<const DeviceAccess> access) {
  std::shared_ptr<Pinned> made(new Pinned(std::move(access)));
  CENOTE_ASSIGN(made->copies_, made->access_->open_copies(std::size_t{2} * slots * size));
  const auto memory = made->copies_->pinned();
  CENOTE_ASSIGN(made->registered_, registrations.make(memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE));
  for (std::uint32_t i = 0; i < slots; ++i) made->free_.push_back(i);
  made->landing_.resize(slots);
  return made;
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
  CENOTE_ASSIGN(const std::uint64_t finished, copies_->finished());
  return copy <= finished;
}

void Pinned::finish_all() {
  for (;;) {
    const auto done = is_done(latest_);
    if (!done || *done) return;
    std::this_thread::yield();
  }
}

}  // namespace cenote::transport::verbs
