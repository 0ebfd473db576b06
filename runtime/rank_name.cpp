#include "runtime/rank_name.h"

#include <charconv>
#include <system_error>

namespace cenote {
namespace {
constexpr std::string_view prefix = "rank ";
}  // namespace

std::string rank_name(std::uint32_t rank) { return std::string(prefix) + std::to_string(rank); }

std::optional<std::uint32_t> rank_of(std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  std::uint32_t rank = 0;
  const auto parsed = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), rank);
  if (parsed.ec != std::errc{}) return std::nullopt;
  return rank;
}

}  // namespace cenote
