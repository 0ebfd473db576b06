// All ranks' schedules of one algorithm.
#pragma once

#include <vector>

#include "collectives/algorithms/catalogue.h"

namespace cenote::collectives {

inline std::vector<Schedule> group(const Algorithm& algorithm, std::uint32_t ranks, std::uint32_t root = 0) {
  std::vector<Schedule> schedules;
  for (std::uint32_t r = 0; r < ranks; ++r) schedules.push_back(algorithm.make({r, ranks, root}));
  return schedules;
}

inline const Algorithm& algorithm(Operation operation, std::string_view name) {
  return **choose(operation, name, 2, 0);
}

}  // namespace cenote::collectives
