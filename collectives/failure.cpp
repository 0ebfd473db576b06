#include "collectives/failure.h"

#include <fmt/format.h>

#include <charconv>

namespace cenote::collectives {
namespace {

constexpr std::string_view marker = "the group ended because rank ";

}  // namespace

std::string closing_reason(std::uint32_t culprit, std::string_view cause) {
  auto reason = fmt::format("{}{} failed: {}", marker, culprit, cause);
  if (reason.size() > reason_bytes) reason.resize(reason_bytes);
  return reason;
}

std::optional<std::uint32_t> named_culprit(std::string_view text) {
  const auto at = text.rfind(marker);
  if (at == std::string_view::npos) return std::nullopt;
  const auto number = text.substr(at + marker.size());
  std::uint32_t rank = 0;
  const auto parsed = std::from_chars(number.data(), number.data() + number.size(), rank);
  if (parsed.ec != std::errc{}) return std::nullopt;
  return rank;
}

std::string_view innermost(std::string_view text) {
  const auto at = text.rfind(marker);
  return at == std::string_view::npos ? text : text.substr(at);
}

}  // namespace cenote::collectives
