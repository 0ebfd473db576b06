#include "transports/verbs/registration.h"

#include <algorithm>

namespace cenote::transport::verbs {

Result<std::unique_ptr<Registered>> Registrations::make(void* data, std::size_t bytes,
                                                        unsigned access) const {
  auto made = std::make_unique<Registered>();
  made->data = static_cast<std::byte*>(data);
  made->size = bytes;
  made->regions.reserve(nics_.size());
  for (const auto& nic : nics_) {
    // A right that a card does not have would make it refuse the memory.
    const unsigned rights =
        nic->port.atomics ? access : access & ~static_cast<unsigned>(IBV_ACCESS_REMOTE_ATOMIC);
    CENOTE_ASSIGN(Mr mr, nic->register_memory(data, std::max<std::size_t>(bytes, 1), rights));
    made->regions.push_back(std::move(mr));
  }
  return made;
}

void Registrations::remove(const Registered* registered) {
  if (latest_ == registered) latest_ = nullptr;
  auto [from, to] = by_address_.equal_range(registered->data);
  const auto found =
      std::find_if(from, to, [registered](const auto& entry) { return entry.second == registered; });
  if (found != to) by_address_.erase(found);
}

// Regions may overlap, so one that begins further down may still reach up to `at`.
const Registered* Registrations::search(const void* at, std::size_t bytes) {
  auto after = by_address_.upper_bound(static_cast<const std::byte*>(at));
  while (after != by_address_.begin()) {
    --after;
    if (after->second->holds(at, bytes)) return latest_ = after->second;
  }
  return nullptr;
}

Result<void> Blocks::open(const Registrations& registrations, std::uint32_t count) {
  memory_.resize(count * size);
  CENOTE_ASSIGN(registered_, registrations.make(memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE));
  free_.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) free_.push_back(i);
  return {};
}

}  // namespace cenote::transport::verbs
