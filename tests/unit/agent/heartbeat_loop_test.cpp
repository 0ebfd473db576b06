// The loop that keeps the broker informed, against a broker that comes and goes.
#include "pool/agent/heartbeat_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "tests/unit/agent/leases.h"

namespace cenote::pool::agent {
namespace {

using testing::FakeHost;
using testing::kNow;
using testing::Parties;

class FakeBroker final : public BrokerPort {
 public:
  explicit FakeBroker(PublicKey key) : key_(key) {}

  Result<RegistrationTerms> register_agent(const AgentReport&) override {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
    if (down) {
      ++refused;
      return fail(ErrorCode::peer_failed, "register", "connection refused");
    }
    ++registrations;
    knows_agent = true;
    RegistrationTerms terms;
    terms.broker_key = key_;
    terms.heartbeat_ms = heartbeat_ms;
    terms.grace_seconds = 30;
    return terms;
  }
  Result<HeartbeatOrders> heartbeat(const AgentReport& report) override {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
    if (down) {
      ++refused;
      return fail(ErrorCode::peer_failed, "heartbeat", "connection refused");
    }
    HeartbeatOrders orders;
    orders.register_again = !knows_agent;
    if (knows_agent) {
      ++beats;
      for (const auto& ended : report.ended) confirmed.push_back(ended.lease_id);
      orders.end_leases = std::exchange(to_end, {});
    }
    return orders;
  }
  /// Waits until `condition` holds; false = it never did.
  template <class Condition>
  bool eventually(const Condition& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), condition);
  }
  template <class Change>
  void change(const Change& change) {
    const std::lock_guard lock(mutex_);
    change();
  }

  bool down = false, knows_agent = false;
  std::uint32_t heartbeat_ms = 10;
  int registrations = 0, beats = 0, refused = 0;
  std::vector<std::string> to_end, confirmed;

 private:
  const PublicKey key_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

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
