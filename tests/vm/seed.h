// Random moments that can be drawn again.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <random>

namespace cenote::test::vm {

/// Another one each run, which is printed; --gtest_random_seed=N draws the same moments again.
inline std::uint64_t drawn_seed() {
  const auto asked = static_cast<std::uint32_t>(GTEST_FLAG_GET(random_seed));
  const std::uint32_t seed = asked != 0 ? asked : 1 + std::random_device{}() % 99'999;
  std::cout << "moments drawn from --gtest_random_seed=" << seed << std::endl;
  return std::uint64_t{seed} * 1000;
}

}  // namespace cenote::test::vm
