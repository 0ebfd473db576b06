// Bytes of --validate: a function of the message's number and the place in it, so that a byte that is
// missing, stale, doubled or elsewhere shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/result.h"

namespace cenote::perf {

void fill_pattern(std::span<std::byte> out, std::uint64_t message);
/// Every byte. Errors: internal, with the message, the first byte that is wrong, what it is and should be.
Result<void> check_pattern(std::span<const std::byte> in, std::uint64_t message);

}  // namespace cenote::perf
