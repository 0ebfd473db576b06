// Whoever waits for a broker or an agent that hangs or is away is let go by his cancel, in whatever he waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "tests/unit/client/fake_network.h"

namespace cenote::pool::client {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using testing::answers;
using testing::away;
using testing::Behaviour;
using testing::FakeNetwork;
using testing::hangs;
using testing::patience;
using testing::refuses;

class Cancelled : public ::testing::TestWithParam<Behaviour::Kind> {
 protected:
  std::unique_ptr<PoolClient> client() {
    return client_over({.broker = "head:4700", .credentials = {}, .call_timeout = hours(1)}, network);
  }
  std::unique_ptr<Lease> take() {
    auto lease = client()->lease({}, patience());
    EXPECT_TRUE(lease) << lease.error().message();
    return lease ? std::move(*lease) : nullptr;
  }
  static Behaviour behaviour() { return {GetParam(), {}}; }
  /// Waits with an hour to go, and is cancelled once `begun` says that it does.
  template <class Wait, class Begun>
  void expect_let_go(const Wait& wait, const Begun& begun) {
    auto waiting = std::async(std::launch::async, wait);
    EXPECT_TRUE(network->eventually(begun));
    cancel.raise();
    const bool let_go = waiting.wait_for(std::chrono::seconds(30)) == std::future_status::ready;
    EXPECT_TRUE(let_go) << "it waits on";
    for (auto set : {&FakeNetwork::grants, &FakeNetwork::releases, &FakeNetwork::openings}) {
      ((*network).*set)(answers());
    }
    if (let_go) {
      EXPECT_EQ(waiting.get(), ErrorCode::cancelled);
    }
  }
  template <class T>
  static ErrorCode code(const Result<T>& result) {
    return result ? ErrorCode::internal : result.error().code;
  }

  std::shared_ptr<FakeNetwork> network = std::make_shared<FakeNetwork>();
  CancelFlag cancel;
};

TEST_P(Cancelled, WhoWaitsForALease) {
  network->grants(behaviour());
  expect_let_go([&] { return code(client()->lease({}, Deadline::in(hours(1)), &cancel)); },
                [](auto& n) { return n.grant_count.begun >= 1; });
}

TEST_P(Cancelled, WhoWaitsForTheSessionsOfALease) {
  const auto lease = take();
  network->openings(behaviour());
  expect_let_go(
      [&] {
        return code(
            lease->open_workers(as_bytes(std::string_view("client")), Deadline::in(hours(1)), &cancel));
      },
      [](auto& n) { return n.open_count.begun >= 1; });
}

TEST_P(Cancelled, WhoOpensTheDevicesOfALease) {
  const auto lease = take();
  network->openings(behaviour());
  expect_let_go([&] { return code(lease->open(Deadline::in(hours(1)), &cancel)); },
                [](auto& n) { return n.open_count.begun >= 1; });
}

TEST_P(Cancelled, WhoGivesBackALease) {
  const auto lease = take();
  network->releases(behaviour());
  expect_let_go([&] { return code(lease->release(Deadline::in(hours(1)), &cancel)); },
                [](auto& n) { return n.release_count.begun >= 1; });
}

INSTANTIATE_TEST_SUITE_P(Peers, Cancelled, ::testing::Values(Behaviour::Kind::hangs, Behaviour::Kind::away),
                         [](const auto& kind) {
                           return kind.param == Behaviour::Kind::hangs ? "Hangs" : "Away";
                         });

using LeaseRequest = Cancelled;

TEST_F(LeaseRequest, ThatWaitsForFreeGpusIsLetGo) {
  network->grants(refuses(ErrorCode::resource_exhausted));
  expect_let_go([&] { return code(client()->lease({.wait = hours(1)}, Deadline::in(hours(1)), &cancel)); },
                [](auto& n) { return n.grant_count.begun >= 3; });
}

TEST_F(LeaseRequest, ThatMayNotWaitIsRefusedWithTheReason) {
  network->grants(refuses(ErrorCode::resource_exhausted));
  EXPECT_EQ(code(client()->lease({}, patience())), ErrorCode::resource_exhausted);
  EXPECT_EQ(network->read([](auto& n) { return n.grant_count.begun; }), 1);
}

TEST_F(LeaseRequest, ThatIsAnsweredThoughItWasCancelledIsALease) {
  network->grants(answers());
  cancel.raise();
  EXPECT_TRUE(client()->lease({}, patience(), &cancel)) << "nobody else would give it back";
}

TEST_F(LeaseRequest, ThatIsRefusedThoughItWasCancelledSaysWhy) {
  network->grants(refuses(ErrorCode::invalid_argument));
  cancel.raise();
  EXPECT_EQ(code(client()->lease({}, patience(), &cancel)), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace cenote::pool::client
