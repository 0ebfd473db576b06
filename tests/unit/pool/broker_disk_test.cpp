// The broker on a disk that is full or slow.
#include <future>
#include <thread>

#include "tests/unit/pool/broker_core.h"

namespace cenote::pool {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(BrokerCoreTest, LogsBeforeItAnswersAndRefusesWhileItCannot) {
  enrol("a", 2);
  const auto old = lease(1);
  disk_.full = true;
  const auto before = core_->state();
  const auto refused = core_->request(ask(1));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("No space left on device"));
  EXPECT_FALSE(core_->renew(old.id, 0, proof("renew", old.id)));
  EXPECT_FALSE(core_->release(old.id, proof("release", old.id)));
  EXPECT_EQ(core_->state(), before) << "a decision that is not logged was not made";
  EXPECT_THAT(pulse("a", {{old.id, 1}}).end_leases, IsEmpty()) << "the old lease lives";
  EXPECT_EQ(core_->list().size(), 1U);
  disk_.full = false;
  EXPECT_TRUE(core_->request(ask(1)));
  EXPECT_TRUE(core_->renew(old.id, 0, proof("renew", old.id)));
}

// What does not have to be logged does not wait for a disk that takes its time.
TEST_F(BrokerCoreTest, AnswersHeartbeatsAndListingsWhileTheDiskHangs) {
  enrol("a", 3);
  const auto old = lease(1), gone = lease(1);
  disk_.hang();
  auto asked = std::async(std::launch::async, [&] { return core_->request(ask(1)); });
  ASSERT_TRUE(disk_.wait_for_waiters(1));
  auto meanwhile = std::async(std::launch::async, [&] {
    const auto answer = pulse("a", {{old.id, 1}}, {{gone.id, "worker killed by signal 9"}});
    EXPECT_THAT(answer.end_leases, IsEmpty());
    EXPECT_EQ(answer.renewed.size(), 1U);
    EXPECT_EQ(core_->register_agent(hello("a", 3))->term, 1U) << "that it is there is known";
    EXPECT_EQ(core_->list().size(), 2U) << "what is not durable yet is seen by nobody";
    EXPECT_TRUE(core_->top().agents.at(0).alive);
  });
  EXPECT_EQ(meanwhile.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  disk_.let_go();
  meanwhile.wait();
  EXPECT_TRUE(asked.get());
  core_->tick();
  EXPECT_EQ(core_->list().size(), 2U) << "the new one, and not the one whose worker died meanwhile";
}

TEST_F(BrokerCoreTest, RenewalsThatWaitForASlowDiskShareOneWrite) {
  enrol("a", 9);
  std::vector<LeaseView> leases;
  for (int i = 0; i < 8; ++i) leases.push_back(lease(1));
  disk_.hang();
  auto first = std::async(std::launch::async, [&] { return core_->request(ask(1)); });
  ASSERT_TRUE(disk_.wait_for_waiters(1));
  clock_.turn(1000);
  const auto before = disk_.appends;
  std::vector<std::future<Result<LeaseView>>> renewals;
  for (const auto& held : leases) {
    renewals.push_back(std::async(std::launch::async,
                                  [&, p = proof("renew", held.id)] { return core_->renew(held.id, 0, p); }));
  }
  // One that is refused spoils nothing for the others.
  auto refused =
      std::async(std::launch::async, [&] { return core_->renew("none", 0, proof("renew", "none")); });
  EXPECT_EQ(refused.get().error().code, ErrorCode::not_found);
  while (core_->renewals_waiting() < leases.size()) std::this_thread::yield();
  disk_.let_go();
  ASSERT_TRUE(first.get());
  for (std::size_t i = 0; i < leases.size(); ++i) {
    const auto renewed = renewals[i].get();
    ASSERT_TRUE(renewed) << renewed.error().message();
    EXPECT_GT(renewed->expires_ms, leases[i].expires_ms);
  }
  EXPECT_EQ(disk_.appends - before, 2U) << "the grant, and all renewals";
}

// Nobody could renew while the disk was full: that is an outage of the broker like any other.
TEST_F(BrokerCoreTest, ADiskThatWasFullForLongerThanTheTtlLosesNoLease) {
  enrol("a", 2);
  const auto old = lease(1);
  disk_.full = true;
  for (int i = 0; i < 70; ++i) {
    clock_.turn(1000);
    pulse("a", {{old.id, 1}});
    core_->tick();
    if (i % 20 != 0) continue;
    EXPECT_FALSE(core_->renew(old.id, 0, proof("renew", old.id)));
  }
  disk_.full = false;
  pulse("a", {{old.id, 1}});
  core_->tick();
  EXPECT_EQ(core_->list().size(), 1U) << "its holder has not had a chance yet";
  EXPECT_TRUE(core_->renew(old.id, 0, proof("renew", old.id)));
  EXPECT_TRUE(core_->request(ask(1)));
}

TEST_F(BrokerCoreTest, KeepsWhatAgentsConfirmUntilTheDiskHasRoom) {
  enrol("a", 1);
  const auto granted = lease(1);
  disk_.full = true;
  pulse("a", {}, {{granted.id, "worker killed by signal 9"}});
  core_->tick();
  EXPECT_EQ(core_->list().size(), 1U);
  disk_.full = false;
  core_->tick();
  EXPECT_TRUE(core_->list().empty());
  EXPECT_TRUE(core_->request(ask(1)));
}

TEST_F(BrokerCoreTest, ADiskTooFullForSnapshotsStillTakesLeases) {
  policy_.snapshot_every = 3;
  start();
  disk_.full_for_snapshots = true;
  enrol("a", 1);
  for (int i = 0; i < 10; ++i) {
    const auto granted = lease(1);
    ASSERT_TRUE(core_->release(granted.id, proof("release", granted.id)));
    pulse("a", {}, {{granted.id, "done"}});
  }
  disk_.full_for_snapshots = false;
  const auto last = lease(1);
  start();
  EXPECT_EQ(core_->list().front().id, last.id);
}

// To its clients it was away.
TEST_F(BrokerCoreTest, AfterItWasStoppedLeasesHaveTimeToBeRenewed) {
  policy_.absence_ms = 3'000;
  start();
  enrol("a", 2);
  const auto old = lease(1);
  clock_.turn(policy_.default_ttl_ms + policy_.grace_ms / 2);  // its agent keeps it: the grace is not over
  EXPECT_TRUE(core_->renew(old.id, 0, proof("renew", old.id))) << "the first who comes, before any tick";
  clock_.turn(policy_.default_ttl_ms + policy_.grace_ms / 2);
  pulse("a", {{old.id, 1}});
  core_->tick();
  EXPECT_EQ(core_->list().size(), 1U);
  clock_.turn(policy_.default_ttl_ms + policy_.grace_ms + 1);
  core_->tick();
  EXPECT_EQ(core_->list().size(), 0U) << "and no more than that";
}

}  // namespace
}  // namespace cenote::pool
