// One worker for each lease, for as long as the lease lasts, and a broker that hears the truth.
#include "pool/agent/core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/unit/agent/leases.h"

namespace cenote::pool::agent {
namespace {

using testing::FakeHost;
using ::testing::HasSubstr;
using testing::kNow;
using testing::Parties;

class AgentCoreTest : public ::testing::Test {
 protected:
  AgentCoreTest() {
    RegistrationTerms terms;
    terms.broker_key = parties.broker.public_key();
    terms.grace_seconds = 30;
    core.registered(terms);
  }

  Result<SessionReply> open(const LeaseToken& token, std::string_view client = "client 1") {
    const auto claim = parties.sign(token, now + ++proofs);
    return core.open(claim.claim(), as_bytes(client), Deadline::in(std::chrono::seconds(30)));
  }
  /// While `work` runs, workers that are asked to end do.
  template <class Work>
  auto with_reaper(const Work& work) {
    std::atomic<bool> done{false};
    std::thread reaper([&] {
      while (!done) {
        host.reap(core);
        std::this_thread::yield();
      }
    });
    auto result = work();
    done = true;
    reaper.join();
    host.reap(core);
    return result;
  }
  std::vector<std::string> ended_reasons() {
    std::vector<std::string> reasons;
    for (const auto& ended : core.report().ended) reasons.push_back(ended.lease_id + ": " + ended.reason);
    return reasons;
  }

  std::atomic<std::int64_t> now{kNow};
  std::int64_t proofs = 0;
  Parties parties;
  FakeHost host;
  AgentCore core{
      CoreOptions{
          .agent = "a", .devices = testing::two_devices(), .now_unix_ms = [this] { return now.load(); }},
      host};
};

TEST_F(AgentCoreTest, StartsAWorkerWithTheLeasedDevicesAndTheirLimits) {
  const auto reply = open(parties.token());
  ASSERT_TRUE(reply) << reply.error().message();
  EXPECT_EQ(as_text(reply->worker_fabric_address), "worker 1");
  EXPECT_THAT(reply->device_uuids, ::testing::ElementsAre("gpu-0"));
  ASSERT_EQ(host.setups.size(), 1U);
  EXPECT_THAT(host.setups[0].memory_limits, ::testing::ElementsAre(1024U));
  EXPECT_EQ(host.setups[0].channel, reply->channel);
}

TEST_F(AgentCoreTest, NeverGivesALeaseMoreMemoryThanTheDeviceHas) {
  auto token = parties.token();
  token.devices[0].memory_bytes = 1ULL << 40;
  ASSERT_TRUE(open(token));
  EXPECT_THAT(host.setups[0].memory_limits, ::testing::ElementsAre(4096U));
}

TEST_F(AgentCoreTest, GivesTheSameClientTheSameWorkerAgain) {
  ASSERT_TRUE(open(parties.token()));
  const auto again = open(parties.token());
  ASSERT_TRUE(again);
  EXPECT_EQ(as_text(again->worker_fabric_address), "worker 1");
  EXPECT_EQ(host.setups.size(), 1U);
}

TEST_F(AgentCoreTest, ANewSessionOfALeaseReplacesTheOld) {
  ASSERT_TRUE(open(parties.token(), "client 1"));
  const auto second = with_reaper([&] { return open(parties.token(), "client 2"); });
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_EQ(as_text(second->worker_fabric_address), "worker 2");
  EXPECT_EQ(host.live.size(), 1U);
  EXPECT_TRUE(ended_reasons().empty()) << "the lease goes on";
}

TEST_F(AgentCoreTest, ANewerEpochEndsTheOlderLeaseFirst) {
  ASSERT_TRUE(open(parties.token("L1", 1)));
  const auto second = with_reaper([&] { return open(parties.token("L2", 2)); });
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_EQ(host.live, (std::set<FakeHost::Key>{{"L2", 2}}));
  EXPECT_THAT(ended_reasons(), ::testing::ElementsAre(HasSubstr("L1: fenced")));
  EXPECT_FALSE(open(parties.token("L1", 1)));
}

TEST_F(AgentCoreTest, LeasesThatFitTogetherShareADevice) {
  for (const auto* id : {"L1", "L2"}) {
    auto token = parties.token(id, id[1] == '1' ? 1 : 2);
    token.devices[0].memory_bytes = 2048;
    token.devices[0].compute_share_millis = 500;
    ASSERT_TRUE(open(token, id));
  }
  EXPECT_EQ(host.live.size(), 2U);
  EXPECT_EQ(core.report().devices[0].lease_id, "L1,L2");
  EXPECT_EQ(core.report().devices[0].use.launches, 14U);
}

TEST_F(AgentCoreTest, ReportsALeaseAsEndedOnlyAfterItsWorkerWasReaped) {
  ASSERT_TRUE(open(parties.token()));
  core.ordered({.end_leases = {"L1"}});
  EXPECT_TRUE(ended_reasons().empty());
  EXPECT_EQ(core.report().live.size(), 1U);
  host.reap(core);
  EXPECT_THAT(ended_reasons(), ::testing::ElementsAre(HasSubstr("the broker ended it")));
  EXPECT_TRUE(core.report().live.empty());
}

TEST_F(AgentCoreTest, ConfirmsAtOnceTheEndOfALeaseThatHasNoWorkerHere) {
  core.ordered({.end_leases = {"L9"}});
  EXPECT_THAT(ended_reasons(), ::testing::ElementsAre(HasSubstr("L9")));
  EXPECT_FALSE(open(parties.token("L9"))) << "and refuses it from then on";
}

TEST_F(AgentCoreTest, TellsTheBrokerAtOnceWhenAWorkerDies) {
  std::atomic<int> news{0};
  core.on_news([&] { ++news; });
  ASSERT_TRUE(open(parties.token()));
  const int before = news;
  core.worker_ended("L1", 1, {true, "killed by signal 9 (KILL)"});
  EXPECT_GT(news, before);
  EXPECT_THAT(ended_reasons(),
              ::testing::ElementsAre(HasSubstr("worker on agent a died: killed by signal 9 (KILL)")));
}

TEST_F(AgentCoreTest, ALeaseOutlivesTheSessionThatItsClientLeft) {
  ASSERT_TRUE(open(parties.token()));
  core.worker_ended("L1", 1, {false, "the client left"});
  EXPECT_TRUE(ended_reasons().empty());
  EXPECT_TRUE(core.report().live.empty());
  EXPECT_TRUE(open(parties.token()));
}

TEST_F(AgentCoreTest, AFailedStartEndsNoLease) {
  host.refuse = true;
  const auto refused = open(parties.token());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::resource_exhausted);
  core.worker_ended("L1", 1, {true, "exit code 10"});
  EXPECT_TRUE(ended_reasons().empty());
  host.refuse = false;
  EXPECT_TRUE(open(parties.token()));
}

TEST_F(AgentCoreTest, KeepsLeasesForTheGraceAfterTheirExpiry) {
  ASSERT_TRUE(open(parties.token()));
  core.broker_lost();
  now = kNow + 60'000 + 29'000;
  core.tick();
  EXPECT_TRUE(host.stopped.empty());
  now = kNow + 60'000 + 31'000;
  core.tick();
  host.reap(core);
  EXPECT_THAT(ended_reasons(), ::testing::ElementsAre(HasSubstr("expired")));
}

TEST_F(AgentCoreTest, RenewalsMoveTheExpiry) {
  ASSERT_TRUE(open(parties.token()));
  core.ordered({.renewed = {{"L1", kNow + 600'000}}});
  now = kNow + 500'000;
  core.tick();
  EXPECT_TRUE(host.stopped.empty());
}

TEST_F(AgentCoreTest, KeepsAnEndUntilTheBrokerHasTakenIt) {
  core.ordered({.end_leases = {"L9"}});
  const auto report = core.report();
  EXPECT_EQ(core.report().ended.size(), 1U);
  core.reported(report);
  EXPECT_TRUE(core.report().ended.empty());
}

TEST_F(AgentCoreTest, ReportsWhoHoldsWhatAndItsLoad) {
  ASSERT_TRUE(open(parties.token("L1", 3, "gpu-1")));
  const auto report = core.report();
  ASSERT_EQ(report.devices.size(), 2U);
  EXPECT_EQ(report.devices[0].lease_id, "");
  EXPECT_EQ(report.devices[1].lease_id, "L1");
  EXPECT_EQ(report.devices[1].use.memory_used, 512U);
  EXPECT_EQ(report.live[0].epoch, 3U);
}

TEST_F(AgentCoreTest, ClosingNeedsAProofOfItsOwn) {
  ASSERT_TRUE(open(parties.token()));
  const auto deadline = Deadline::in(std::chrono::seconds(30));
  const auto thief = testing::new_key();
  const auto stolen = make_proof(thief, "close", "L1", "a", kNow + 50);
  EXPECT_FALSE(core.close("L1", stolen->signature, stolen->unix_ms, deadline));
  const auto proof = make_proof(parties.client, "close", "L1", "a", kNow + 50);
  const auto closed =
      with_reaper([&] { return core.close("L1", proof->signature, proof->unix_ms, deadline); });
  EXPECT_TRUE(closed) << closed.error().message();
  EXPECT_TRUE(host.live.empty());
}

TEST_F(AgentCoreTest, ShutsDownWithEveryWorkerReapedAndTakesNoMore) {
  ASSERT_TRUE(open(parties.token("L1", 1, "gpu-0")));
  ASSERT_TRUE(open(parties.token("L2", 1, "gpu-1")));
  with_reaper([&] {
    core.shut_down(Deadline::in(std::chrono::seconds(30)));
    return 0;
  });
  EXPECT_TRUE(host.live.empty());
  EXPECT_THAT(ended_reasons(), ::testing::SizeIs(2));
  EXPECT_FALSE(open(parties.token("L3", 9)));
}

TEST_F(AgentCoreTest, ManyClientsAtOnceNeverShareADevice) {
  std::vector<std::thread> clients;
  std::atomic<int> served{0};
  with_reaper([&] {
    for (int i = 0; i < 6; ++i) {
      clients.emplace_back([&, i] {
        const auto id = "M" + std::to_string(i);
        const auto token = parties.token(id, static_cast<std::uint64_t>(i + 1));
        const auto claim = parties.sign(token, now + 1);
        if (core.open(claim.claim(), as_bytes(id), Deadline::in(std::chrono::seconds(30)))) ++served;
      });
    }
    for (auto& client : clients) client.join();
    return 0;
  });
  EXPECT_GE(served, 1);
  EXPECT_LE(core.report().live.size(), 1U);
  EXPECT_EQ(host.live.size(), core.report().live.size());
}

TEST_F(AgentCoreTest, TellsWhoWaitsWhyASessionEnded) {
  const auto reply = open(parties.token());
  ASSERT_TRUE(reply);
  const auto never = [] { return false; };
  auto waiting = std::async(std::launch::async, [&] {
    return core.await_end("L1", reply->channel, Deadline::in(std::chrono::seconds(60)), never);
  });
  core.worker_ended("L1", 1, {true, "killed by signal 9 (KILL)"});
  const auto end = waiting.get();
  EXPECT_TRUE(end.over);
  EXPECT_TRUE(end.failed);
  EXPECT_EQ(end.reason, "its worker on agent a ended: killed by signal 9 (KILL)");
  const auto late = core.await_end("L1", reply->channel, Deadline::in(std::chrono::seconds(60)), never);
  EXPECT_EQ(late.reason, end.reason) << "also to those who ask when it is over";
}

TEST_F(AgentCoreTest, ASessionThatItsClientLeftIsOverWithoutAFailure) {
  const auto reply = open(parties.token());
  ASSERT_TRUE(reply);
  core.worker_ended("L1", 1, {false, ""});
  const auto end =
      core.await_end("L1", reply->channel, Deadline::in(std::chrono::seconds(60)), [] { return false; });
  EXPECT_TRUE(end.over);
  EXPECT_FALSE(end.failed);
}

TEST_F(AgentCoreTest, ASessionOfAnEarlierLifeOfTheAgentHasFailed) {
  const auto end = core.await_end("L1", 77, Deadline::in(std::chrono::seconds(60)), [] { return false; });
  EXPECT_TRUE(end.over && end.failed);
  EXPECT_THAT(end.reason, HasSubstr("agent a does not know this session"));
}

TEST_F(AgentCoreTest, NobodyIsKeptWaitingLongerThanHeWants) {
  const auto reply = open(parties.token());
  ASSERT_TRUE(reply);
  const auto never = [] { return false; };
  EXPECT_FALSE(core.await_end("L1", reply->channel, Deadline::in(Clock::duration::zero()), never).over);
  EXPECT_FALSE(
      core.await_end("L1", reply->channel, Deadline::in(std::chrono::hours(1)), [] { return true; }).over);
}

}  // namespace
}  // namespace cenote::pool::agent
