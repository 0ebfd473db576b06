#include "cuda/emulator/range_allocator.h"

#include <algorithm>
#include <iterator>

namespace cenote::cuda::emulator {

std::optional<std::uint64_t> RangeAllocator::take_from(std::map<std::uint64_t, std::uint64_t>::iterator at,
                                                       std::uint64_t from, std::uint64_t size,
                                                       std::uint64_t align, std::uint64_t gap) {
  const auto [begin, end] = *at;
  const auto start = std::max(begin, from);
  const auto address = (start + gap + align - 1) & ~(align - 1);
  if (address < start || address > end || size > end - address || gap > end - address - size)
    return std::nullopt;
  const auto taken_begin = address - gap;
  const auto taken_end = address + size + gap;
  free_.erase(at);
  if (begin < taken_begin) free_[begin] = taken_begin;
  if (taken_end < end) free_[taken_end] = end;
  cursor_ = taken_end;
  return address;
}

std::optional<std::uint64_t> RangeAllocator::take(std::uint64_t size, std::uint64_t align,
                                                  std::uint64_t gap) {
  auto first = free_.upper_bound(cursor_);
  if (first != free_.begin()) --first;
  for (auto it = first; it != free_.end(); ++it) {
    if (auto address = take_from(it, cursor_, size, align, gap)) return address;
  }
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (auto address = take_from(it, 0, size, align, gap)) return address;
  }
  return std::nullopt;
}

void RangeAllocator::give(std::uint64_t begin, std::uint64_t size, std::uint64_t gap) {
  auto low = begin - gap;
  auto high = begin + size + gap;
  auto next = free_.lower_bound(low);
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->second == low) {
      low = before->first;
      free_.erase(before);
    }
  }
  if (next != free_.end() && next->first == high) {
    high = next->second;
    free_.erase(next);
  }
  free_[low] = high;
}

}  // namespace cenote::cuda::emulator
