#include "perf/tools/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace cenote::perf {
namespace {

/// SplitMix64: eight bytes for one place in one message.
std::uint64_t word(std::uint64_t message, std::size_t place) {
  std::uint64_t x = (message + 1) * 0x9e3779b97f4a7c15ULL + place * 0xd1342543de82ef95ULL;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

}  // namespace

void fill_pattern(std::span<std::byte> out, std::uint64_t message) {
  for (std::size_t at = 0; at < out.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t value = word(message, at);
    std::memcpy(out.data() + at, &value, std::min(sizeof value, out.size() - at));
  }
}

Result<void> check_pattern(std::span<const std::byte> in, std::uint64_t message) {
  for (std::size_t at = 0; at < in.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t value = word(message, at);
    const std::size_t bytes = std::min(sizeof value, in.size() - at);
    if (std::memcmp(in.data() + at, &value, bytes) == 0) [[likely]]
      continue;
    std::byte expected[sizeof value];
    std::memcpy(expected, &value, sizeof value);
    std::size_t wrong = 0;
    while (in[at + wrong] == expected[wrong]) ++wrong;
    return fail(ErrorCode::internal, "validate",
                fmt::format("message {}: byte {} of {} is 0x{:02x}, it should be 0x{:02x}", message,
                            at + wrong, in.size(), std::to_integer<unsigned>(in[at + wrong]),
                            std::to_integer<unsigned>(expected[wrong])));
  }
  return {};
}

}  // namespace cenote::perf
