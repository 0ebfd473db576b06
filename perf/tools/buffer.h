// Buffer: memory that is measured from or to: of the host, or of a GPU through its driver table.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/bytes.h"
#include "runtime/result.h"
#include "transports/transport.h"

namespace cenote::cuda {
class Driver;
}

namespace cenote::perf {

/// Where buffers come from: "host", "cuda", "cuda:N" (the machine's driver, card N), "emulated",
/// "emulated:MODEL". Its card's context is current in the thread that opened it; it outlives its buffers.
class MemorySource {
 public:
  /// Errors: invalid_argument (no such kind), not_found (no CUDA driver here), driver_error.
  static Result<std::unique_ptr<MemorySource>> open(const std::string& kind);
  /// Whether `kind` is one, without opening it.
  static Result<void> check(const std::string& kind);
  ~MemorySource();
  MemorySource(const MemorySource&) = delete;
  MemorySource& operator=(const MemorySource&) = delete;

  /// "host", "cuda:0 (NVIDIA H200)"
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool is_host() const { return driver_ == nullptr; }
  [[nodiscard]] cuda::Driver* driver() const { return driver_.get(); }

 private:
  MemorySource();
  std::string name_ = "host";
  std::unique_ptr<cuda::Driver> driver_;
};

class Buffer {
 public:
  /// Zeroed. Errors: not_supported (the transport does not reach such memory: its own reason),
  /// resource_exhausted, driver_error.
  static Result<std::unique_ptr<Buffer>> create(transport::Transport& transport, const MemorySource& source,
                                                std::size_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  [[nodiscard]] const transport::RemoteKey& key() const { return region_->key(); }
  [[nodiscard]] std::size_t size() const { return size_; }
  /// What the transport is given. Only host memory may be looked at through it.
  [[nodiscard]] std::span<std::byte> at(std::uint64_t offset, std::size_t bytes) const {
    return {base_ + offset, bytes};
  }
  /// Copies out of it and into it, whatever memory it is. For host memory, `view` gives the bytes themselves.
  Result<void> read(std::uint64_t offset, std::span<std::byte> out) const;
  Result<void> write(std::uint64_t offset, std::span<const std::byte> in) const;
  [[nodiscard]] bool is_host() const { return driver_ == nullptr; }

 private:
  Buffer() = default;
  std::unique_ptr<transport::Region> region_;
  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
  MemoryDescription description_;
  cuda::Driver* driver_ = nullptr;
  std::uint64_t device_ = 0;  ///< its memory there
};

}  // namespace cenote::perf
