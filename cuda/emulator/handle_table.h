// HandleTable: opaque handles to shared objects. A handle is never an address, and one that was given back is
// recognised as such: the slot's generation is part of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

namespace cenote::cuda::emulator {

/// `Handle` is one of the driver table's pointer types, `Tag` tells the tables' handles apart. Thread-safe.
template <class T, class Handle, std::uint8_t Tag>
class HandleTable {
 public:
  Handle put(std::shared_ptr<T> object) {
    std::lock_guard lock(mutex_);
    if (unused_.empty()) {
      unused_.push_back(static_cast<std::uint32_t>(slots_.size()));
      slots_.emplace_back();
    }
    const auto index = unused_.back();
    unused_.pop_back();
    auto& slot = slots_[index];
    slot.object = std::move(object);
    ++slot.generation;
    return encode(index, slot.generation);
  }

  /// Empty when the handle is none of this table's, or was taken.
  [[nodiscard]] std::shared_ptr<T> get(Handle handle) const {
    std::shared_lock lock(mutex_);
    const auto* slot = find(handle);
    return slot != nullptr ? slot->object : nullptr;
  }

  /// The handle means nothing afterwards.
  std::shared_ptr<T> take(Handle handle) {
    std::lock_guard lock(mutex_);
    auto* slot = const_cast<Slot*>(find(handle));
    if (slot == nullptr) return nullptr;
    unused_.push_back(static_cast<std::uint32_t>(slot - slots_.data()));
    return std::exchange(slot->object, nullptr);
  }

  /// Takes every object that `condition` is true for, and returns them.
  template <class Condition>
  std::vector<std::shared_ptr<T>> take_if(Condition condition) {
    std::vector<std::shared_ptr<T>> taken;
    std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].object == nullptr || !condition(*slots_[i].object)) continue;
      taken.push_back(std::exchange(slots_[i].object, nullptr));
      unused_.push_back(static_cast<std::uint32_t>(i));
    }
    return taken;
  }

 private:
  struct Slot {
    std::shared_ptr<T> object;
    std::uint32_t generation = 0;
  };

  static Handle encode(std::uint64_t index, std::uint64_t generation) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a handle is no address
    return reinterpret_cast<Handle>(generation << 32 | index << 8 | Tag);
  }
  const Slot* find(Handle handle) const {
    const auto bits = reinterpret_cast<std::uintptr_t>(handle);
    const auto index = (bits & 0xffffffffu) >> 8;
    if ((bits & 0xff) != Tag || index >= slots_.size()) return nullptr;
    const auto& slot = slots_[index];
    return slot.object != nullptr && slot.generation == bits >> 32 ? &slot : nullptr;
  }

  mutable std::shared_mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> unused_;
};

}  // namespace cenote::cuda::emulator
