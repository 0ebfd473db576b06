// Who holds whom up, from what ledgers say.
#include "pool/cli/stuck.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace cenote::pool::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

StuckRank rank_of(std::uint32_t rank, std::uint32_t size, std::uint64_t begun) {
  StuckRank made{"00000000000000aa", rank, size, "node1", "train", "S", 1000 + rank};
  made.begun = begun;
  made.begun_seconds = 12;
  return made;
}

StuckRow allreduce(std::uint64_t sequence, double seconds) {
  return {"allreduce", "allreduce of 12 float32 by sum", "reduce", sequence, 48, {}, {}, seconds, seconds};
}

/// `size` ranks that all wait in operation 17.
std::vector<StuckRank> waiting(std::uint32_t size) {
  std::vector<StuckRank> group;
  for (std::uint32_t r = 0; r < size; ++r) {
    group.push_back(rank_of(r, size, 17));
    group.back().rows.push_back(allreduce(17, 10));
    group.back().rows[0].waits_for = group.back().rows[0].at_the_end = (r + 1) % size;
  }
  return group;
}

TEST(Stuck, NobodyWhereNothingLasts) {
  auto group = waiting(3);
  EXPECT_FALSE(judge(group, 60).stuck);
  EXPECT_THAT(judge(group, 60).ranks, IsEmpty());
  for (auto& rank : group) rank.rows.clear();
  EXPECT_FALSE(judge(group, 1).stuck);
}

TEST(Stuck, WhoHasNotBegun) {
  auto group = waiting(4);
  group[2] = rank_of(2, 4, 16);
  const auto verdict = judge(group, 1);
  EXPECT_TRUE(verdict.stuck);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_THAT(verdict.text,
              AllOf(HasSubstr("operation 17, allreduce of 12 float32 by sum, for 10.0 s: rank 2"),
                    HasSubstr("has not begun it: its last is 16, begun 12.0 s ago")));
}

TEST(Stuck, WhoIsStopped) {
  auto group = waiting(3);
  group[1].state = "T";
  const auto verdict = judge(group, 1);
  EXPECT_THAT(verdict.ranks, ElementsAre(1));
  EXPECT_THAT(verdict.text, HasSubstr("rank 1 (train 1001 on node1) is stopped"));
  EXPECT_THAT(verdict.text, HasSubstr("kill -CONT 1001"));
}

TEST(Stuck, WhoIsStoppedButThroughHoldsNobodyUp) {
  auto group = waiting(3);
  group[1].state = "T";
  group[1].rows.clear();
  group[2] = rank_of(2, 3, 16);
  EXPECT_THAT(judge(group, 1).ranks, ElementsAre(2));
}

TEST(Stuck, WhoCallsSomethingElse) {
  auto group = waiting(3);
  group[1].rows[0].operation = "broadcast";
  group[1].rows[0].call = "broadcast of 12 float32 from rank 0";
  const auto verdict = judge(group, 1);
  EXPECT_THAT(verdict.ranks, ElementsAre(1));
  EXPECT_THAT(verdict.text,
              AllOf(HasSubstr("operation 17, allreduce of 12 float32 by sum"),
                    HasSubstr("rank 1 (train 1001 on node1) calls broadcast of 12 float32 from rank 0")));
}

TEST(Stuck, WhoHasBegunAndMakesNoCall) {
  auto group = waiting(3);
  group[0].call_seconds = 9;
  const auto verdict = judge(group, 1);
  EXPECT_THAT(verdict.ranks, ElementsAre(0));
  EXPECT_THAT(verdict.text, HasSubstr("has made no call that moves it for 9.0 s"));
}

TEST(Stuck, TheOldestOperationCounts) {
  auto group = waiting(3);
  for (auto& rank : group) {
    rank.rows.push_back(allreduce(18, 9));
    rank.begun = 18;
  }
  group[0].begun = 17;
  group[0].rows.pop_back();
  group[2] = rank_of(2, 3, 16);
  EXPECT_THAT(judge(group, 1).ranks, ElementsAre(2));
}

TEST(Stuck, SeveralAreAllNamed) {
  auto group = waiting(5);
  group[1] = rank_of(1, 5, 16);
  group[3].state = "T";
  EXPECT_THAT(judge(group, 1).ranks, ElementsAre(1, 3));
}

TEST(Stuck, WhoIsNotHereIsNamedByThoseThatWait) {
  auto group = waiting(4);
  group.erase(group.begin() + 3);
  for (auto& rank : group) rank.rows[0].at_the_end = 3;
  const auto verdict = judge(group, 1);
  EXPECT_THAT(verdict.ranks, ElementsAre(3));
  EXPECT_THAT(verdict.text, HasSubstr("rank 3 holds it up, not among the processes looked at"));
  for (auto& rank : group) rank.rows[0].waits_for = rank.rows[0].at_the_end = std::nullopt;
  EXPECT_THAT(judge(group, 1).ranks, ElementsAre(3));
}

TEST(Stuck, AllInItAndAllHere) {
  const auto verdict = judge(waiting(2), 1);
  EXPECT_TRUE(verdict.stuck);
  EXPECT_THAT(verdict.ranks, IsEmpty());
  EXPECT_THAT(verdict.text, HasSubstr("rank 0 for rank 1, rank 1 for rank 0"));
}

TEST(Stuck, AGroupThatForms) {
  auto first = rank_of(0, 3, 0);
  first.rows.push_back({"create", "create", "started", 0, 0, {}, {}, 5, 5});
  const auto verdict = judge(std::vector{first}, 1);
  EXPECT_THAT(verdict.ranks, ElementsAre(1, 2));
  EXPECT_THAT(verdict.text, HasSubstr("the creation of the communicator, for 5.0 s"));
}

TEST(Stuck, AGroupThatHasEnded) {
  auto group = waiting(2);
  group[0].failed_rank = 1;
  group[0].failure = "allreduce of rank 0 failed: the process of rank 1 is gone";
  EXPECT_THAT(judge(group, 1).ranks, ElementsAre(1));
  EXPECT_THAT(judge(group, 1).text, HasSubstr("the process of rank 1 is gone"));
}

TEST(Stuck, AWaitForASignal) {
  auto group = std::vector{rank_of(0, 2, 3), rank_of(1, 2, 3)};
  group[0].rows.push_back({"wait for signal", "wait for signal", "waits", 5, 0, 1, 1, 20, 20});
  const auto verdict = judge(group, 1);
  EXPECT_THAT(verdict.ranks, ElementsAre(1));
  EXPECT_THAT(verdict.text, HasSubstr("\"wait for signal 5\" for 20.0 s: rank 1 (train 1001 on node1) has "
                                      "not signalled it"));
  // It began before the other's barrier, which it is late for.
  group[1].rows.push_back(allreduce(4, 10));
  group[1].begun = 4;
  EXPECT_THAT(judge(group, 1).ranks, ElementsAre(1));
}

TEST(Stuck, AnotherMachinesRanksComeInByTheirJson) {
  auto here = waiting(3);
  auto there = std::vector{rank_of(2, 3, 16)};
  there[0].host = "node\xff 2";
  here.pop_back();
  const std::vector<std::vector<StuckRank>> other{there};
  auto read = ranks_of_json(stuck_json(other, 1));
  ASSERT_TRUE(read.has_value()) << read.error().message();
  auto all = here;
  all.insert(all.end(), read->begin(), read->end());
  all.push_back(here[0]);  // once more, from a file of this machine
  const auto groups = by_group(all);
  ASSERT_EQ(groups.size(), 1U);
  ASSERT_EQ(groups[0].size(), 3U);
  EXPECT_THAT(judge(groups[0], 1).ranks, ElementsAre(2));
  EXPECT_THAT(stuck_text(groups, 1), AllOf(HasSubstr("group 00000000000000aa, 3 ranks of 3"),
                                           HasSubstr("stuck: operation 17"), HasSubstr("16 was last")));
  const auto shown = json::parse(stuck_json(groups, 1));
  EXPECT_EQ(shown["verdicts"][0]["ranks"], json::array({2}));
  EXPECT_EQ(shown["ranks"][0]["operations"][0]["waits_for"], 1);
  EXPECT_EQ(*ranks_of_json(shown.dump()).map([](auto ranks) { return ranks.size(); }), 3U);
}

TEST(Stuck, AFileThatIsNoneIsRefused) {
  for (const auto* text : {"", "[]", "{}", R"({"ranks":[{}]})", R"({"ranks":[{"group":1}]})"})
    EXPECT_EQ(ranks_of_json(text).error().code, ErrorCode::invalid_argument) << text;
}

}  // namespace
}  // namespace cenote::pool::cli
