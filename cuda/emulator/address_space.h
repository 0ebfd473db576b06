// AddressSpace: which device addresses mean memory, where that memory lies on the host, and who may touch it.
// One for each driver, because CUDA's addresses are unified over its devices.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "cuda/driver.h"
#include "cuda/emulator/launch.h"

namespace cenote::cuda::emulator {

enum class RegionKind : std::uint8_t {
  heap,    ///< mem_alloc and module globals
  mapped,  ///< mem_map
  ipc,     ///< another process's memory
  pinned,  ///< host memory that devices reach: its device address is its host address
};

struct Region {
  DevicePtr begin = 0;
  std::size_t size = 0;
  std::byte* host = nullptr;
  RegionKind kind = RegionKind::heap;
  int device = -1;               ///< -1: host memory
  std::uint64_t context = 0;     ///< id of the owner; 0 = none (mapped)
  std::uint64_t access = 0;      ///< mapped: one bit for each device that mem_set_access allowed
  bool module = false;           ///< a module's variable: not for mem_free
  bool registered = false;       ///< pinned: by mem_host_register
  AllocationHandle handle = 0;   ///< mapped
  std::shared_ptr<void> keep{};  ///< keeps the host side mapped, where the heap does not
  [[nodiscard]] DevicePtr end() const { return begin + size; }
};

/// Host side of a piece of device memory.
struct Piece {
  std::byte* host = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<void> keep{};
};

/// What the kernels of one context may touch, at one moment.
struct View {
  std::uint64_t generation = 0;
  std::uint64_t devices = 0;
  std::vector<MemoryRange> ranges;
  std::vector<std::shared_ptr<void>> keep;
};

/// Thread-safe.
class AddressSpace {
 public:
  /// False when it would overlap another region.
  bool insert(Region region);
  /// The region that starts at `begin`, if `condition(region)`; it is gone afterwards.
  template <class Condition>
  std::optional<Region> remove(DevicePtr begin, Condition condition) {
    std::lock_guard lock(mutex_);
    auto it = regions_.find(begin);
    if (it == regions_.end() || !condition(it->second)) return std::nullopt;
    auto region = std::move(it->second);
    regions_.erase(it);
    generation_.fetch_add(1, std::memory_order_release);
    return region;
  }
  /// Removes and returns all regions that `condition` is true for.
  template <class Condition>
  std::vector<Region> remove_all(Condition condition) {
    std::vector<Region> gone;
    std::lock_guard lock(mutex_);
    for (auto it = regions_.begin(); it != regions_.end();) {
      if (condition(it->second)) {
        gone.push_back(std::move(it->second));
        it = regions_.erase(it);
      } else {
        ++it;
      }
    }
    generation_.fetch_add(1, std::memory_order_release);
    return gone;
  }
  /// The region that holds `address`.
  [[nodiscard]] std::optional<Region> find(DevicePtr address) const;
  /// Whether [begin, begin + bytes) is covered without holes by regions that `condition` is true for.
  template <class Condition>
  [[nodiscard]] bool covered(DevicePtr begin, std::size_t bytes, Condition condition) const {
    std::shared_lock lock(mutex_);
    bool good = true;
    return walk(begin, bytes,
                [&](const Region& region, DevicePtr, std::size_t) { good = good && condition(region); }) &&
           good;
  }
  /// Whether anything lies in [begin, begin + bytes).
  [[nodiscard]] bool touches(DevicePtr begin, std::size_t bytes) const;
  /// Lets `device` touch the mapped regions in the range. False when it is not all mapped.
  bool allow(DevicePtr begin, std::size_t bytes, int device);

  /// Host side of [begin, begin + bytes): empty when part of it is no memory, or mapped without access.
  /// Several pieces only where several mappings lie side by side.
  [[nodiscard]] std::vector<Piece> resolve(DevicePtr begin, std::size_t bytes) const;
  /// Whether all of it is pinned host memory.
  [[nodiscard]] bool pinned(const void* pointer, std::size_t bytes) const;

  /// What a context on `device` with the peers in `devices` (one bit each, its own included) may touch.
  /// Returns `last` itself while nothing has changed.
  [[nodiscard]] std::shared_ptr<const View> view(int device, std::uint64_t devices,
                                                 std::shared_ptr<const View> last) const;

 private:
  template <class Each>
  bool walk(DevicePtr begin, std::size_t bytes, Each each) const {
    if (bytes > ~std::uint64_t{0} - begin) return false;
    auto it = regions_.upper_bound(begin);
    if (it == regions_.begin()) return false;
    --it;
    while (true) {
      if (it == regions_.end() || begin < it->second.begin || begin >= it->second.end()) return false;
      const auto here = std::min<std::uint64_t>(bytes, it->second.end() - begin);
      each(it->second, begin, here);
      begin += here;
      bytes -= here;
      if (bytes == 0) return true;
      ++it;
    }
  }

  mutable std::shared_mutex mutex_;
  std::map<DevicePtr, Region> regions_;
  std::atomic<std::uint64_t> generation_{1};
};

}  // namespace cenote::cuda::emulator
