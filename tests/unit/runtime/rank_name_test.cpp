#include "runtime/rank_name.h"

#include <gtest/gtest.h>

#include <limits>

namespace cenote {
namespace {

TEST(RankName, IsFoundAgainInItsText) {
  for (const std::uint32_t rank : {0U, 7U, 4096U, std::numeric_limits<std::uint32_t>::max()}) {
    EXPECT_EQ(rank_of(rank_name(rank)), rank);
  }
  EXPECT_EQ(rank_name(7), "rank 7");
}

TEST(RankName, IsFoundWhateverIsSaidBehindIt) { EXPECT_EQ(rank_of("rank 7 at 10.0.0.7:5000"), 7U); }

TEST(RankName, IsNotFoundInAnotherText) {
  for (const auto* text :
       {"", "rank", "rank ", "rank x", "ranks 1, 2 of 4", "Rank 7", "the rank 7", "rank -1", "rank  7"}) {
    EXPECT_EQ(rank_of(text), std::nullopt) << text;
  }
}

TEST(RankName, IsNotTheRemainderOfANumberThatIsTooLarge) {
  EXPECT_EQ(rank_of("rank 4294967296"), std::nullopt);
}

}  // namespace
}  // namespace cenote
