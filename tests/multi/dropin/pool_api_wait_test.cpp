// Waiting for GPUs in the C interface of libcenote-pool.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/multi/dropin/pool_api.h"

namespace cenote::pool::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(PoolApi, WhoLeasesOneAfterTheOtherWaitsWhileTheGpusAreBeingCleared) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  for (int round = 0; round < 5; ++round) {
    const auto leased = program.say("lease 0 0 4 0 0 60000");
    ASSERT_EQ(leased, CENOTE_SUCCESS) << leased;
    ASSERT_EQ(program.say("open 0 0"), CENOTE_SUCCESS);
    ASSERT_EQ(program.say("close 0"), CENOTE_SUCCESS);
    ASSERT_EQ(program.say("release 0"), CENOTE_SUCCESS);
  }
}

TEST_F(PoolApi, AWaitForGpusOfAnotherEndsWithHisLease) {
  PoolProgram holder, waiter;
  for (auto* program : {&holder, &waiter}) ASSERT_EQ(program->say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(holder.lease("0 0 4"), CENOTE_SUCCESS);
  auto waiting = std::async(std::launch::async, [&] { return waiter.say("lease 0 0 4 0 0 60000"); });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(500)), std::future_status::timeout);
  EXPECT_EQ(holder.say("release 0"), CENOTE_SUCCESS);
  const auto leased = waiting.get();
  EXPECT_EQ(leased, CENOTE_SUCCESS) << leased;
}

TEST_F(PoolApi, AWaitThatIsOverSaysWhatTheGpusAre) {
  PoolProgram holder, waiter;
  for (auto* program : {&holder, &waiter}) ASSERT_EQ(program->say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(holder.lease("0 0 4"), CENOTE_SUCCESS);
  const auto refused = waiter.say("lease 0 0 1 0 100 300");
  EXPECT_EQ(refused, CENOTE_RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.text, HasSubstr("4 of 4 leased"));
}

TEST_F(PoolApi, ABrokerThatIsNotThereIsNotWaitedForLikeAGpu) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect("broker=127.0.0.1:1")), CENOTE_SUCCESS);
  const auto begun = Clock::now();
  const auto refused = program.say("lease 0 0 1 0 500 60000");
  EXPECT_TRUE(refused == CENOTE_PEER_FAILED || refused == CENOTE_DEADLINE_EXCEEDED) << refused;
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(30));
}

}  // namespace
}  // namespace cenote::pool::testing
