#include "transports/verbs/registration.h"

#include <algorithm>

#include "transports/verbs/pinned.h"

namespace cenote::transport::verbs {

Result<std::unique_ptr<Registered>> Registrations::make(void* data, std::size_t bytes,
                                                        unsigned access) const {
  auto made = std::make_unique<Registered>();
  made->data = static_cast<std::byte*>(data);
  made->size = bytes;
  CENOTE_ASSIGN(made->regions, with_every_card(data, bytes, access));
  return made;
}

Result<std::vector<Mr>> Registrations::with_every_card(void* data, std::size_t bytes, unsigned access) const {
  std::vector<Mr> made;
  made.reserve(nics_.size());
  for (const auto& nic : nics_) {
    CENOTE_ASSIGN(Mr mr, nic->register_memory(data, std::max<std::size_t>(bytes, 1), nic->rights(access)));
    made.push_back(std::move(mr));
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

void Blocks::add(const std::shared_ptr<Pinned>& pinned) {
  const auto room =
      std::find_if(pinned_.begin(), pinned_.end(), [](const auto& old) { return old.expired(); });
  pinned->number = static_cast<std::uint32_t>(room - pinned_.begin());
  if (room == pinned_.end()) {
    pinned_.push_back(pinned);
  } else {
    *room = pinned;
  }
}

std::uint32_t Blocks::take(Pinned& pinned) {
  const std::uint32_t slot = pinned.take();
  return slot == none ? none : first_pinned | (pinned.number << slot_bits) | slot;
}

std::shared_ptr<Pinned> Blocks::pinned_of(std::uint32_t index) const {
  return pinned_[(index & ~first_pinned) >> slot_bits].lock();
}

void Blocks::give_pinned(std::uint32_t index) {
  if (const auto pinned = pinned_of(index)) pinned->give(index & ((1U << slot_bits) - 1));
}

std::byte* Blocks::pinned_at(std::uint32_t index) const {
  const auto pinned = pinned_of(index);
  return pinned ? pinned->at(index & ((1U << slot_bits) - 1)) : nullptr;
}

std::uint32_t Blocks::pinned_lkey(std::size_t nic, std::uint32_t index) const {
  const auto pinned = pinned_of(index);
  return pinned ? pinned->lkey(nic) : 0;
}

Result<void> Blocks::open(const Registrations& registrations, std::uint32_t count) {
  memory_.resize(count * size);
  CENOTE_ASSIGN(registered_, registrations.make(memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE));
  free_.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) free_.push_back(i);
  return {};
}

}  // namespace cenote::transport::verbs
