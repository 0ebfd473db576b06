// How errors name a member of a group, and how the number is found again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cenote {

/// "rank 7"
std::string rank_name(std::uint32_t rank);

/// The number that a text begins with rank_name of: 7 for "rank 7" and for "rank 7 at 10.0.0.7:5000"; none
/// for any other text and for a number that no rank can have.
std::optional<std::uint32_t> rank_of(std::string_view name);

}  // namespace cenote
