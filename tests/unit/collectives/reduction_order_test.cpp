#include "collectives/reduction_order.h"

#include <gtest/gtest.h>

namespace cenote::collectives {
namespace {

TEST(ReductionOrder, FollowsTheRingBlockByBlock) {
  const auto order = reduction_order(CENOTE_SUM, "ring", 3, 8, CENOTE_FLOAT32);
  ASSERT_TRUE(order.has_value()) << order.error().message();
  ASSERT_EQ(order->size(), 3U);
  EXPECT_EQ((*order)[0].first, 0U);
  EXPECT_EQ((*order)[0].count, 3U);
  EXPECT_EQ((*order)[0].expression, "((0 + 1) + 2)");
  EXPECT_EQ((*order)[0].steps, (std::vector<PairStep>{{0, 1}, {0, 2}}));
  EXPECT_EQ((*order)[1].first, 3U);
  EXPECT_EQ((*order)[1].count, 3U);
  EXPECT_EQ((*order)[1].expression, "(0 + (1 + 2))");
  EXPECT_EQ((*order)[1].steps, (std::vector<PairStep>{{1, 2}, {0, 1}}));
  EXPECT_EQ((*order)[2].first, 6U);
  EXPECT_EQ((*order)[2].count, 2U);
  EXPECT_EQ((*order)[2].expression, "((0 + 2) + 1)");
}

TEST(ReductionOrder, CoversEveryElementWithEveryRankOnce) {
  for (std::string_view algorithm : {"auto", "ring", "recursive_doubling"}) {
    for (std::uint32_t ranks : {1U, 2U, 3U, 4U, 7U, 8U, 12U}) {
      for (std::uint64_t count : {0ULL, 1ULL, 5ULL, 100'003ULL}) {
        const auto order = reduction_order(CENOTE_AVG, algorithm, ranks, count, CENOTE_BFLOAT16);
        ASSERT_TRUE(order.has_value()) << order.error().message();
        std::uint64_t next = 0;
        for (const auto& range : *order) {
          EXPECT_EQ(range.first, next);
          EXPECT_GT(range.count, 0U);
          next += range.count;
          std::vector<std::uint32_t> members(ranks, 1);  // ranks summed up in each shard
          for (const auto& step : range.steps) {
            members[step.dst] += members[step.src];
            members[step.src] = 0;
          }
          EXPECT_EQ(members[range.result], ranks);
          EXPECT_EQ(range.steps.size(), ranks - 1);
        }
        EXPECT_EQ(next, count);
      }
    }
  }
}

TEST(ReductionOrder, RefusesWhatIsNoReduction) {
  EXPECT_EQ(reduction_order(CENOTE_SUM, "ring", 0, 1, CENOTE_FLOAT32).error().code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(reduction_order(static_cast<ReduceOp>(9), "ring", 2, 1, CENOTE_FLOAT32).error().code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(reduction_order(CENOTE_SUM, "star", 2, 1, CENOTE_FLOAT32).error().code, ErrorCode::not_found);
}

}  // namespace
}  // namespace cenote::collectives
