// Best fit: the fullest device on which the request still fits, so that large requests find whole devices
// later.
//
//     score(d) = 1 - (free(d) - asked(d)) / memory(d)           in [0, 1], greater is better
//
// where asked(d) is the request's memory, or the whole of d. (Best fit for one dimension: D. S. Johnson et
// al., "Worst-case performance bounds for simple one-dimensional packing algorithms", SIAM J. Computing 3(4),
// 1974.)
#pragma once

#include <cstdint>

namespace cenote::pool {

constexpr double score_best_fit(std::uint64_t memory, std::uint64_t free, std::uint64_t asked) {
  return 1.0 - static_cast<double>(free - asked) / static_cast<double>(memory);
}

}  // namespace cenote::pool
