#include "pool/remote/address_space.h"

#include <algorithm>

namespace cenote::pool::remote {
namespace {

constexpr std::uint64_t unit = 512;  // alignment of small allocations, as cuMemAlloc's

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) & ~(to - 1); }

void merge(std::map<std::uint64_t, std::uint64_t>& holes, std::uint64_t at, std::uint64_t bytes) {
  auto next = holes.lower_bound(at);
  if (next != holes.end() && at + bytes == next->first) {
    bytes += next->second;
    next = holes.erase(next);
  }
  if (next != holes.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == at) {
      before->second += bytes;
      return;
    }
  }
  holes.emplace(at, bytes);
}

void cut(std::map<std::uint64_t, std::uint64_t>& holes, std::map<std::uint64_t, std::uint64_t>::iterator hole,
         std::uint64_t at, std::uint64_t bytes) {
  const auto [begin, size] = *hole;
  holes.erase(hole);
  if (at > begin) holes.emplace(begin, at - begin);
  if (at + bytes < begin + size) holes.emplace(at + bytes, begin + size - at - bytes);
}

}  // namespace

AddressSpace::AddressSpace(std::uint64_t base, std::uint64_t bytes, std::uint64_t granularity)
    : base_(base), bytes_(bytes), granule_(granularity), cursor_(base) {
  holes_.emplace(base, bytes);
}

std::optional<std::uint64_t> AddressSpace::take(std::uint64_t bytes, std::uint64_t alignment,
                                                std::uint64_t hint) {
  const auto fits = [&](auto hole, std::uint64_t from) -> std::optional<std::uint64_t> {
    const auto at = round_up(std::max(hole->first, from), alignment);
    if (at < from || at - hole->first > hole->second || hole->second - (at - hole->first) < bytes)
      return std::nullopt;
    return at;
  };
  // Next fit from the hint or the cursor, so that a freed address is not reused at once; then from the start.
  for (const auto from : {hint != 0 ? hint : cursor_, base_}) {
    auto hole = holes_.upper_bound(from);
    if (hole != holes_.begin()) --hole;
    for (; hole != holes_.end(); ++hole) {
      if (const auto at = fits(hole, from)) {
        cut(holes_, hole, *at, bytes);
        cursor_ = *at + bytes;
        return at;
      }
    }
  }
  return std::nullopt;
}

void AddressSpace::give(std::uint64_t address, std::uint64_t bytes) { merge(holes_, address, bytes); }

std::optional<AddressSpace::Allocation> AddressSpace::allocate(std::uint64_t bytes, std::uint32_t context) {
  if (bytes > bytes_) return std::nullopt;
  if (bytes > granule_ / 2) {
    const auto whole = round_up(bytes, granule_);
    const auto at = take(whole + granule_, granule_, 0);
    if (!at) return std::nullopt;
    mapped_ += whole;
    ranges_[*at] = {*at, bytes, context, false, false};
    return Allocation{*at, {*at, whole}};
  }
  const auto need = round_up(bytes, unit);
  for (auto& [granule, slab] : slabs_) {
    for (auto hole = slab.holes.begin(); hole != slab.holes.end(); ++hole) {
      if (hole->second < need) continue;
      const auto at = granule + hole->first;
      cut(slab.holes, hole, hole->first, need);
      ranges_[at] = {at, bytes, context, true, false};
      return Allocation{at, {}};
    }
  }
  const auto granule = take(2 * granule_, granule_, 0);
  if (!granule) return std::nullopt;
  mapped_ += granule_;
  slabs_[*granule].holes.emplace(need, granule_ - need);
  ranges_[*granule] = {*granule, bytes, context, true, false};
  return Allocation{*granule, {*granule, granule_}};
}

std::optional<std::uint64_t> AddressSpace::reserve(std::uint64_t bytes, std::uint64_t alignment,
                                                   std::uint64_t hint) {
  if (bytes == 0 || bytes > bytes_ || bytes % granule_ != 0) return std::nullopt;
  const auto at = take(bytes, std::max(alignment, granule_), contains(hint) ? hint : 0);
  if (at) ranges_[*at] = {*at, bytes, 0, false, true};
  return at;
}

std::optional<AddressSpace::Piece> AddressSpace::free(std::uint64_t address) {
  const auto found = ranges_.find(address);
  if (found == ranges_.end()) return std::nullopt;
  const Range range = found->second;
  ranges_.erase(found);
  if (range.reserved) {
    give(range.address, range.bytes);
    return Piece{};
  }
  if (!range.shared) {
    const auto whole = round_up(range.bytes, granule_);
    give(range.address, whole + granule_);
    mapped_ -= whole;
    return Piece{range.address, whole};
  }
  const auto granule = base_ + ((address - base_) & ~(granule_ - 1));
  auto& slab = slabs_[granule];
  merge(slab.holes, address - granule, round_up(range.bytes, unit));
  if (slab.holes.begin()->second != granule_) return Piece{};
  slabs_.erase(granule);
  give(granule, 2 * granule_);
  mapped_ -= granule_;
  return Piece{granule, granule_};
}

const AddressSpace::Range* AddressSpace::find(std::uint64_t address) const {
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return nullptr;
  const Range& range = std::prev(after)->second;
  return address - range.address < range.bytes ? &range : nullptr;
}

const AddressSpace::Range* AddressSpace::any_of(std::uint32_t context) const {
  const auto found = std::find_if(ranges_.begin(), ranges_.end(), [context](const auto& entry) {
    return entry.second.context == context && !entry.second.reserved;
  });
  return found == ranges_.end() ? nullptr : &found->second;
}

}  // namespace cenote::pool::remote
