// HandleTable: objects behind opaque handles that nobody dereferences. A handle carries kind, lane, index and
// a generation, so that a stale or foreign one is an error and not somebody else's object. The index is what
// travels; it is reused, the handle is not.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace cenote::pool::remote {

enum class HandleKind : std::uint8_t { context = 1, stream, event, module, function };

struct Handle {
  std::uint64_t bits = 0;  // kind 60..63, generation 44..59, lane 32..43, index 0..31

  static Handle make(HandleKind kind, std::uint32_t lane, std::uint32_t index, std::uint16_t generation) {
    return {static_cast<std::uint64_t>(kind) << 60 | static_cast<std::uint64_t>(generation) << 44 |
            static_cast<std::uint64_t>(lane & 0xfffU) << 32 | index};
  }
  template <class Pointer>
  static Handle of(Pointer pointer) {
    return {reinterpret_cast<std::uint64_t>(pointer)};
  }
  template <class Pointer>
  [[nodiscard]] Pointer as() const {
    return reinterpret_cast<Pointer>(bits);  // NOLINT(performance-no-int-to-ptr)
  }
  [[nodiscard]] HandleKind kind() const { return static_cast<HandleKind>(bits >> 60); }
  [[nodiscard]] std::uint16_t generation() const { return static_cast<std::uint16_t>(bits >> 44); }
  [[nodiscard]] std::uint32_t lane() const { return static_cast<std::uint32_t>(bits >> 32) & 0xfffU; }
  [[nodiscard]] std::uint32_t index() const { return static_cast<std::uint32_t>(bits); }
};

/// The objects of one kind in one lane. Not thread-safe. Pointers stay valid until the next add().
template <class T>
class HandleTable {
 public:
  HandleTable(HandleKind kind, std::uint32_t lane, std::uint32_t first)
      : kind_(kind), lane_(lane), first_(first) {}

  Handle add(T value) {
    std::uint32_t at;
    if (free_.empty()) {
      at = static_cast<std::uint32_t>(slots_.size());
      slots_.push_back({std::move(value), 1, true});
    } else {
      at = free_.back();
      free_.pop_back();
      slots_[at].value = std::move(value);
      slots_[at].live = true;
    }
    return Handle::make(kind_, lane_, at + first_, slots_[at].generation);
  }
  /// Null for a handle of another kind or lane, or of an object that is gone.
  T* get(Handle handle) {
    const std::uint32_t at = handle.index() - first_;
    if (handle.kind() != kind_ || handle.lane() != lane_ || at >= slots_.size()) return nullptr;
    Slot& slot = slots_[at];
    return slot.live && slot.generation == handle.generation() ? &slot.value : nullptr;
  }
  void remove(Handle handle) {
    if (get(handle) == nullptr) return;
    Slot& slot = slots_[handle.index() - first_];
    slot.live = false;
    ++slot.generation;
    slot.value = T{};
    free_.push_back(handle.index() - first_);
  }
  /// Calls visit(handle, value) for every live object; visit may remove it.
  template <class Visit>
  void each(Visit&& visit) {
    for (std::uint32_t at = 0; at < slots_.size(); ++at) {
      if (slots_[at].live)
        visit(Handle::make(kind_, lane_, at + first_, slots_[at].generation), slots_[at].value);
    }
  }

 private:
  struct Slot {
    T value;
    std::uint16_t generation;
    bool live;
  };
  HandleKind kind_;
  std::uint32_t lane_, first_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
};

}  // namespace cenote::pool::remote
