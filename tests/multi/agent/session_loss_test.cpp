// Who holds a lease and makes no GPU call hears all the same when its GPUs are gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <mutex>
#include <optional>

#include "tests/multi/agent/cluster.h"
#include "tests/multi/agent/work.h"

namespace cenote::pool::testing {
namespace {

using ::testing::HasSubstr;

class SessionLossTest : public ::testing::Test {
 protected:
  void SetUp() override { begin({}); }
  void begin(std::vector<std::string> settings) {
    cluster = Cluster::start(std::move(settings));
    ASSERT_NE(cluster, nullptr);
    client = cluster->client();
    auto granted = client->lease({.gpus = 4, .ttl = std::chrono::minutes(10)}, patience());
    ASSERT_TRUE(granted) << granted.error().message();
    lease = std::move(*granted);
    lease->on_session_loss([this](const Error& error) {
      const std::lock_guard lock(mutex);
      told.push_back(error.message());
    });
    auto opened = CountingWork::open(*lease, patience());
    ASSERT_TRUE(opened) << opened.error().message();
    work.emplace(std::move(*opened));
    ASSERT_TRUE(work->round());
  }
  std::vector<std::string> heard() {
    const std::lock_guard lock(mutex);
    return told;
  }

  std::mutex mutex;
  std::vector<std::string> told;
  std::unique_ptr<Cluster> cluster;
  std::unique_ptr<client::PoolClient> client;
  std::unique_ptr<client::Lease> lease;
  std::optional<CountingWork> work;
};

TEST_F(SessionLossTest, AKilledAgentIsToldOfWithItsName) {
  cluster->processes().kill_agent("b");
  ASSERT_TRUE(eventually([&] { return !heard().empty(); }));
  EXPECT_THAT(heard().front(), HasSubstr("lease " + lease->info().id));
  EXPECT_THAT(heard().front(), HasSubstr("b (127.0.0.1:"));
  EXPECT_THAT(heard().front(), HasSubstr("its agent cannot be reached any more"));
  ASSERT_TRUE(lease->session_lost());
}

TEST_F(SessionLossTest, AKilledWorkerIsToldOfWithItsSignal) {
  const auto workers = children_of(cluster->processes().agent_pid("c"));
  ASSERT_EQ(workers.size(), 1U);
  ::kill(workers.front(), SIGKILL);
  ASSERT_TRUE(eventually([&] { return !heard().empty(); }));
  EXPECT_THAT(heard().front(), HasSubstr("its worker on agent c ended: killed by signal 9 (KILL)"));
}

class StoppedWorkerTest : public SessionLossTest {
 protected:
  void SetUp() override { begin({"worker.timeout=3s"}); }
};

TEST_F(StoppedWorkerTest, IsKilledByItsAgentToldOfAndItsLeaseEnds) {
  const auto workers = children_of(cluster->processes().agent_pid("c"));
  ASSERT_EQ(workers.size(), 1U);
  ::kill(workers.front(), SIGSTOP);
  ASSERT_TRUE(eventually([&] { return !heard().empty(); }));
  EXPECT_THAT(heard().front(), HasSubstr("its worker on agent c ended: it did not answer for 6."));
  EXPECT_TRUE(eventually([&] { return cluster->idle(); })) << "its GPUs are free again";
  EXPECT_FALSE(alive(workers.front()));
}

TEST_F(SessionLossTest, AClientThatLeavesOrOpensAgainIsToldOfNothing) {
  work.reset();
  ASSERT_TRUE(eventually([&] { return cluster->workers().empty(); }));
  auto again = CountingWork::open(*lease, patience());
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_TRUE(again->round());
  // While one session stands, another program of the same lease takes its place.
  auto third = CountingWork::open(*lease, patience());
  ASSERT_TRUE(third) << third.error().message();
  EXPECT_TRUE(third->round());
  EXPECT_FALSE(lease->session_lost()) << lease->session_lost()->message();
  EXPECT_TRUE(lease->release(patience()));
  ASSERT_TRUE(eventually([&] { return cluster->idle(); }));
  EXPECT_THAT(heard(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace cenote::pool::testing
