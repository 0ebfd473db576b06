#include "collectives/verifier.h"

#include <gtest/gtest.h>

#include "tests/unit/collectives/group.h"

namespace cenote::collectives {
namespace {

constexpr std::uint32_t most_ranks = 33;

std::vector<std::uint64_t> counts(const Algorithm& algorithm, std::uint32_t ranks) {
  if (algorithm.operation == Operation::barrier) return {1};
  return {0, 1, 2, ranks > 1 ? ranks - 1 : 1, ranks + 1, 7, 37};
}

class Algorithms : public ::testing::TestWithParam<std::size_t> {
 protected:
  const Algorithm& one() const { return catalogue()[GetParam()]; }
};

TEST_P(Algorithms, AreProvedForOneToThirtyThreeRanks) {
  for (std::uint32_t n = 1; n <= most_ranks; ++n) {
    for (auto count : counts(one(), n)) {
      const auto proof = prove(group(one(), n), count);
      ASSERT_TRUE(proof.has_value()) << proof.error().message();
    }
  }
}

TEST_P(Algorithms, GiveTheSameTreesInWhateverOrderRanksRun) {
  for (std::uint32_t n : {2U, 3U, 7U, 8U, 13U}) {
    const std::uint64_t count = one().operation == Operation::barrier ? 1 : 11;
    const auto schedules = group(one(), n);
    const auto reference = verify(schedules, count);
    ASSERT_TRUE(reference.has_value()) << reference.error().message();
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      for (bool in_place : {false, true}) {
        const auto other = verify(schedules, count, {in_place, seed % 2 == 0, seed});
        ASSERT_TRUE(other.has_value()) << other.error().message();
        ASSERT_EQ(other->output.size(), reference->output.size());
        for (std::size_t x = 0; x < other->output.size(); ++x) {
          EXPECT_EQ(other->trees.text(other->output[x]), reference->trees.text(reference->output[x]));
        }
      }
    }
  }
}

TEST_P(Algorithms, TakeTheRoundsAndBytesThatTheCatalogueSays) {
  for (std::uint32_t n = 1; n <= most_ranks; ++n) {
    const auto schedules = group(one(), n);
    const auto parts = schedules[0].parts;
    const auto count = one().operation == Operation::barrier ? 1 : parts;
    const auto proof = verify(schedules, count, {false, true, 0});
    ASSERT_TRUE(proof.has_value()) << proof.error().message();
    EXPECT_EQ(proof->rounds, one().rounds(n)) << one().name << " over " << n;
    EXPECT_EQ(proof->most_elements, one().blocks(n)) << one().name << " over " << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Catalogue, Algorithms, ::testing::Range(std::size_t{0}, catalogue().size()),
                         [](const auto& tested) {
                           const auto& one = catalogue()[tested.param];
                           return std::string(to_string(one.operation)) + "_" + std::string(one.name);
                         });

TEST(Broadcast, IsProvedForEveryRoot) {
  for (std::uint32_t n = 1; n <= 17; ++n) {
    for (std::uint32_t root = 0; root < n; ++root) {
      const auto proof = prove(group(algorithm(Operation::broadcast, "binomial"), n, root), 5);
      ASSERT_TRUE(proof.has_value()) << proof.error().message();
    }
  }
}

TEST(Verifier, ReportsTheTreeOfEverySlice) {
  const auto ring = verify(group(algorithm(Operation::allreduce, "ring"), 3), 3);
  ASSERT_TRUE(ring.has_value());
  EXPECT_EQ(ring->trees.text(ring->output[0]), "((0 + 1) + 2)");
  EXPECT_EQ(ring->trees.text(ring->output[1]), "(0 + (1 + 2))");
  EXPECT_EQ(ring->trees.text(ring->output[2]), "((0 + 2) + 1)");
  const auto doubling = verify(group(algorithm(Operation::allreduce, "recursive_doubling"), 5), 1);
  ASSERT_TRUE(doubling.has_value());
  EXPECT_EQ(doubling->trees.text(doubling->output[0]), "(((0 + 1) + 2) + (3 + 4))");
}

}  // namespace
}  // namespace cenote::collectives
