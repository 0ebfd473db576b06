// The client over gRPC, against a broker that takes connections and says nothing.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <future>
#include <string>

#include "pool/client/pool_client.h"
#include "pool/tls/certificates.h"
#include "runtime/unique_fd.h"
#include "tests/unit/pool/temp_dir.h"

namespace cenote::pool::client {
namespace {

using std::chrono::hours;

class SilentBroker : public ::testing::Test {
 protected:
  void SetUp() override {
    listener_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* raw = reinterpret_cast<sockaddr*>(&address);
    ASSERT_EQ(::bind(listener_.get(), raw, size), 0);
    ASSERT_EQ(::listen(listener_.get(), 8), 0);
    ASSERT_EQ(::getsockname(listener_.get(), raw, &size), 0);
    ASSERT_TRUE(tls::create_authority(certificates_.path()));
    client = PoolClient::connect(
        {.broker = "127.0.0.1:" + std::to_string(ntohs(address.sin_port)),
         .credentials = *tls::load(*tls::issue(certificates_.path(), "alice", tls::Role::client)),
         .call_timeout = hours(1)});
  }
  void await_call() { called_.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }

  /// Waits with an hour to go, until somebody calls, and is cancelled then.
  template <class Wait>
  void expect_let_go(const Wait& wait) {
    auto waiting = std::async(std::launch::async, wait);
    await_call();
    cancel.raise();
    EXPECT_EQ(waiting.wait_for(std::chrono::seconds(30)), std::future_status::ready) << "it waits on";
    listener_.reset();
    called_.reset();
    EXPECT_EQ(waiting.get(), ErrorCode::cancelled);
  }

  pool::testing::TempDir certificates_;
  UniqueFd listener_, called_;
  std::unique_ptr<PoolClient> client;
  CancelFlag cancel;
};

TEST_F(SilentBroker, LetsGoWhoAsksForItsStateAndIsCancelled) {
  expect_let_go([&] { return client->top(Deadline::in(hours(1)), &cancel).error().code; });
}

TEST_F(SilentBroker, LetsGoWhoAsksForALeaseAndIsCancelled) {
  expect_let_go([&] { return client->lease({}, Deadline::in(hours(1)), &cancel).error().code; });
}

TEST_F(SilentBroker, IsADeadlineForWhoHasOne) {
  const auto state = client->top(Deadline::in(std::chrono::milliseconds(100)));
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().code, ErrorCode::deadline_exceeded);
}

TEST_F(SilentBroker, DoesNotKeepALeaseThatIsBeingRenewed) {
  auto key = KeyPair::generate();
  ASSERT_TRUE(key);
  LeaseFile file;
  file.lease.id = "L1";
  file.lease.granted_unix_ms = 1;
  file.lease.expires_unix_ms = 2;
  file.private_key = key->private_key();
  auto lease = client->adopt(file, true);
  ASSERT_TRUE(lease);
  await_call();
  auto ending = std::async(std::launch::async, [&] { lease->reset(); });
  EXPECT_EQ(ending.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  listener_.reset();
  called_.reset();
}

}  // namespace
}  // namespace cenote::pool::client
