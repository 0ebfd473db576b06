// AddressSpace: the client's book of one device's address range. Gives out allocations inside it and says
// which pieces the worker must map or unmap for them. Allocations smaller than half a granule share granules;
// larger ones get granules of their own with an unmapped one behind, so that running past the end faults. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace cenote::pool::remote {

class AddressSpace {
 public:
  struct Piece {
    std::uint64_t address = 0, bytes = 0;
  };
  struct Allocation {
    std::uint64_t address = 0;
    Piece map{};  ///< what the worker has to map first; bytes 0 = nothing
  };
  struct Range {
    std::uint64_t address = 0, bytes = 0;
    std::uint32_t context = 0;
    bool shared = false;    ///< in a granule with others
    bool reserved = false;  ///< by mem_address_reserve: holds addresses, not memory
  };

  AddressSpace() = default;
  /// `base` and `bytes` are multiples of `granularity`, a power of two.
  AddressSpace(std::uint64_t base, std::uint64_t bytes, std::uint64_t granularity);

  /// nullopt: no addresses left. `bytes` > 0.
  std::optional<Allocation> allocate(std::uint64_t bytes, std::uint32_t context);
  /// Addresses only, `alignment` a power of two or 0; at `hint` where that is free.
  std::optional<std::uint64_t> reserve(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t hint);
  /// Forgets the allocation or reservation that starts at `address`; returns what the worker has to unmap
  /// (bytes 0 = nothing). nullopt: none starts there.
  std::optional<Piece> free(std::uint64_t address);
  /// Undoes an allocation whose mapping was refused.
  void undo(std::uint64_t address) { free(address); }

  /// The allocation or reservation that contains `address`.
  [[nodiscard]] const Range* find(std::uint64_t address) const;
  [[nodiscard]] bool contains(std::uint64_t address) const { return address - base_ < bytes_; }
  /// Some allocation of `context`, for freeing them all.
  [[nodiscard]] const Range* any_of(std::uint32_t context) const;
  [[nodiscard]] std::uint64_t base() const { return base_; }
  [[nodiscard]] std::uint64_t size() const { return bytes_; }
  /// Bytes that the worker maps for us.
  [[nodiscard]] std::uint64_t mapped() const { return mapped_; }

 private:
  struct Slab {
    std::map<std::uint64_t, std::uint64_t> holes;
  };  // offset in the granule -> bytes

  std::optional<std::uint64_t> take(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t hint);
  void give(std::uint64_t address, std::uint64_t bytes);

  std::uint64_t base_ = 0, bytes_ = 0, granule_ = 1, mapped_ = 0, cursor_ = 0;
  std::map<std::uint64_t, std::uint64_t> holes_;  // address -> bytes, whole granules
  std::map<std::uint64_t, Slab> slabs_;           // by address of the granule
  std::map<std::uint64_t, Range> ranges_;
};

}  // namespace cenote::pool::remote
