// DeviceHeap: the memory of one emulated card. The bytes lie in a memfd (so that another process can open
// them), mapped where only the emulator looks; the addresses that programs see are a reserved range without
// access, so that a CPU that follows one faults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "cuda/emulator/range_allocator.h"
#include "runtime/result.h"

namespace cenote::cuda::emulator {

/// Head of the memfd: which pieces other processes may open. Shared with them, so only plain fields.
struct ExportEntry {
  std::uint8_t secret[16];
  std::uint64_t offset;
  std::uint64_t size;
  std::uint32_t live;
  std::uint32_t unused[7];
};
static_assert(sizeof(ExportEntry) == 64);
inline constexpr std::size_t export_entries = 4096;
inline constexpr std::size_t export_table_bytes = export_entries * sizeof(ExportEntry);

/// Thread-safe.
class DeviceHeap {
 public:
  /// Granularity of the card's accounting, and of mem_create.
  static constexpr std::size_t alignment = 512;
  static constexpr std::size_t large = std::size_t{1} << 20;
  static constexpr std::size_t granularity = std::size_t{2} << 20;

  /// Errors: system_error (memfd, address space).
  static Result<std::unique_ptr<DeviceHeap>> create(std::size_t memory_bytes, std::uint64_t seed);
  ~DeviceHeap();
  DeviceHeap(const DeviceHeap&) = delete;
  DeviceHeap& operator=(const DeviceHeap&) = delete;

  /// Offset of `size` bytes, charged; nullopt: the card is full. The first bytes are filled with garbage, as
  /// memory that was used before. `granular`: aligned and rounded for mem_create.
  std::optional<std::uint64_t> allocate(std::size_t size, bool granular);
  void free(std::uint64_t offset, std::size_t size, bool granular);
  /// Charges memory that has no address (contexts). False: the card is full.
  bool charge(std::size_t bytes);
  void discharge(std::size_t bytes);

  [[nodiscard]] std::byte* host(std::uint64_t offset) const { return host_ + offset; }
  [[nodiscard]] std::uint64_t address(std::uint64_t offset) const { return reserved_ + offset; }
  [[nodiscard]] std::uint64_t offset_of(const std::byte* host) const {
    return static_cast<std::uint64_t>(host - host_);
  }
  [[nodiscard]] bool reserves(std::uint64_t address) const { return address - reserved_ < span_; }
  [[nodiscard]] int descriptor() const { return fd_; }
  [[nodiscard]] std::size_t total() const { return total_; }
  [[nodiscard]] std::size_t available() const;
  [[nodiscard]] ExportEntry* exports() const { return reinterpret_cast<ExportEntry*>(host_); }

 private:
  DeviceHeap(int fd, std::byte* host, std::uint64_t reserved, std::size_t span, std::size_t total,
             std::uint64_t seed);

  const int fd_;
  std::byte* const host_;
  const std::uint64_t reserved_;
  const std::size_t span_;
  const std::size_t total_;
  mutable std::mutex mutex_;
  std::size_t used_ = 0;
  std::uint64_t garbage_;
  RangeAllocator ranges_;
};

}  // namespace cenote::cuda::emulator
