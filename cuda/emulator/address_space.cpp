#include "cuda/emulator/address_space.h"

#include <iterator>
#include <mutex>

namespace cenote::cuda::emulator {
namespace {

bool may_touch(const Region& region, int device, std::uint64_t devices) {
  switch (region.kind) {
    case RegionKind::pinned:
      return true;
    case RegionKind::mapped:
      return (region.access >> device & 1) != 0;
    case RegionKind::heap:
    case RegionKind::ipc:
      return (devices >> region.device & 1) != 0;
  }
  return false;
}

}  // namespace

bool AddressSpace::insert(Region region) {
  std::lock_guard lock(mutex_);
  auto next = regions_.lower_bound(region.begin);
  if (next != regions_.end() && next->second.begin < region.end()) return false;
  if (next != regions_.begin() && std::prev(next)->second.end() > region.begin) return false;
  regions_.emplace_hint(next, region.begin, std::move(region));
  generation_.fetch_add(1, std::memory_order_release);
  return true;
}

std::optional<Region> AddressSpace::find(DevicePtr address) const {
  std::shared_lock lock(mutex_);
  std::optional<Region> found;
  walk(address, 1, [&](const Region& region, DevicePtr, std::size_t) { found = region; });
  return found;
}

bool AddressSpace::touches(DevicePtr begin, std::size_t bytes) const {
  std::shared_lock lock(mutex_);
  auto next = regions_.lower_bound(begin);
  if (next != regions_.end() && next->second.begin - begin < bytes) return true;
  return next != regions_.begin() && std::prev(next)->second.end() > begin;
}

bool AddressSpace::allow(DevicePtr begin, std::size_t bytes, int device) {
  std::lock_guard lock(mutex_);
  bool mapped = true;
  if (!walk(begin, bytes, [&](const Region& region, DevicePtr at, std::size_t) {
        mapped = mapped && region.kind == RegionKind::mapped && at == region.begin;
      })) {
    return false;
  }
  if (!mapped) return false;
  for (auto it = regions_.find(begin); it != regions_.end() && it->second.begin < begin + bytes; ++it) {
    it->second.access |= std::uint64_t{1} << device;
  }
  generation_.fetch_add(1, std::memory_order_release);
  return true;
}

std::vector<Piece> AddressSpace::resolve(DevicePtr begin, std::size_t bytes) const {
  std::vector<Piece> pieces;
  bool reachable = true;
  std::shared_lock lock(mutex_);
  const bool whole = walk(begin, bytes, [&](const Region& region, DevicePtr at, std::size_t here) {
    // An overrun from one allocation into the next is one, even where they touch.
    if (region.kind == RegionKind::mapped) reachable = reachable && region.access != 0;
    if (region.kind != RegionKind::mapped && here != bytes) reachable = false;
    pieces.push_back({region.host + (at - region.begin), here, region.keep});
  });
  if (!whole || !reachable) pieces.clear();
  return pieces;
}

bool AddressSpace::pinned(const void* pointer, std::size_t bytes) const {
  return covered(reinterpret_cast<DevicePtr>(pointer), bytes,
                 [](const Region& region) { return region.kind == RegionKind::pinned; });
}

std::shared_ptr<const View> AddressSpace::view(int device, std::uint64_t devices,
                                               std::shared_ptr<const View> last) const {
  if (last != nullptr && last->devices == devices &&
      last->generation == generation_.load(std::memory_order_acquire)) {
    return last;
  }
  auto fresh = std::make_shared<View>();
  std::shared_lock lock(mutex_);
  fresh->generation = generation_.load(std::memory_order_acquire);
  fresh->devices = devices;
  fresh->ranges.reserve(regions_.size());
  for (const auto& [begin, region] : regions_) {
    if (!may_touch(region, device, devices)) continue;
    fresh->ranges.push_back({begin, region.size, region.host, true});
    if (region.keep != nullptr) fresh->keep.push_back(region.keep);
  }
  return fresh;
}

}  // namespace cenote::cuda::emulator
