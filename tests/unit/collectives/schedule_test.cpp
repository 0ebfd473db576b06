#include "collectives/schedule.h"

#include <gmock/gmock.h>

#include <set>

#include "collectives/plan.h"
#include "tests/unit/collectives/group.h"

namespace cenote::collectives {
namespace {

using ::testing::HasSubstr;

TEST(Schedule, BlocksCoverEveryElementOnceAndDifferByAtMostOne) {
  for (std::uint64_t count : {0ULL, 1ULL, 3ULL, 7ULL, 64ULL, 1'000'003ULL}) {
    for (std::uint32_t parts : {1U, 2U, 5U, 8U, 33U}) {
      EXPECT_EQ(block_offset(count, parts, 0), 0U);
      EXPECT_EQ(block_offset(count, parts, parts), count);
      for (std::uint32_t b = 0; b < parts; ++b) {
        const auto size = block_offset(count, parts, b + 1) - block_offset(count, parts, b);
        EXPECT_GE(size, count / parts);
        EXPECT_LE(size, count / parts + 1);
      }
    }
  }
}

TEST(Schedule, ARingOverSixteenThousandRanksIsAFewLines) {
  const auto schedule = ring_allreduce({9'000, 16'384, 0});
  std::size_t steps = 0;
  for (const auto& repeat : schedule.program) steps += repeat.steps.size();
  EXPECT_LE(steps, 8U);
  EXPECT_TRUE(schedule.check().has_value());
  const auto plan = compile(schedule, 16'384, false);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->instances.size(), 4U * 16'383U + 1U);
  EXPECT_EQ(plan->flows.size(), 3U);
}

TEST(Schedule, PrintsWhatItDoes) {
  EXPECT_EQ(ring_allreduce({1, 4, 0}).text(),
            "allreduce by ring, rank 1 of 4, 4 blocks\n"
            "  send input[1] to 2\n"
            "  reduce output[0] = op(input[0], from 0)\n"
            "  for i in 0 .. 1\n"
            "    send output[(0 + 3 i) mod 4] to 2\n"
            "    reduce output[(3 + 3 i) mod 4] = op(input[(3 + 3 i) mod 4], from 0)\n"
            "  finish output[2]\n"
            "  for i in 0 .. 2\n"
            "    send output[(2 + 3 i) mod 4] to 2\n"
            "    receive output[(1 + 3 i) mod 4] from 0\n");
}

TEST(Schedule, HashTellsEverySchedulesApart) {
  std::set<std::uint64_t> seen;
  std::size_t made = 0;
  for (const auto& one : catalogue()) {
    for (std::uint32_t n = 1; n <= 9; ++n) {
      for (const auto& schedule : group(one, n)) {
        seen.insert(schedule.hash());
        ++made;
        EXPECT_EQ(schedule.hash(), one.make({schedule.rank, n, 0}).hash());
      }
    }
  }
  EXPECT_EQ(seen.size(), made);
}

TEST(Schedule, CheckNamesTheStepThatIsWrong) {
  auto schedule = ring_allreduce({0, 4, 0});
  schedule.program[0].steps[0].peer.base = 4;
  auto checked = schedule.check();
  ASSERT_FALSE(checked.has_value());
  EXPECT_THAT(checked.error().message(), HasSubstr("send input[0] to 4: no such rank"));

  schedule = ring_allreduce({0, 4, 0});
  schedule.program[0].steps[1].dst.buffer = Buffer::input;
  EXPECT_THAT(schedule.check().error().message(), HasSubstr("the input is not written"));

  schedule = ring_allreduce({0, 4, 0});
  schedule.program[1].steps[0].src.blocks = 2;
  EXPECT_THAT(schedule.check().error().message(), HasSubstr("outside its buffer"));

  schedule = ring_allreduce({0, 4, 0});
  schedule.program[0].steps[0].peer.base = 0;
  EXPECT_THAT(schedule.check().error().message(), HasSubstr("does not talk to itself"));
}

TEST(Catalogue, AutoTakesFewRoundsForSmallAndFewBytesForLarge) {
  EXPECT_EQ((*choose(Operation::allreduce, "auto", 8, 8))->name, "recursive_doubling");
  EXPECT_EQ((*choose(Operation::allreduce, "auto", 8, 64 << 20))->name, "ring");
  EXPECT_EQ((*choose(Operation::allgather, "auto", 16, 8))->name, "recursive_doubling");
  EXPECT_EQ((*choose(Operation::allgather, "auto", 5, 64 << 20))->name, "ring");
}

TEST(Catalogue, AnUnknownNameListsTheKnownOnes) {
  const auto chosen = choose(Operation::allreduce, "rings", 8, 8);
  ASSERT_FALSE(chosen.has_value());
  EXPECT_EQ(chosen.error().code, ErrorCode::not_found);
  EXPECT_THAT(chosen.error().message(), HasSubstr("'rings'"));
  EXPECT_THAT(chosen.error().message(), HasSubstr("recursive_doubling, ring"));
}

TEST(Catalogue, ANameOfOneOperationLeavesTheOthersFree) {
  EXPECT_EQ((*choose(Operation::broadcast, "ring", 8, 8))->name, "binomial");
  EXPECT_EQ((*choose(Operation::barrier, "recursive_doubling", 8, 8))->name, "dissemination");
}

}  // namespace
}  // namespace cenote::collectives
