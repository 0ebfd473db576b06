// Who may not use a lease, and that the refusal says why: over real agents and a real broker.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "pool/proto/cenote.grpc.pb.h"
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

TEST_F(RefusalTest, AnExpiredLease) {
  // Nobody renews a copy; the original is dropped without a word to the broker.
  auto held = lease(seconds(1));
  const auto file = held->file();
  held.reset();
  ASSERT_TRUE(eventually([&] { return cluster->leases() == 0; }));
  expect_refused(file, "lease " + file.lease.id);
}

TEST_F(RefusalTest, AnOlderFencingEpoch) {
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
  expect_refused(old, "lease " + old.lease.id);
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
}

TEST_F(RefusalTest, AClientWithoutCertificate) {
  const auto dir = cluster->processes().folder() + "/tls";
  std::ifstream file(dir + "/ca.pem");
  grpc::SslCredentialsOptions options;
  options.pem_root_certs.assign(std::istreambuf_iterator<char>(file), {});
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("broker.cenote");
  const auto stub = v1::Broker::NewStub(grpc::CreateCustomChannel(cluster->processes().broker_endpoint(),
                                                                  grpc::SslCredentials(options), arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(20));
  v1::ListLeasesReply reply;
  const auto status = stub->ListLeases(&context, {}, &reply);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << "refused, not left waiting";
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
