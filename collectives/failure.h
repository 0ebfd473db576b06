// Whose fault it is. When a group breaks, each rank tells its neighbours which rank began it; so everybody's
// error names that rank, however far away it is.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/result.h"

namespace cenote::collectives {

/// What a rank says when it closes its links: "the group ended because rank 2 failed: ...", at most
/// `reason_bytes`.
std::string closing_reason(std::uint32_t culprit, std::string_view cause);
inline constexpr std::size_t reason_bytes = 200;

/// The rank that such a reason names, wherever in `text` it stands.
std::optional<std::uint32_t> named_culprit(std::string_view text);

/// What ranks that make different calls are told, "ranks disagree: rank 0 calls ..., rank 1 calls ...", where
/// such a reason stands in `text`. It is nobody's failure: the error of all is that of who found it.
std::optional<std::string_view> disagreement(std::string_view text);
inline constexpr std::string_view disagree = "ranks disagree: ";
inline constexpr std::string_view disagree_remedy = "all ranks must make the same calls in the same order";

/// The text from the reason on, without what transports and other ranks put in front of it.
std::string_view innermost(std::string_view text);

}  // namespace cenote::collectives
