// Mapping: memory behind a descriptor, unmapped once; and the sealed memfds that it comes from.
#pragma once

#include <cstddef>
#include <utility>

#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace cenote::transport::shm {

class Mapping {
 public:
  Mapping() = default;
  Mapping(void* base, std::size_t size) : base_(base), size_(size) {}
  Mapping(Mapping&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  [[nodiscard]] void* base() const { return base_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] explicit operator bool() const { return base_ != nullptr; }

 private:
  void* base_ = nullptr;
  std::size_t size_ = 0;
};

struct SharedMemory {
  UniqueFd fd;
  Mapping mapping;
};

enum class PeerAccess : bool { read_only, read_write };

/// Zeroed memory of `bytes` bytes, sealed: nobody can change its size any more, and with read_only nobody but
/// this mapping can write to it.
Result<SharedMemory> create(const char* name, std::size_t bytes, PeerAccess access);

/// Maps what a peer sent. Checks the seals first: memory that could shrink would kill this process by SIGBUS.
/// Errors: protocol_error (not sealed, not `bytes` long), system_error.
Result<Mapping> import(const UniqueFd& fd, std::size_t bytes, PeerAccess access);

}  // namespace cenote::transport::shm
