// How soon a loss is heard, for tests: half of the kills within a limit for a machine that is not overloaded,
// and every one within one that a busy machine keeps as well.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define CENOTE_TEST_SLOWED_DOWN
#endif
#endif

namespace cenote::pool::testing {

#ifdef CENOTE_TEST_SLOWED_DOWN
constexpr auto kHeardByHalf = std::chrono::seconds(10), kHeardByAll = std::chrono::seconds(30);
#else
constexpr auto kHeardByHalf = std::chrono::seconds(2), kHeardByAll = std::chrono::seconds(10);
#endif

/// The middle one of at least one; of an even number, the lesser of the two.
template <class Value>
Value median(std::vector<Value> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace cenote::pool::testing
