// Who may not use a lease, and that the refusal says why: over real agents and a real broker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "pool/tls/certificates.h"
#include "tests/multi/agent/cluster.h"
#include "tests/multi/agent/work.h"

namespace cenote::pool::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class RefusalTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { cluster = Cluster::start().release(); }
  static void TearDownTestSuite() { delete cluster; }
  void SetUp() override {
    ASSERT_NE(cluster, nullptr);
    client = cluster->client();
  }
  std::unique_ptr<client::Lease> lease(seconds ttl = seconds(60)) {
    auto granted = client->lease({.gpus = 1, .ttl = ttl}, patience());
    EXPECT_TRUE(granted) << granted.error().message();
    return granted ? std::move(*granted) : nullptr;
  }
  /// What opening a lease from this file meets.
  Result<std::unique_ptr<remote::RemoteDriver>> open(const client::LeaseFile& file) {
    auto adopted = client->adopt(file, false);
    EXPECT_TRUE(adopted) << adopted.error().message();
    return (*adopted)->open(patience());
  }
  void expect_refused(const client::LeaseFile& file, const std::string& reason) {
    const auto opened = open(file);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ErrorCode::permission_denied) << opened.error().message();
    EXPECT_THAT(opened.error().message(), HasSubstr(reason));
  }

  /// What a client of this pool trusts.
  static std::string client_authority() {
    std::ifstream file(cluster->processes().folder() + "/tls/ca.pem");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  static Cluster* cluster;
  std::unique_ptr<client::PoolClient> client;
};
Cluster* RefusalTest::cluster = nullptr;

TEST_F(RefusalTest, TheHolderOfTheKeyIsServed) {
  const auto held = lease();
  ASSERT_NE(held, nullptr);
  auto work = CountingWork::open(*held, patience());
  ASSERT_TRUE(work) << work.error().message();
  EXPECT_TRUE(work->round());
  EXPECT_TRUE(held->release(patience()));
}

TEST_F(RefusalTest, ACopiedLeaseWithoutItsKey) {
  const auto held = lease();
  auto copy = held->file();
  copy.private_key = KeyPair::generate()->private_key();
  expect_refused(copy, "not signed by the key that the lease was granted to");
  EXPECT_TRUE(held->release(patience()));
}

TEST_F(RefusalTest, AForgedSignature) {
  const auto held = lease();
  auto forged = held->file();
  forged.token.back() ^= std::byte{1};
  expect_refused(forged, "signature");
  EXPECT_TRUE(held->release(patience()));
}

// The broker tells agents of leases that it ended, so a pool of its own loses its broker first: the agent
// that refuses has heard of no end, and has only the token's expiry, and the grace, to go by.
TEST_F(RefusalTest, AnExpiredLeaseAlsoWhileThereIsNoBroker) {
  constexpr std::int64_t kGraceMs = 2'000;
  const auto own = Cluster::start({"broker.grace=2s"});
  ASSERT_NE(own, nullptr);
  client = own->client();
  auto held = lease(seconds(10));
  ASSERT_NE(held, nullptr);
  const auto file = held->file();
  own->processes().kill_broker();
  held.reset();  // the copy is renewed by nobody
  const auto now_ms = [] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  ASSERT_LT(now_ms(), file.lease.expires_unix_ms) << "the broker was to die before it could end the lease";
  ASSERT_TRUE(eventually([&] { return now_ms() > file.lease.expires_unix_ms + kGraceMs; }));
  expect_refused(file, "it expired ");
}

TEST_F(RefusalTest, ALeaseThatTheBrokerEnded) {
  auto held = lease(seconds(1));
  ASSERT_NE(held, nullptr);
  const auto file = held->file();
  held.reset();
  ASSERT_TRUE(eventually([&] { return cluster->leases() == 0; }));
  ASSERT_TRUE(eventually([&] {
    const auto opened = open(file);
    return !opened && opened.error().message().find("the broker ended it") != std::string::npos;
  }));
}

// An agent that was restarted remembers no lease and no end: all it has is the floor that the broker sent.
TEST_F(RefusalTest, AnOlderFencingEpochAtAnAgentThatWasRestarted) {
  const auto held = lease();
  ASSERT_NE(held, nullptr);
  auto old = held->file();
  ASSERT_EQ(old.lease.devices.size(), 1U);
  auto& device = old.lease.devices.front();
  ASSERT_TRUE(held->release(patience()));
  const auto gone = device.agent_endpoint;
  cluster->processes().kill_agent(device.agent);
  const auto started = cluster->processes().start_agent(device.agent, patience());
  ASSERT_TRUE(started) << started.error().message();
  ASSERT_TRUE(eventually([&] {
    const auto pool = client->top(patience());
    if (!pool) return false;
    for (const auto& agent : pool->agents) {
      if (agent.name == device.agent) device.agent_endpoint = agent.endpoint;
    }
    return device.agent_endpoint != gone;
  }));
  expect_refused(old, "fenced: its epoch " + std::to_string(device.epoch) + " of device " + device.uuid +
                          " is older than " + std::to_string(device.epoch + 1) +
                          ", and the broker has ended every lease below that");
}

TEST_F(RefusalTest, ALeaseThatWasReleasedWhenItsDevicesAreHeldAgain) {
  // A device that was given back is free once its agent has confirmed that nothing runs on it.
  const auto lease_all = [&] {
    std::unique_ptr<client::Lease> lease;
    EXPECT_TRUE(eventually([&] {
      auto granted = client->lease({.gpus = 4}, patience());
      if (granted) lease = std::move(*granted);
      return lease != nullptr;
    }));
    return lease;
  };
  const auto first = lease_all();
  const auto old = first->file();
  ASSERT_TRUE(first->release(patience()));
  const auto second = lease_all();
  auto work = CountingWork::open(*second, patience());
  ASSERT_TRUE(work) << work.error().message();
  expect_refused(old, "the lease has ended: the broker ended it");
  EXPECT_TRUE(work->round()) << "the holder is not disturbed";
  EXPECT_TRUE(second->release(patience()));
}

TEST_F(RefusalTest, AClientOfAnotherAuthority) {
  auto folder = TemporaryFolder::create("cenote-test");
  ASSERT_TRUE(folder);
  ASSERT_TRUE(tls::create_authority(folder->path()));
  const auto files = tls::issue(folder->path(), "mallory", tls::Role::client);
  ASSERT_TRUE(files);
  client::ClientOptions options;
  options.broker = cluster->processes().broker_endpoint();
  options.credentials = *tls::load(*files);
  options.call_timeout = seconds(2);
  const auto refused = client::PoolClient::connect(options)->leases(Deadline::in(seconds(3)));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr(options.broker));
  EXPECT_THAT(refused.error().message(), HasSubstr("are both certificates of the same pool?"));
}

// It trusts the right broker, so that it is the broker which has to see that the certificate is not its
// pool's.
TEST_F(RefusalTest, AClientWhoseCertificateAnotherAuthorityIssued) {
  auto folder = TemporaryFolder::create("cenote-test");
  ASSERT_TRUE(folder);
  ASSERT_TRUE(tls::create_authority(folder->path()));
  const auto files = tls::issue(folder->path(), "mallory", tls::Role::client);
  ASSERT_TRUE(files);
  client::ClientOptions options;
  options.broker = cluster->processes().broker_endpoint();
  options.credentials = *tls::load(*files);
  options.credentials.authority = client_authority();
  options.call_timeout = seconds(2);
  const auto refused = client::PoolClient::connect(options)->leases(Deadline::in(seconds(3)));
  ASSERT_FALSE(refused) << "anybody can make a certificate with any name";
  EXPECT_THAT(refused.error().message(), HasSubstr(options.broker));
  EXPECT_NE(refused.error().remedy, "");
}

TEST_F(RefusalTest, AClientWithoutCertificate) {
  client::ClientOptions options;
  options.broker = cluster->processes().broker_endpoint();
  options.credentials.authority = client_authority();
  const auto refused = client::PoolClient::connect(options)->leases(Deadline::in(seconds(3)));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::permission_denied);
  EXPECT_THAT(refused.error().message(), HasSubstr("with " + options.broker));
  EXPECT_THAT(refused.error().message(),
              HasSubstr("the broker refused the connection: a client certificate is required"));
  EXPECT_THAT(refused.error().remedy, HasSubstr("tls.dir"));
}

TEST_F(RefusalTest, TheBrokerTakesNoReleaseFromAnotherKey) {
  const auto held = lease();
  auto copy = held->file();
  copy.private_key = KeyPair::generate()->private_key();
  const auto thief = client->adopt(copy, false);
  ASSERT_TRUE(thief);
  const auto released = (*thief)->release(patience());
  ASSERT_FALSE(released);
  EXPECT_EQ(released.error().code, ErrorCode::permission_denied);
  EXPECT_EQ(cluster->leases(), 1U);
  EXPECT_TRUE(held->release(patience()));
}

}  // namespace
}  // namespace cenote::pool::testing
