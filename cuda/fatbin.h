// Fat binaries: the containers in which nvcc puts PTX and machine code. Layout: the public header
// fatbinary_section.h for the wrapper, nvcc's own output for the container.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/result.h"

namespace cenote::cuda {

/// One PTX text of a container.
struct FatbinPtx {
  unsigned architecture = 0;  ///< 75 for compute_75
  std::string text;           ///< decompressed, without the trailing NUL
};

inline constexpr std::uint32_t fatbin_wrapper_magic = 0x466243B1;
inline constexpr std::uint32_t fatbin_container_magic = 0xBA55ED50;

/// Whether `image` starts like a container (not a wrapper, which holds pointers).
bool is_fatbin(std::span<const std::byte> image);

/// Total bytes of the container whose first 16 bytes are given; 0 when they are none.
std::uint64_t fatbin_size(std::span<const std::byte> header);

/// All PTX texts of a container, plain, Zstandard or LZ4. Reads nothing outside `container`; a text larger
/// than 256 MiB is refused. Errors: invalid_argument (truncated, damaged), not_supported (an unknown
/// compression). An empty list means: machine code only (CUDA_ERROR_NO_BINARY_FOR_GPU).
Result<std::vector<FatbinPtx>> fatbin_ptx(std::span<const std::byte> container);

/// What decompressing every compressed entry of the container yields, as their headers have it, without doing
/// so; saturates. 0 for what is no container; a damaged one counts up to its damage.
std::uint64_t fatbin_decompressed_size(std::span<const std::byte> container);

/// Follows a wrapper (the struct that programs pass to cuModuleLoadData) to its containers: one for version
/// 1, one per translation unit for version 2. The wrapper's pointers are trusted, as CUDA does: never call it
/// with bytes from a peer.
Result<std::vector<std::span<const std::byte>>> fatbin_containers(const void* wrapper);

}  // namespace cenote::cuda
