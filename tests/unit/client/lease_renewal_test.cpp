// A lease renews itself whatever its broker does, tells once when it is lost, and never keeps its owner.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/unit/client/fake_network.h"

namespace cenote::pool::client {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using testing::answers;
using testing::away;
using testing::FakeNetwork;
using testing::hangs;
using ::testing::HasSubstr;
using testing::patience;
using testing::refuses;

class LeaseRenewal : public ::testing::Test {
 protected:
  std::unique_ptr<Lease> take(Clock::duration one_try = hours(1)) {
    const auto client =
        client_over({.broker = "head:4700", .credentials = {}, .call_timeout = one_try}, network);
    auto lease = client->lease({}, patience(), nullptr);
    EXPECT_TRUE(lease) << lease.error().message();
    return lease ? std::move(*lease) : nullptr;
  }
  bool renewed(int times) {
    return network->eventually([&](auto& n) { return n.renew_count.answered >= times; });
  }
  bool tried(int times) {
    return network->eventually([&](auto& n) { return n.renew_count.begun >= times; });
  }
  int tries() {
    return network->read([](auto& n) { return n.renew_count.begun; });
  }

  std::shared_ptr<FakeNetwork> network = std::make_shared<FakeNetwork>();
};

TEST_F(LeaseRenewal, GoesOnAndOnWithTheTokenAndTheExpiryThatTheBrokerTold) {
  const auto lease = take();
  ASSERT_TRUE(renewed(4));
  EXPECT_GT(lease->info().expires_unix_ms, network->lease.expires_unix_ms);
  EXPECT_THAT(std::string(as_text(lease->file().token)), HasSubstr("token "));
  EXPECT_FALSE(lease->lost());
}

TEST_F(LeaseRenewal, WaitsForABrokerThatIsSlowAndTakesItsAnswer) {
  network->renewals(hangs());
  const auto lease = take();
  ASSERT_TRUE(network->eventually([](auto& n) { return n.renew_count.in_flight == 1; }));
  network->renewals(answers());
  ASSERT_TRUE(renewed(2));
  EXPECT_FALSE(lease->lost());
}

TEST_F(LeaseRenewal, AsksABrokerThatHangsAgainAfterEachTry) {
  network->renewals(hangs());
  const auto lease = take(milliseconds(5));
  ASSERT_TRUE(tried(3));
  EXPECT_FALSE(lease->lost()) << "silence is no refusal";
  network->renewals(answers());
  EXPECT_TRUE(renewed(1));
}

TEST_F(LeaseRenewal, OutlivesABrokerThatDiesAndComesBack) {
  const auto lease = take();
  ASSERT_TRUE(renewed(1));
  for (int death = 0; death < 2; ++death) {
    network->renewals(away());
    ASSERT_TRUE(tried(tries() + 3));
    EXPECT_FALSE(lease->lost());
    const auto before = network->read([](auto& n) { return n.renew_count.answered; });
    network->renewals(answers());
    ASSERT_TRUE(renewed(before + 2));
  }
}

TEST_F(LeaseRenewal, ARefusalThatMayPassIsAskedAgain) {
  network->renewals(refuses(ErrorCode::resource_exhausted));
  const auto lease = take();
  ASSERT_TRUE(tried(3));
  EXPECT_FALSE(lease->lost()) << "a broker with a full disk may renew it in a second";
  network->renewals(answers());
  EXPECT_TRUE(renewed(1));
}

class FinalRefusal : public LeaseRenewal, public ::testing::WithParamInterface<ErrorCode> {};

TEST_P(FinalRefusal, IsToldOnceAndEndsTheRenewals) {
  network->renewals(refuses(GetParam()));
  auto lease = take();
  std::atomic<int> told{0};
  lease->on_loss([&](const Error& error) {
    EXPECT_EQ(error.code, GetParam());
    ++told;
  });
  while (told == 0) std::this_thread::yield();
  ASSERT_TRUE(lease->lost());
  EXPECT_EQ(lease->lost()->code, GetParam());
  lease.reset();
  EXPECT_EQ(told, 1);
  EXPECT_EQ(tries(), 1);
}

INSTANTIATE_TEST_SUITE_P(Codes, FinalRefusal,
                         ::testing::Values(ErrorCode::not_found, ErrorCode::permission_denied,
                                           ErrorCode::invalid_argument));

TEST_F(LeaseRenewal, WhoAsksToBeToldWhileItIsLostIsToldExactlyOnce) {
  for (int round = 0; round < 20; ++round) {
    network->renewals(hangs());
    auto lease = take();
    ASSERT_TRUE(network->eventually([](auto& n) { return n.renew_count.in_flight == 1; }));
    std::atomic<int> told{0};
    std::thread broker([&] { network->renewals(refuses(ErrorCode::not_found)); });
    lease->on_loss([&](const Error&) { ++told; });
    broker.join();
    while (!lease->lost()) std::this_thread::yield();
    lease.reset();
    EXPECT_EQ(told, 1);
  }
}

TEST_F(LeaseRenewal, WhoIsToldMayReleaseIt) {
  network->renewals(refuses(ErrorCode::not_found));
  network->releases(refuses(ErrorCode::not_found));
  const auto lease = take();
  std::atomic<bool> done{false};
  lease->on_loss([&](const Error&) {
    const auto released = lease->release(patience());
    EXPECT_FALSE(released);
    EXPECT_EQ(released.error().code, ErrorCode::not_found);
    done = true;
  });
  while (!done) std::this_thread::yield();
}

TEST_F(LeaseRenewal, DestroyingItEndsACallThatHangs) {
  network->renewals(hangs());
  auto lease = take();
  ASSERT_TRUE(network->eventually([](auto& n) { return n.renew_count.in_flight == 1; }));
  lease.reset();
  EXPECT_EQ(network->read([](auto& n) { return n.renew_count.in_flight; }), 0);
}

TEST_F(LeaseRenewal, DestroyingItEndsTheWaitForABrokerThatIsAway) {
  network->renewals(away());
  auto lease = take();
  ASSERT_TRUE(tried(6)) << "it waits half a second between two tries by now";
  lease.reset();
}

TEST_F(LeaseRenewal, ReleasingItEndsARenewalThatHangs) {
  network->renewals(hangs());
  const auto lease = take();
  ASSERT_TRUE(network->eventually([](auto& n) { return n.renew_count.in_flight == 1; }));
  EXPECT_TRUE(lease->release(patience()));
  EXPECT_EQ(tries(), 1);
  EXPECT_FALSE(lease->lost()) << "given back, not lost";
}

TEST_F(LeaseRenewal, ReleaseWaitsForABrokerThatComesBackWithinItsDeadline) {
  const auto lease = take();
  network->releases(away());
  std::thread back([&] {
    EXPECT_TRUE(network->eventually([](auto& n) { return n.release_count.begun >= 2; }));
    network->releases(answers());
  });
  EXPECT_TRUE(lease->release(patience()));
  back.join();
}

TEST_F(LeaseRenewal, ReleaseEndsAtItsDeadlineWithTheCause) {
  network->releases(away());
  const auto lease = take();
  const auto released = lease->release(Deadline::in(milliseconds(30)));
  ASSERT_FALSE(released);
  EXPECT_EQ(released.error().code, ErrorCode::peer_failed) << "why, not only that it took too long";
}

TEST_F(LeaseRenewal, ALeaseThatIsNotRenewedAsksNothing) {
  auto key = KeyPair::generate();
  ASSERT_TRUE(key);
  LeaseFile file{"head:4700", network->lease, {}, key->private_key()};
  const auto client = client_over({.broker = "head:4700", .credentials = {}}, network);
  auto lease = client->adopt(file, false);
  ASSERT_TRUE(lease);
  network->key = key->public_key();
  EXPECT_TRUE((*lease)->release(patience()));
  EXPECT_EQ(tries(), 0);
}

TEST_F(LeaseRenewal, IsReadByManyThreadsWhileItIsRenewed) {
  const auto lease = take();
  std::atomic<bool> enough{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      auto last = lease->info().expires_unix_ms;
      while (!enough) {
        const auto now = lease->file().lease.expires_unix_ms;
        EXPECT_GE(now, last);
        last = now;
        EXPECT_FALSE(lease->lost());
        EXPECT_EQ(lease->reason(), "because");
      }
    });
  }
  EXPECT_TRUE(renewed(5));
  enough = true;
  for (auto& reader : readers) reader.join();
}

TEST_F(LeaseRenewal, ManyLeasesEndAtOnceWhateverTheirBrokersDo) {
  std::vector<std::unique_ptr<Lease>> leases;
  for (int i = 0; i < 4; ++i) {
    for (const auto& behaviour : {answers(), hangs(), away(), refuses(ErrorCode::internal)}) {
      network = std::make_shared<FakeNetwork>();
      network->renewals(behaviour);
      leases.push_back(take(milliseconds(10)));
      ASSERT_TRUE(tried(1));
    }
  }
  std::vector<std::thread> ends;
  for (auto& lease : leases) ends.emplace_back([&lease] { lease.reset(); });
  for (auto& end : ends) end.join();
}

}  // namespace
}  // namespace cenote::pool::client
