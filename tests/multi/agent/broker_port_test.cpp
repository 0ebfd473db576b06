// An agent's connection to its broker, over gRPC, while the broker comes and goes.
#include "pool/agent/broker_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "pool/broker/server.h"
#include "pool/tls/certificates.h"
#include "runtime/log.h"
#include "tests/unit/pool/temp_dir.h"

namespace cenote::pool::agent {
namespace {

using ::testing::HasSubstr;

class BrokerPortTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(tls::create_authority(certificates_.path()));
    options_.listen = "127.0.0.1:0";
    options_.state_dir = state_ / "broker";
    options_.certificate = *tls::issue(certificates_.path(), "main", tls::Role::broker);
    start_broker();
  }
  /// On the port that it had before.
  void start_broker() {
    auto server = BrokerServer::start(options_, *log_);
    ASSERT_TRUE(server) << server.error().message();
    broker_ = std::move(*server);
    options_.listen = broker_->endpoint();
  }
  std::unique_ptr<BrokerPort> port(Clock::duration call_timeout) {
    return make_broker_port(
        {.broker = options_.listen,
         .agent = "a",
         .endpoint = "127.0.0.1:9",
         .instance = "first",
         .credentials = *tls::load(*tls::issue(certificates_.path(), "a", tls::Role::agent)),
         .call_timeout = call_timeout});
  }

  pool::testing::TempDir certificates_, state_;
  BrokerServerOptions options_;
  std::unique_ptr<Logger> log_ = Logger::silent();
  std::unique_ptr<BrokerServer> broker_;
};

TEST_F(BrokerPortTest, ACallThatWaitsForABrokerMeetsItWhenItComesBack) {
  const auto broker = port(std::chrono::minutes(2));
  ASSERT_TRUE(broker->register_agent({}));
  broker_.reset();
  const auto gone = broker->heartbeat({});
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ErrorCode::peer_failed) << "the first failure comes at once, with its cause";
  auto waiting = std::async(std::launch::async, [&] { return broker->heartbeat({}); });
  start_broker();
  const auto heard = waiting.get();
  EXPECT_TRUE(heard) << heard.error().message();
}

TEST_F(BrokerPortTest, WhileABrokerIsAwayTheCauseIsWhyItCouldNotBeReached) {
  broker_.reset();
  const auto broker = port(std::chrono::seconds(2));
  for (int call = 0; call < 3; ++call) {
    const auto gone = broker->heartbeat({});
    ASSERT_FALSE(gone);
    EXPECT_EQ(gone.error().code, ErrorCode::peer_failed) << gone.error().message();
    EXPECT_THAT(gone.error().message(), HasSubstr(options_.listen));
  }
}

TEST_F(BrokerPortTest, AnAgentThatEndsDoesNotWaitForABrokerThatIsAway) {
  broker_.reset();
  const auto broker = port(std::chrono::hours(1));
  ASSERT_FALSE(broker->heartbeat({}));
  auto waiting = std::async(std::launch::async, [&] { return broker->heartbeat({}); });
  broker->interrupt();
  const auto ended = waiting.get();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::cancelled) << ended.error().message();
}

}  // namespace
}  // namespace cenote::pool::agent
