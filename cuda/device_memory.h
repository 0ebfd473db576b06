// DeviceMemory: describes a card's memory to those who know no GPU, and gives them the way to it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "cuda/driver.h"
#include "runtime/memory.h"
#include "runtime/result.h"

namespace cenote::cuda {

/// For the context that was current when it was made. The driver outlives it and every description it gave;
/// the context too, or accesses end with driver_error. Thread-safe: any thread may use the descriptions,
/// whatever context it has current.
class DeviceMemory {
 public:
  /// Errors: driver_error (no context, no memory for staging).
  static Result<std::unique_ptr<DeviceMemory>> create(Driver& driver);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// What [pointer, pointer + size) can do; mapped memory may be mapped piece by piece. Pinned host memory
  /// comes out as host memory. Reads, writes and kernels go through pinned staging buffers in a stream of its
  /// own: work of other streams has to be waited for first.
  /// Errors: invalid_argument (not memory of the driver, or not all of it).
  Result<MemoryDescription> describe(DevicePtr pointer, std::size_t size) const;

 private:
  struct Way;
  explicit DeviceMemory(std::shared_ptr<Way> way);
  std::shared_ptr<Way> way_;
  std::shared_ptr<const DeviceAccess> access_;
};

/// What a device lets cards of a network do.
struct GpuDirect {
  bool dmabuf = false;       ///< its driver exports memory as dma-bufs
  bool peer_direct = false;  ///< other cards may reach its memory
  std::string visibility{};  ///< what has to be done before it shows what they wrote, and why
};
GpuDirect gpu_direct(Driver& driver, DeviceId device);

/// One description, with a DeviceMemory of its own behind it.
Result<MemoryDescription> describe(Driver& driver, DevicePtr pointer, std::size_t size);

}  // namespace cenote::cuda
