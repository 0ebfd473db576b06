// Registrations: which memory of this side its cards may touch. Explicit: memory is registered with every
// card when a region is made and released when that region ends; nothing is cached behind anybody's back.
#pragma once

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "transports/verbs/nic.h"

namespace cenote::transport::verbs {

/// What this transport puts into a RemoteKey. A card only checks `rkeys`; the rest is for the peer's own
/// checks and addressing.
struct alignas(16) VerbsKey {
  std::uint64_t owner = 0;                       ///< id of the transport that made the region
  std::uint64_t region = 0;                      ///< counts from 1
  std::array<std::uint32_t, max_ports> rkeys{};  ///< by port of the owner
  std::uint64_t base = 0;                        ///< address there
  std::uint64_t size = 0;

  bool operator==(const VerbsKey& other) const { return same_bytes(&other); }
  /// Whether it is what pack() made.
  [[nodiscard]] bool is(const RemoteKey& key) const {
    return key.size == sizeof *this && same_bytes(key.bytes.data());
  }
  [[nodiscard]] RemoteKey pack() const {
    RemoteKey key;
    std::memcpy(key.bytes.data(), this, sizeof *this);
    key.size = sizeof *this;
    return key;
  }

 private:
  // Without a branch, two words at a time: every put asks. `other` lies anywhere.
  using Words = std::uint64_t __attribute__((vector_size(16)));
  static Words load(const void* from, std::size_t offset) {
    Words words;
    std::memcpy(&words, static_cast<const std::byte*>(from) + offset, sizeof words);
    return words;
  }
  [[nodiscard]] bool same_bytes(const void* other) const {
    const Words differ = (load(this, 0) ^ load(other, 0)) | (load(this, 16) ^ load(other, 16)) |
                         (load(this, 32) ^ load(other, 32)) | (load(this, 48) ^ load(other, 48));
    return (differ[0] | differ[1]) == 0;
  }
};
static_assert(sizeof(VerbsKey) == 64);

class Pinned;

/// One piece of memory, registered with every card, in their order.
struct Registered {
  std::byte* data = nullptr;
  std::size_t size = 0;
  std::vector<Mr> regions;
  std::shared_ptr<const DeviceAccess> device{};  ///< set: memory of a device, which the CPU may not touch
  mutable std::shared_ptr<Pinned> pinned{};      ///< the way of bytes to a device's memory and from it
  /// No card comes to it.
  [[nodiscard]] bool staged() const { return device != nullptr && regions.empty(); }

  [[nodiscard]] bool holds(const void* at, std::size_t bytes) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(data), want = reinterpret_cast<std::uintptr_t>(at);
    return want >= begin && want - begin <= size && bytes <= size - (want - begin);
  }
};

class Registrations {
 public:
  explicit Registrations(const std::vector<std::unique_ptr<Nic>>& nics) : nics_(nics) {}
  /// Errors as Nic::register_memory.
  Result<std::unique_ptr<Registered>> make(void* data, std::size_t bytes, unsigned access) const;
  /// The same, only what the cards know of it.
  Result<std::vector<Mr>> with_every_card(void* data, std::size_t bytes, unsigned access) const;
  /// From then on find() finds it. Several may cover the same bytes.
  void add(const Registered* registered) { by_address_.emplace(registered->data, registered); }
  void remove(const Registered* registered);
  /// One that holds all the bytes, or null.
  [[nodiscard]] const Registered* find(const void* at, std::size_t bytes) {
    if (latest_ != nullptr && latest_->holds(at, bytes)) return latest_;
    return search(at, bytes);
  }

 private:
  const Registered* search(const void* at, std::size_t bytes);

  const std::vector<std::unique_ptr<Nic>>& nics_;
  std::multimap<const std::byte*, const Registered*> by_address_;
  const Registered* latest_ = nullptr;
};

/// Blocks of registered memory for what has to be copied: messages, small payloads from ordinary memory, what
/// is fetched into such memory. Slots of a Pinned are blocks, too, of their own size, and with numbers of
/// their own.
class Blocks {
 public:
  static constexpr std::uint32_t none = ~0U;
  static constexpr std::size_t size = slot_size;
  /// Errors as Nic::register_memory.
  Result<void> open(const Registrations& registrations, std::uint32_t count);
  /// none: all are in use.
  [[nodiscard]] std::uint32_t take() {
    if (free_.empty()) return none;
    const std::uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }
  void give(std::uint32_t index) {
    if (index >= first_pinned) [[unlikely]]
      return give_pinned(index);
    free_.push_back(index);
  }
  [[nodiscard]] std::size_t left() const { return free_.size(); }
  [[nodiscard]] std::byte* at(std::uint32_t index) {
    return index >= first_pinned ? pinned_at(index) : memory_.data() + index * size;
  }
  [[nodiscard]] std::uint32_t lkey(std::size_t nic, std::uint32_t index) const {
    return index >= first_pinned ? pinned_lkey(nic, index) : registered_->regions[nic]->lkey;
  }
  /// Its slots are blocks for as long as it lives.
  void add(const std::shared_ptr<Pinned>& pinned);
  /// A slot of it as a block. none: all are in use.
  [[nodiscard]] static std::uint32_t take(Pinned& pinned);

 private:
  static constexpr std::uint32_t first_pinned = 1U << 30, slot_bits = 8;
  void give_pinned(std::uint32_t index);
  [[nodiscard]] std::byte* pinned_at(std::uint32_t index) const;
  [[nodiscard]] std::uint32_t pinned_lkey(std::size_t nic, std::uint32_t index) const;
  [[nodiscard]] std::shared_ptr<Pinned> pinned_of(std::uint32_t index) const;

  std::vector<std::weak_ptr<Pinned>> pinned_;
  std::vector<std::byte> memory_;
  std::unique_ptr<Registered> registered_;
  std::vector<std::uint32_t> free_;
};

}  // namespace cenote::transport::verbs
