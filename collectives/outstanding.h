// Outstanding: the puts, gets and signals of one rank that are in flight, each in a slot of a table that is
// made once: nothing is allocated on their way. They end in any order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/deadline.h"
#include "runtime/ledger.h"

namespace cenote::collectives {

class Outstanding {
 public:
  static constexpr std::uint32_t capacity = 1024;

  /// Ids have this bit, so that they are told from the sequence numbers of collectives, and from the tags
  /// that a link gives its chunks.
  static constexpr std::uint64_t mark = std::uint64_t{1} << 63;
  static constexpr bool marked(std::uint64_t id) { return (id & mark) != 0; }

  enum class Kind : std::uint8_t { put, get, signal };
  struct Operation {
    std::uint64_t id = 0;  ///< 0 = a free slot
    Kind kind = Kind::put;
    bool done = false;
    std::uint32_t rank = 0;
    std::uint64_t offset = 0, bytes = 0;
    Clock::time_point started{};
    Clock::time_point deadline{};
    Ledger::Ticket ticket{};  ///< once it has been waited for
  };

  /// Its slot, with an id; nullptr when all are taken.
  Operation* begin() {
    if (slots_.empty()) fill();
    if (free_.empty()) return nullptr;
    auto& slot = slots_[free_.back()];
    slot = {};
    slot.id = mark | (++made_ * capacity + free_.back());
    free_.pop_back();
    return &slot;
  }
  /// Nullptr when it has ended, or never was.
  Operation* find(std::uint64_t id) {
    if (slots_.empty()) return nullptr;
    auto& slot = slots_[id % capacity];
    return slot.id == id ? &slot : nullptr;
  }
  [[nodiscard]] bool was_begun(std::uint64_t id) const {
    const auto number = (id & ~mark) / capacity;
    return number > 0 && number <= made_;
  }
  void end(Operation& operation) {
    operation.id = 0;
    free_.push_back(static_cast<std::uint32_t>(&operation - slots_.data()));
  }
  [[nodiscard]] bool in_flight() const {
    return std::ranges::any_of(slots_, [](const auto& slot) { return slot.id != 0 && !slot.done; });
  }
  /// The oldest that is not done and goes to `rank`.
  [[nodiscard]] const Operation* oldest_to(std::uint32_t rank) const {
    const Operation* oldest = nullptr;
    for (const auto& slot : slots_) {
      if (slot.id == 0 || slot.done || slot.rank != rank) continue;
      if (oldest == nullptr || slot.id < oldest->id) oldest = &slot;
    }
    return oldest;
  }

 private:
  void fill() {
    slots_.resize(capacity);
    free_.reserve(capacity);
    for (auto i = capacity; i > 0; --i) free_.push_back(i - 1);
  }

  std::vector<Operation> slots_;
  std::vector<std::uint32_t> free_;
  std::uint64_t made_ = 0;
};

}  // namespace cenote::collectives
