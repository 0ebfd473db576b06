#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pool/scheduler/place.h"
#include "pool/scheduler/score_best_fit.h"

namespace cenote::pool {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kGiB = 1ULL << 30U;

class SchedulerTest : public ::testing::Test {
 protected:
  void SetUp() override { run(command::StartTerm{1, 1'000, 1'000}); }

  void run(const Command& command, std::int64_t now = 0) {
    const auto done = apply(state, command, now);
    ASSERT_TRUE(done) << done.error().message();
  }
  void agent(const std::string& name, std::uint32_t gpus, const std::string& model = "H200",
             std::uint64_t gib = 8) {
    command::RegisterAgent c{name, name + ":1", "1", {}};
    for (std::uint32_t i = 0; i < gpus; ++i)
      c.devices.push_back({name + std::to_string(i), model, gib * kGiB, i});
    run(c);
    load.reachable.insert(name);
  }
  /// Places and grants.
  std::vector<std::string> take(const PlacementRequest& request, std::int64_t expires = 60'000) {
    const auto placed = place(state, load, request);
    EXPECT_TRUE(placed) << placed.error().message();
    if (!placed) return {};
    const auto id = "l" + std::to_string(++leases);
    run(command::Grant{.lease_id = id,
                       .request_id = id,
                       .client = "c",
                       .client_key = {},
                       .expires_ms = expires,
                       .note = {},
                       .reason = placed->reason,
                       .shares = placed->shares});
    std::vector<std::string> devices;
    for (const auto& share : placed->shares) devices.push_back(share.device);
    return devices;
  }
  Error refusal(const PlacementRequest& request) const {
    const auto placed = place(state, load, request);
    EXPECT_FALSE(placed);
    return placed ? Error{} : placed.error();
  }

  State state;
  LoadSnapshot load;
  int leases = 0;
};

TEST_F(SchedulerTest, SaysWhatThePoolCanNeverServe) {
  agent("a", 2);
  agent("b", 2, "A100", 4);
  EXPECT_EQ(refusal({.gpus = 9, .model = {}}).cause, "asks 9 GPUs, the pool has 4");
  EXPECT_EQ(refusal({.gpus = 9, .model = {}}).code, ErrorCode::invalid_argument);
  EXPECT_EQ(refusal({.gpus = 3, .model = "H200"}).cause, "asks 3 H200, the pool has 2");
  EXPECT_EQ(refusal({.gpus = 1, .model = "B200"}).cause,
            "no GPU here is a \"B200\": the pool has 2 A100, 2 H200");
  EXPECT_EQ(refusal({.gpus = 1, .model = {}, .memory_bytes = 9 * kGiB}).cause,
            "asks 9 GiB per GPU, the largest GPU has 8 GiB");
  EXPECT_EQ(refusal({.gpus = 3, .model = {}, .memory_bytes = 6 * kGiB}).cause,
            "asks 3 GPUs with 6 GiB, the pool has 2 that large");
  EXPECT_EQ(refusal({.gpus = 0, .model = {}}).code, ErrorCode::invalid_argument);
}

TEST_F(SchedulerTest, SaysWhyNotNowAndUntilWhen) {
  agent("a", 4);
  take({.gpus = 3, .model = {}}, 20'000);
  load.now_ms = 8'000;
  EXPECT_EQ(refusal({.gpus = 2, .model = {}}).cause,
            "asks 2 GPUs, only 1 free: 3 of 4 leased, the next lease ends in 12 s");
  take({.gpus = 1, .model = {}}, 30'000);
  const auto full = refusal({.gpus = 1, .model = {}});
  EXPECT_EQ(full.code, ErrorCode::resource_exhausted);
  EXPECT_EQ(full.cause, "no free GPU: 4 of 4 leased, the next lease ends in 12 s");
  run(command::End{"l1", EndCause::released, "", 1}, 9'000);
  EXPECT_EQ(refusal({.gpus = 1, .model = {}}).cause,
            "no free GPU: 1 of 4 leased, 3 being cleared, the next lease ends in 22 s");
}

TEST_F(SchedulerTest, SaysWhenAgentsAreSilent) {
  EXPECT_THAT(refusal({.gpus = 1, .model = {}}).cause, HasSubstr("no agent has registered"));
  agent("a", 2);
  load.reachable.clear();
  const auto silent = refusal({.gpus = 1, .model = {}});
  EXPECT_EQ(silent.code, ErrorCode::resource_exhausted);
  EXPECT_EQ(silent.cause, "no free GPU: 0 of 2 leased, 2 on agents that are silent");
}

TEST_F(SchedulerTest, SaysWhoIsLeasedAlsoWhileNoAgentIsHeard) {
  agent("a", 2);
  agent("b", 2);
  take({.gpus = 4, .model = {}}, 20'000);
  load.reachable.clear();  // as after a restart of the broker
  EXPECT_EQ(refusal({.gpus = 1, .model = {}}).cause,
            "no free GPU: 4 of 4 leased, the next lease ends in 20 s");
  run(command::End{"l1", EndCause::released, "", 1}, 9'000);
  EXPECT_EQ(refusal({.gpus = 1, .model = {}}).cause,
            "no free GPU: 0 of 4 leased, 4 on agents that are silent")
      << "who is to confirm that they are clear";
  load.reachable.insert("a");
  EXPECT_EQ(refusal({.gpus = 1, .model = {}}).cause,
            "no free GPU: 0 of 4 leased, 2 being cleared, 2 on agents that are silent");
}

TEST_F(SchedulerTest, TakesTheSmallestDeviceThatFits) {
  agent("a", 1, "H200", 140);
  agent("b", 1, "A100", 80);
  agent("c", 1, "L4", 24);
  EXPECT_THAT(take({.gpus = 1, .model = {}, .memory_bytes = 20 * kGiB}), ::testing::ElementsAre("c0"));
  EXPECT_THAT(take({.gpus = 1, .model = {}, .memory_bytes = 20 * kGiB}), ::testing::ElementsAre("b0"));
  EXPECT_THAT(take({.gpus = 1, .model = {}, .memory_bytes = 100 * kGiB}), ::testing::ElementsAre("a0"));
}

TEST_F(SchedulerTest, FillsASharedDeviceBeforeItOpensAnother) {
  agent("a", 2);
  const auto first = take({.gpus = 1, .model = {}, .memory_bytes = 2 * kGiB});
  EXPECT_EQ(take({.gpus = 1, .model = {}, .memory_bytes = 2 * kGiB}), first);
  EXPECT_EQ(take({.gpus = 1, .model = {}, .memory_bytes = 4 * kGiB}), first);
  EXPECT_NE(take({.gpus = 1, .model = {}, .memory_bytes = 1 * kGiB}), first);
}

TEST_F(SchedulerTest, GivesWholeDevicesToNobodyElse) {
  agent("a", 1);
  take({.gpus = 1, .model = {}, .memory_bytes = kGiB});
  EXPECT_EQ(refusal({.gpus = 1, .model = {}}).code, ErrorCode::resource_exhausted);
}

TEST_F(SchedulerTest, OneLeaseGetsDistinctDevices) {
  agent("a", 2);
  const auto devices = take({.gpus = 2, .model = {}, .memory_bytes = kGiB});
  EXPECT_THAT(devices, ::testing::UnorderedElementsAre("a0", "a1"));
}

TEST_F(SchedulerTest, StaysOnOneAgentWhereItCanInTheSmallestHole) {
  agent("a", 8);
  agent("b", 4);
  agent("c", 2);
  EXPECT_THAT(take({.gpus = 4, .model = {}}), ::testing::UnorderedElementsAre("b0", "b1", "b2", "b3"));
  EXPECT_THAT(take({.gpus = 4, .model = {}}), ::testing::Each(HasSubstr("a")));
}

TEST_F(SchedulerTest, UsesTheFewestAgentsWhereOneDoesNotDo) {
  agent("a", 1);
  agent("b", 3);
  agent("c", 1);
  agent("d", 2);
  const auto devices = take({.gpus = 5, .model = {}});
  EXPECT_THAT(devices, ::testing::UnorderedElementsAre("b0", "b1", "b2", "d0", "d1"));
}

TEST_F(SchedulerTest, PrefersTheIdlerOfTwoEqualDevices) {
  agent("a", 2);
  load.utilisation = {{"a0", 0.9}, {"a1", 0.1}};
  EXPECT_THAT(take({.gpus = 1, .model = {}, .memory_bytes = kGiB}), ::testing::ElementsAre("a1"));
}

TEST_F(SchedulerTest, ExplainsItsChoice) {
  agent("a", 2);
  const auto placed = place(state, load, {.gpus = 2, .model = {}});
  ASSERT_TRUE(placed);
  EXPECT_EQ(placed->reason, "best fit among 2 candidates: 2 on a (fit 100 %)");
}

TEST_F(SchedulerTest, DecidesInAPoolOfTenThousand) {
  for (int i = 0; i < 1'250; ++i) agent("n" + std::to_string(i) + "-", 8);
  const auto devices = take({.gpus = 9'999, .model = {}});
  EXPECT_EQ(devices.size(), 9'999U);
  EXPECT_EQ(take({.gpus = 1, .model = {}}).size(), 1U);
}

TEST(ScoreBestFit, IsOneForAPerfectFitAndFallsWithWhatIsLeft) {
  EXPECT_DOUBLE_EQ(score_best_fit(100, 40, 40), 1.0);
  EXPECT_DOUBLE_EQ(score_best_fit(100, 100, 20), 0.2);
  EXPECT_GT(score_best_fit(100, 50, 20), score_best_fit(100, 60, 20));
}

}  // namespace
}  // namespace cenote::pool
