// The end of a session is told once, with its cause, to an owner that does nothing, opens again, leaves or is
// going away meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/unit/client/fake_network.h"

namespace cenote::pool::client {
namespace {

using std::chrono::hours;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FakeNetwork;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::network_error;
using testing::patience;

const AwaitedEnd kGoesOn{}, kLeft{.over = true, .failed = false},
    kDied{true, true, "its worker ended: killed"};

class SessionEnds : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto client =
        client_over({.broker = "head:4700", .credentials = {}, .call_timeout = hours(1)}, network);
    auto taken = client->lease({}, patience(), nullptr);
    ASSERT_TRUE(taken) << taken.error().message();
    lease = std::move(*taken);
    lease->on_session_loss([this](const Error& error) {
      const std::lock_guard lock(mutex);
      told.push_back(error.message());
    });
  }
  /// Sessions with agents a and b: the numbers by which the agents know them.
  std::pair<std::uint32_t, std::uint32_t> open() {
    const auto workers = lease->open_workers(as_bytes(std::string_view("client")), patience());
    EXPECT_TRUE(workers) << workers.error().message();
    if (!workers || workers->size() != 2) return {};
    return {workers->at(0).channel, workers->at(1).channel};
  }
  void end(std::uint32_t session, Result<AwaitedEnd> how) {
    EXPECT_TRUE(network->ends->answer(network->ends->asked(session).id, std::move(how)));
  }
  std::vector<std::string> heard() {
    network->ends->settle();
    const std::lock_guard lock(mutex);
    return told;
  }

  std::shared_ptr<FakeNetwork> network = std::make_shared<FakeNetwork>();
  std::unique_ptr<Lease> lease;
  std::mutex mutex;
  std::vector<std::string> told;
};

TEST_F(SessionEnds, AreToldWithLeaseAgentAndCause) {
  const auto [a, b] = open();
  end(b, kDied);
  EXPECT_THAT(heard(),
              ElementsAre(AllOf(HasSubstr("lease L1"), HasSubstr("b (b:1)"), HasSubstr(kDied.reason))));
  ASSERT_TRUE(lease->session_lost());
  EXPECT_EQ(lease->session_lost()->code, ErrorCode::peer_failed);
}

TEST_F(SessionEnds, OfAllAgentsAreToldAndTheFirstIsKept) {
  const auto [a, b] = open();
  end(a, kDied);
  EXPECT_EQ(heard().size(), 1U);
  end(b, kDied);
  EXPECT_THAT(heard(), ElementsAre(HasSubstr("a (a:1)"), HasSubstr("b (b:1)")));
  EXPECT_EQ(lease->session_lost()->peer, "a (a:1)");
}

TEST_F(SessionEnds, ByTheirClientsLeaveAreNotTold) {
  const auto [a, b] = open();
  end(a, kLeft);
  end(b, kLeft);
  EXPECT_THAT(heard(), IsEmpty());
  EXPECT_EQ(network->ends->in_flight(), 0U) << "and not asked for again";
}

TEST_F(SessionEnds, AreAskedForAgainWhileTheSessionGoesOn) {
  const auto [a, b] = open();
  for (int asked = 0; asked < 3; ++asked) end(a, kGoesOn);
  end(a, kDied);
  EXPECT_EQ(heard().size(), 1U);
}

TEST_F(SessionEnds, AnAgentThatIsLostIsAskedOnceMoreAndWaitedFor) {
  const auto [a, b] = open();
  end(a, fail(network_error(kNetworkUnavailable)));
  const auto again = network->ends->asked(a);
  EXPECT_TRUE(again.call.connect) << "its connection may have broken, not it";
  EXPECT_EQ(again.call.wait, Clock::duration::zero());
  EXPECT_GT(again.call.patience, Clock::duration::zero());
  EXPECT_THAT(heard(), IsEmpty());
  end(a, kGoesOn);
  EXPECT_FALSE(network->ends->asked(a).call.connect);
  EXPECT_THAT(heard(), IsEmpty());
}

TEST_F(SessionEnds, AnAgentThatStaysAwayIsToldOf) {
  const auto [a, b] = open();
  network->ends->die(a);
  EXPECT_THAT(heard(), ElementsAre(AllOf(HasSubstr("a (a:1)"), HasSubstr("cannot be reached any more"))));
  end(b, kLeft);
}

TEST_F(SessionEnds, AnAgentThatDoesNotKnowTheCallIsLeftAlone) {
  const auto [a, b] = open();
  end(a, fail(ErrorCode::not_supported, "await", "it does not know this call"));
  end(b, fail(ErrorCode::not_supported, "await", "it does not know this call"));
  EXPECT_THAT(heard(), IsEmpty());
  EXPECT_EQ(network->ends->in_flight(), 0U);
}

TEST_F(SessionEnds, OfAnEarlierOpeningAreForgotten) {
  const auto [a, b] = open();
  const auto old = network->ends->asked(a);
  end(b, kDied);
  ASSERT_EQ(heard().size(), 1U);
  const auto [c, d] = open();
  EXPECT_FALSE(lease->session_lost()) << "the new sessions live";
  EXPECT_FALSE(network->ends->answer(old.id, kDied)) << "its call was cancelled";
  end(d, kDied);
  EXPECT_EQ(heard().size(), 2U);
  end(c, kLeft);
}

TEST_F(SessionEnds, AfterAReleaseAreNotTold) {
  open();
  ASSERT_TRUE(lease->release(patience()));
  EXPECT_THAT(heard(), IsEmpty());
  EXPECT_EQ(network->ends->in_flight(), 0U);
}

TEST_F(SessionEnds, WhoIsToldMayOpenAgain) {
  const auto [a, b] = open();
  std::promise<std::uint32_t> opened;
  std::atomic<int> losses{0};
  lease->on_session_loss([&](const Error&) {
    if (++losses == 1) opened.set_value(open().first);
  });
  end(b, kDied);
  end(opened.get_future().get(), kDied);
  network->ends->settle();
  EXPECT_EQ(losses, 2);
}

TEST_F(SessionEnds, ALeaseThatIsBeingDestroyedWaitsForWhoIsBeingToldAndTellsNoMore) {
  const auto [a, b] = open();
  std::promise<void> inside, go_on;
  std::atomic<int> losses{0};
  std::atomic<bool> returned{false};
  lease->on_session_loss([&, held = lease.get()](const Error&) {
    if (++losses > 1) return;
    inside.set_value();
    go_on.get_future().wait();
    EXPECT_TRUE(held->session_lost()) << "it can still be asked";
    returned = true;
  });
  end(a, kDied);
  inside.get_future().wait();
  end(b, kDied);  // waits behind
  std::thread destroying([this] { lease.reset(); });
  network->ends->await_shut();
  EXPECT_FALSE(returned);
  go_on.set_value();
  destroying.join();
  EXPECT_TRUE(returned);
  EXPECT_EQ(losses, 1);
}

TEST_F(SessionEnds, EachIsToldAtMostOnceThoughTheLeaseIsDestroyedMeanwhile) {
  for (int round = 0; round < 100; ++round) {
    network = std::make_shared<FakeNetwork>();
    SetUp();
    const auto [a, b] = open();
    std::atomic<int> losses{0};
    std::atomic<bool> destroyed{false};
    lease->on_session_loss([&](const Error&) {
      EXPECT_FALSE(destroyed) << "told after its end";
      ++losses;
    });
    const auto first = network->ends->asked(a).id, second = network->ends->asked(b).id;
    std::thread agents([&] {
      network->ends->answer(first, kDied);
      network->ends->answer(second, kDied);
    });
    if (round % 2 == 1) agents.join();
    lease.reset();
    destroyed = true;
    if (round % 2 == 0) agents.join();
    EXPECT_LE(losses, 2);
  }
}

TEST_F(SessionEnds, ThatWereBeingToldWhileTheLeaseWasOpenedAgainDoNotCountAgainstTheNewSessions) {
  // They keep the lease busy, so that who tells and who opens meet in the midst of what they do.
  std::atomic<bool> enough{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      while (!enough) static_cast<void>(lease->info());
    });
  }
  for (int round = 0; round < 300 && !HasFailure(); ++round) {
    const auto [a, b] = open();
    const auto first = network->ends->asked(a).id, second = network->ends->asked(b).id;
    std::thread agents([&] {
      network->ends->answer(first, kDied);
      network->ends->answer(second, kDied);
    });
    open();
    agents.join();
    network->ends->settle();
    const auto lost = lease->session_lost();
    EXPECT_FALSE(lost) << "in round " << round << ": " << lost->message();
  }
  enough = true;
  for (auto& reader : readers) reader.join();
}

}  // namespace
}  // namespace cenote::pool::client
