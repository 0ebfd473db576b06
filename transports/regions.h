// Regions of memory that this process itself reads and writes for its peers, who name them by a key: where no
// card does it (tcp, ucx). What arrives is checked here: the key's token, and the bounds.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "transports/region_key.h"
#include "transports/transport.h"

namespace cenote::transport {

/// Shared by a transport, its endpoints and its regions; lives as long as any of them. Not thread-safe.
class RegionTable : public std::enable_shared_from_this<RegionTable> {
 public:
  /// `owner`: id of the transport.
  explicit RegionTable(std::uint64_t owner) : owner_(owner) {}

  /// Zeroed pages. Errors: invalid_argument (more than an address space), system_error.
  Result<std::unique_ptr<Region>> allocate(std::size_t bytes);
  /// Errors: not_supported (not memory of the CPU).
  Result<std::unique_ptr<Region>> add(const MemoryDescription& memory);

  [[nodiscard]] bool contains(std::uint64_t region) const { return entries_.contains(region); }
  /// The bytes a peer may touch, or null where key, offset or length do not fit.
  [[nodiscard]] std::byte* reach(std::uint64_t region, std::uint64_t token, std::uint64_t offset,
                                 std::uint64_t length) const;
  /// Why reach() found nothing.
  [[nodiscard]] Error misfit(const char* stage, std::uint64_t region, std::uint64_t token) const;

 private:
  class Entered;
  struct Entry {
    RegionKey key;
    std::byte* data = nullptr;
  };
  Result<std::unique_ptr<Region>> enter(std::byte* data, std::size_t bytes, std::size_t owned);

  std::uint64_t owner_;
  std::uint64_t next_ = 1;
  std::unordered_map<std::uint64_t, Entry> entries_;
};

}  // namespace cenote::transport
