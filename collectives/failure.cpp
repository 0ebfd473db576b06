#include "collectives/failure.h"

#include <fmt/format.h>

#include "runtime/rank_name.h"

namespace cenote::collectives {
namespace {

constexpr std::string_view marker = "the group ended because ";

}  // namespace

std::string closing_reason(std::uint32_t culprit, std::string_view cause) {
  auto reason = fmt::format("{}{} failed: {}", marker, rank_name(culprit), cause);
  if (reason.size() > reason_bytes) reason.resize(reason_bytes);
  return reason;
}

std::optional<std::uint32_t> named_culprit(std::string_view text) {
  const auto at = text.rfind(marker);
  if (at == std::string_view::npos) return std::nullopt;
  return rank_of(text.substr(at + marker.size()));
}

std::optional<std::string_view> disagreement(std::string_view text) {
  if (!named_culprit(text)) return std::nullopt;
  const auto reason = innermost(text);
  constexpr std::string_view before = " failed: ";
  const auto at = reason.find(before);
  if (at == std::string_view::npos || !reason.substr(at + before.size()).starts_with(disagree))
    return std::nullopt;
  return reason.substr(at + before.size());
}

std::string_view innermost(std::string_view text) {
  const auto at = text.rfind(marker);
  return at == std::string_view::npos ? text : text.substr(at);
}

}  // namespace cenote::collectives
