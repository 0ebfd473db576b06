// IPC handles: device memory of one process opened by another of the same user. The handle names the
// exporting process and its memfd, opened through /proc; a secret in the memfd's head says whether the piece
// is still there, so that a stale or forged handle is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "cuda/driver.h"
#include "cuda/emulator/device_heap.h"
#include "runtime/result.h"

namespace cenote::cuda::emulator {

/// What an IpcMemHandle holds.
struct IpcHandle {
  std::uint32_t magic;
  std::uint32_t process;
  std::uint32_t descriptor;
  std::uint32_t entry;
  std::uint64_t inode;
  std::uint64_t size;
  std::uint8_t secret[16];
  DeviceUuid uuid;
};
static_assert(sizeof(IpcHandle) == sizeof(IpcMemHandle));

/// Another process's memory, mapped here: addresses without access, and the bytes behind them.
class ForeignMemory {
 public:
  ForeignMemory(void* table, std::byte* mapping, std::size_t mapped, std::size_t skip, std::uint64_t address)
      : table_(table), mapping_(mapping), mapped_(mapped), skip_(skip), address_(address) {}
  ForeignMemory(const ForeignMemory&) = delete;
  ForeignMemory& operator=(const ForeignMemory&) = delete;
  ~ForeignMemory();
  [[nodiscard]] std::byte* host() const { return mapping_ + skip_; }
  [[nodiscard]] std::uint64_t address() const { return address_ + skip_; }

 private:
  void* table_;
  std::byte* mapping_;
  std::size_t mapped_, skip_;
  std::uint64_t address_;
};

/// Puts the piece at [offset, offset + size) into the heap's table, or finds it there. Callers serialise.
/// Errors: resource_exhausted (the table is full), system_error (no randomness).
Result<IpcMemHandle> ipc_export(const DeviceHeap& heap, const DeviceUuid& uuid, std::uint64_t offset,
                                std::size_t size);
/// The piece cannot be opened any more.
void ipc_withdraw(const DeviceHeap& heap, std::uint64_t offset);

/// nullopt when the bytes are no handle of ours.
std::optional<IpcHandle> ipc_handle(const IpcMemHandle& handle);
/// Errors: peer_failed (the exporter is gone, or has freed the memory), system_error.
Result<std::shared_ptr<ForeignMemory>> ipc_open(const IpcHandle& handle);

}  // namespace cenote::cuda::emulator
