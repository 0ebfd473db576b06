// Who holds a lease and makes no GPU call hears all the same when its GPUs are gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "tests/fault_row.h"
#include "tests/multi/agent/cluster.h"
#include "tests/multi/agent/work.h"

namespace cenote::pool::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

class SessionLossTest : public ::testing::Test {
 protected:
  // The broker must not end the lease of a dead agent before its client has heard of the agent.
  void SetUp() override { begin({"broker.agent_dead=10m"}); }
  void begin(std::vector<std::string> settings) {
    cluster = Cluster::start(std::move(settings));
    ASSERT_NE(cluster, nullptr);
    client = cluster->client();
    take_a_lease();
  }
  void take_a_lease() {
    work.reset();
    lease.reset();
    told.clear();
    // Those of a lease that has just ended are being cleared.
    auto granted =
        client->lease({.gpus = 4, .ttl = std::chrono::minutes(10), .wait = patience().left()}, patience());
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
  /// Of one of the losses told so far: the broker may end the lease, and with it the other sessions,
  /// meanwhile.
  bool heard_of(const std::string& words) {
    const auto all = heard();
    return std::ranges::any_of(all, [&](const auto& one) { return one.find(words) != std::string::npos; });
  }
  /// 3 s are promised; a single death may meet a machine that is busy with something else.
  static void expect_within_promise(std::vector<Clock::duration> told_after) {
    std::ranges::sort(told_after);
    EXPECT_LT(told_after[told_after.size() / 2], std::chrono::seconds(3));
  }

  std::mutex mutex;
  std::vector<std::string> told;
  std::unique_ptr<Cluster> cluster;
  std::unique_ptr<client::PoolClient> client;
  std::unique_ptr<client::Lease> lease;
  std::optional<CountingWork> work;
};

TEST_F(SessionLossTest, AKilledAgentIsToldOfWithItsName) {
  std::vector<Clock::duration> told_after;
  for (const std::string agent : {"b", "c", "a"}) {
    cluster->processes().kill_agent(agent);
    const auto killed = Clock::now();
    ASSERT_TRUE(eventually([&] { return heard_of(" " + agent + " (127.0.0.1:"); })) << agent;
    told_after.push_back(Clock::now() - killed);
    EXPECT_THAT(heard(), Contains(AllOf(HasSubstr("lease " + lease->info().id),
                                        HasSubstr(" " + agent + " (127.0.0.1:"),
                                        HasSubstr("its agent cannot be reached any more"))));
    ASSERT_TRUE(lease->session_lost());
  }
  expect_within_promise(told_after);
  cenote::test::tried({"The pool", "an agent is killed while the client is idle", told_after.size(),
                       "the client is told, with the agent's name", "so"});
}

TEST_F(SessionLossTest, AKilledWorkerIsToldOfWithItsSignal) {
  std::vector<Clock::duration> told_after;
  for (int round = 0; round < 3; ++round) {
    const auto workers = children_of(cluster->processes().agent_pid("c"));
    ASSERT_EQ(workers.size(), 1U);
    ::kill(workers.front(), SIGKILL);
    const auto killed = Clock::now();
    ASSERT_TRUE(eventually([&] {
      return heard_of("its worker on agent c ended: killed by signal 9 (KILL)");
    })) << ::testing::PrintToString(heard());
    told_after.push_back(Clock::now() - killed);
    work.reset();
    ASSERT_TRUE(eventually([&] { return cluster->idle(); })) << "its lease ends";
    take_a_lease();
    if (HasFatalFailure()) return;
  }
  expect_within_promise(told_after);
  cenote::test::tried({"The pool", "a worker is killed while the client is idle", told_after.size(),
                       "the client is told, with the signal, and the lease ends", "so"});
}

class StoppedWorkerTest : public SessionLossTest {
 protected:
  void SetUp() override { begin({"worker.timeout=3s"}); }
};

TEST_F(StoppedWorkerTest, IsKilledByItsAgentToldOfAndItsLeaseEnds) {
  const auto workers = children_of(cluster->processes().agent_pid("c"));
  ASSERT_EQ(workers.size(), 1U);
  ::kill(workers.front(), SIGSTOP);
  ASSERT_TRUE(eventually([&] { return heard_of("its worker on agent c ended: it did not answer for "); }))
      << ::testing::PrintToString(heard());
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
