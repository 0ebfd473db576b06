// RangeAllocator: gives out address ranges of one span, next fit, so that a freed address is not soon reused
// and a use after free meets nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace cenote::cuda::emulator {

/// Not thread-safe.
class RangeAllocator {
 public:
  RangeAllocator(std::uint64_t begin, std::uint64_t end) : cursor_(begin) { free_[begin] = end; }

  /// A range of `size` bytes at a multiple of `align` (a power of two), with at least `gap` bytes before and
  /// behind that belong to nobody. nullopt when no such range is left.
  std::optional<std::uint64_t> take(std::uint64_t size, std::uint64_t align, std::uint64_t gap);
  /// Gives back exactly what take() gave.
  void give(std::uint64_t begin, std::uint64_t size, std::uint64_t gap);

 private:
  std::optional<std::uint64_t> take_from(std::map<std::uint64_t, std::uint64_t>::iterator at,
                                         std::uint64_t from, std::uint64_t size, std::uint64_t align,
                                         std::uint64_t gap);

  std::map<std::uint64_t, std::uint64_t> free_;  // begin -> end
  std::uint64_t cursor_;
};

}  // namespace cenote::cuda::emulator
