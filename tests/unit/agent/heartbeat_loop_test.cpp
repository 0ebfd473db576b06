// The loop that keeps the broker informed, against a broker that comes and goes.
#include "pool/agent/heartbeat_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <thread>

#include "tests/unit/agent/fake_broker.h"
#include "tests/unit/agent/leases.h"

namespace cenote::pool::agent {
namespace {

using testing::FakeBroker;
using testing::FakeHost;
using testing::kNow;
using testing::Parties;

class HeartbeatLoopTest : public ::testing::Test {
 protected:
  Parties parties;
  FakeHost host;
  AgentCore core{
      CoreOptions{.agent = "a", .devices = testing::two_devices(), .now_unix_ms = [] { return kNow; }}, host};
  FakeBroker broker{parties.broker.public_key()};
  HeartbeatOptions quick{.first_retry = std::chrono::milliseconds(1),
                         .longest_retry = std::chrono::milliseconds(10)};
};

TEST_F(HeartbeatLoopTest, RegistersThenBeats) {
  HeartbeatLoop loop(core, broker, quick);
  loop.start();
  EXPECT_TRUE(broker.eventually([&] { return broker.beats >= 3; }));
  EXPECT_EQ(broker.registrations, 1);
}

TEST_F(HeartbeatLoopTest, KeepsTryingABrokerThatIsNotThereYet) {
  broker.down = true;
  HeartbeatLoop loop(core, broker, quick);
  loop.start();
  ASSERT_TRUE(broker.eventually([&] { return broker.refused >= 3; }));
  broker.change([&] { broker.down = false; });
  EXPECT_TRUE(broker.eventually([&] { return broker.beats >= 1; }));
}

TEST_F(HeartbeatLoopTest, RegistersAgainWithABrokerThatForgotIt) {
  HeartbeatLoop loop(core, broker, quick);
  loop.start();
  ASSERT_TRUE(broker.eventually([&] { return broker.beats >= 1; }));
  broker.change([&] { broker.knows_agent = false; });
  EXPECT_TRUE(broker.eventually([&] { return broker.registrations == 2; }));
}

TEST_F(HeartbeatLoopTest, ConfirmsAnEndWithoutWaitingForTheNextBeat) {
  broker.heartbeat_ms = 60'000;
  HeartbeatLoop loop(core, broker, quick);
  loop.start();
  ASSERT_TRUE(broker.eventually([&] { return broker.registrations == 1; }));
  core.ordered({.end_leases = {"L9"}});
  EXPECT_TRUE(broker.eventually([&] { return broker.confirmed == std::vector<std::string>{"L9"}; }))
      << "a minute would pass until the next beat by the clock";
}

TEST_F(HeartbeatLoopTest, ConfirmsOnceThoughTheBrokerWasAwayMeanwhile) {
  HeartbeatLoop loop(core, broker, quick);
  loop.start();
  ASSERT_TRUE(broker.eventually([&] { return broker.beats >= 1; }));
  broker.change([&] { broker.down = true; });
  core.ordered({.end_leases = {"L9"}});
  ASSERT_TRUE(broker.eventually([&] { return broker.refused >= 2; }));
  broker.change([&] { broker.down = false; });
  int seen = 0;
  ASSERT_TRUE(broker.eventually([&] { return !broker.confirmed.empty(); }));
  broker.change([&] { seen = broker.beats; });
  ASSERT_TRUE(broker.eventually([&] { return broker.beats >= seen + 3; }));
  loop.finish();
  EXPECT_THAT(broker.confirmed, ::testing::ElementsAre("L9"));
}

TEST_F(HeartbeatLoopTest, TellsOfEveryChangeBetweenReachableAndNot) {
  std::mutex mutex;
  std::vector<bool> contacts;
  quick.on_contact = [&](const Error* error) {
    const std::lock_guard lock(mutex);
    contacts.push_back(error == nullptr);
  };
  broker.down = true;
  HeartbeatLoop loop(core, broker, quick);
  loop.start();
  ASSERT_TRUE(broker.eventually([&] { return broker.refused >= 2; }));
  broker.change([&] { broker.down = false; });
  ASSERT_TRUE(broker.eventually([&] { return broker.beats >= 2; }));
  loop.finish();
  EXPECT_THAT(contacts, ::testing::ElementsAre(false, true));
}

TEST_F(HeartbeatLoopTest, DoesNotWaitForABrokerThatIsAwayWhenItFinishes) {
  broker.hanging = true;
  HeartbeatLoop loop(core, broker, quick);
  loop.start();
  ASSERT_TRUE(broker.eventually([&] { return broker.waiting == 1; }));
  loop.finish();
  EXPECT_EQ(broker.registrations, 0);
}

TEST_F(HeartbeatLoopTest, IsNotToldOfNewsOnceItIsGone) {
  for (int round = 0; round < 50; ++round) {
    std::optional<HeartbeatLoop> loop(std::in_place, core, broker, quick);
    loop->start();
    std::thread news([&] {
      for (int i = 0; i < 20; ++i) core.ordered({.end_leases = {"L" + std::to_string(i)}});
    });
    loop.reset();
    news.join();
  }
}

TEST_F(HeartbeatLoopTest, SaysItsLastWordsWhenItFinishes) {
  broker.heartbeat_ms = 60'000;
  HeartbeatLoop loop(core, broker, quick);
  loop.start();
  ASSERT_TRUE(broker.eventually([&] { return broker.registrations == 1; }));
  core.shut_down(Deadline::in(std::chrono::seconds(1)));
  core.ordered({.end_leases = {"L7"}});
  loop.finish();
  EXPECT_THAT(broker.confirmed, ::testing::ElementsAre("L7"));
}

}  // namespace
}  // namespace cenote::pool::agent
