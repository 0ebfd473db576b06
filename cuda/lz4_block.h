// Decoder for one LZ4 block (nvcc --compress-mode=speed). Format: the LZ4 project's lz4_Block_format.md.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/result.h"

namespace cenote::cuda {

/// Fills `out` from `block`, which has to decode to exactly that many bytes. Reads and writes nothing outside
/// of the two. Errors: invalid_argument (damaged).
Result<void> decode_lz4_block(std::span<const std::byte> block, std::span<std::byte> out);

}  // namespace cenote::cuda
