// MemoryDescription: what a piece of memory can do, and where its home is. `cuda/` fills it in for device
// memory, `transports/` and `collectives/` ask it. Knows no transport and no GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace cenote {

enum class MemoryKind : std::uint8_t {
  host,    ///< the CPU reads and writes it at `address`
  device,  ///< `address` means something only to the device; the CPU goes through `DeviceAccess`
  remote,  ///< it lives behind a lease, on another process or machine: send the work there, never pull it
           ///< here
};

/// A dma-buf: device memory as a descriptor that a driver of another card can open.
struct DmaBuf {
  UniqueFd fd;
  std::uint64_t offset = 0;  ///< of the range's first byte in it
};

/// Pinned host memory, and copies between host and device that go on by themselves, in the order in which
/// they were begun. Belongs to one thread at a time. Its end waits for its own copies.
class DeviceCopies {
 public:
  virtual ~DeviceCopies() = default;
  [[nodiscard]] virtual std::span<std::byte> pinned() const = 0;
  /// Whose memory it is, as MemoryDescription::home.
  [[nodiscard]] virtual const std::string& home() const = 0;
  /// Begins a copy: its number, counted from 1. The host's bytes stay where they are, and as they are, until
  /// it is done; outside of pinned() the call itself may wait for the copy. Errors: driver_error.
  virtual Result<std::uint64_t> to_device(std::uint64_t device, const std::byte* host, std::size_t bytes) = 0;
  virtual Result<std::uint64_t> from_device(std::byte* host, std::uint64_t device, std::size_t bytes) = 0;
  /// The number of the latest that is done. Never waits. Errors: driver_error (a copy failed).
  virtual Result<std::uint64_t> finished() = 0;
};

/// How the CPU reaches device memory: staged copies through the device's driver. The calls return when the
/// bytes have arrived. Thread-safe. Errors: driver_error (native = the driver's code).
struct DeviceAccess {
  std::function<Result<void>(std::byte* host, std::uint64_t device, std::size_t bytes)> read;
  std::function<Result<void>(std::uint64_t device, const std::byte* host, std::size_t bytes)> write;
  // What the device does by itself, on memory of its own; empty where it cannot.
  /// dst[i] = op(own[i], incoming[i]) by a kernel, `incoming` in host memory. dst is own, or does not overlap
  /// it. An average is a sum here: `divide` comes once, at the end.
  std::function<Result<void>(std::uint64_t dst, std::uint64_t own, const std::byte* incoming,
                             std::size_t count, int type, int op)>
      reduce;
  /// x[i] = x[i] / divisor; integers round toward zero.
  std::function<Result<void>(std::uint64_t x, std::size_t count, int type, unsigned divisor)> divide;
  std::function<Result<void>(std::uint64_t dst, std::uint64_t src, std::size_t bytes)> copy;
  // What brings a network's cards to it.
  /// Of the host's pages that hold the range. Empty where the driver has no such call.
  std::function<Result<DmaBuf>(std::uint64_t device, std::size_t bytes)> export_dmabuf;
  /// When it returns, the device and every later copy see what cards have written before it was called. Empty
  /// where the driver has no such call.
  std::function<Result<void>()> flush;
  std::function<Result<std::unique_ptr<DeviceCopies>>(std::size_t pinned_bytes)> open_copies;
};

/// Owned by nobody: describes memory that outlives the operation it is given to.
struct MemoryDescription {
  MemoryKind kind = MemoryKind::host;
  std::uint64_t address = 0;       ///< host pointer or device address
  std::size_t size = 0;            ///< bytes
  bool cpu_readable = true;        ///< a load at `address` works
  bool exportable = false;         ///< another process can open it (memfd, CUDA IPC)
  bool dmabuf = false;             ///< the driver says that it exports it as a dma-buf
  bool flush_before_read = false;  ///< data put there by a NIC is visible only after a flush
  std::string home{};              ///< "host", "cuda:0", "lease 7f3a/cuda:1": for errors and for `remote`
  std::shared_ptr<const DeviceAccess> device{};  ///< set when kind == device
  bool peer_direct{};        ///< the device lets cards beside it read and write it (GPUDirect)
  std::string visibility{};  ///< why flush_before_read is what it is, for logs: "flush call: ..."

  static MemoryDescription of_host(const void* pointer, std::size_t bytes) {
    MemoryDescription m;
    m.address = reinterpret_cast<std::uint64_t>(pointer);
    m.size = bytes;
    m.home = "host";
    return m;
  }
};

}  // namespace cenote
