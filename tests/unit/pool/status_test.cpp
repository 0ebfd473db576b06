// What gRPC reports, in words that a user can act on; and our own errors, whole, between two processes.
#include "pool/proto/status.h"

#include <gmock/gmock.h>
#include <grpcpp/support/status.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "pool/client/pool_client.h"
#include "pool/tls/certificates.h"
#include "runtime/unique_fd.h"
#include "tests/unit/pool/temp_dir.h"

namespace cenote::pool {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Error reported(grpc::StatusCode code, const std::string& text) {
  return to_error(grpc::Status(code, text), "lease from broker", "head:4700");
}

TEST(StatusWords, KnownTextsOfGrpcBecomeACauseAndARemedy) {
  constexpr auto unavailable = grpc::StatusCode::UNAVAILABLE;
  const struct {
    const char *grpc, *cause, *remedy;
  } cases[] = {
      {"failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:4700: Failed to connect to "
       "remote "
       "host: Connection refused",
       "nothing listens there (connection refused)", "start it there"},
      {"DNS resolution failed for head:4700: C-ares status is not ARES_SUCCESS qtype=A: Domain name not "
       "found",
       "no host of that name", "correct the host name"},
      {"failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:4700: No route to host",
       "no route to that host", "firewall"},
      {"failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:4700: Ssl handshake failed: "
       "SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify failed",
       "its certificate is of another authority", "ca.pem"},
      {"Socket closed", "it closed the connection", "try again"},
      {"recvmsg:Connection reset by peer", "it closed the connection", "try again"},
      {"keepalive watchdog timeout", "no longer answers", "down"},
  };
  for (const auto& one : cases) {
    const auto error = reported(unavailable, one.grpc);
    EXPECT_EQ(error.code, ErrorCode::peer_failed);
    EXPECT_THAT(error.cause, HasSubstr(one.cause)) << one.grpc;
    EXPECT_THAT(error.remedy, HasSubstr(one.remedy)) << one.grpc;
    EXPECT_THAT(error.message(), AllOf(HasSubstr("lease from broker"), HasSubstr("head:4700")));
    EXPECT_THAT(error.message(), AllOf(Not(HasSubstr("last error")), Not(HasSubstr("SSL routines"))));
  }
}

TEST(StatusWords, ADeadlineSaysWhoDidNotAnswer) {
  const auto error = reported(grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded");
  EXPECT_EQ(error.code, ErrorCode::deadline_exceeded);
  EXPECT_EQ(error.cause, "it did not answer in time");
  EXPECT_FALSE(error.remedy.empty());
}

TEST(StatusWords, WhatIsNotKnownHereIsToldInGrpcsOwnWords) {
  EXPECT_THAT(reported(grpc::StatusCode::UNAVAILABLE, "something new").cause, HasSubstr("something new"));
  EXPECT_THAT(reported(grpc::StatusCode::INTERNAL, "odd").cause, HasSubstr("odd"));
}

TEST(StatusWords, AnErrorOfOursTravelsWhole) {
  Error sent{ErrorCode::resource_exhausted, "place lease", "no free H200", "gpu 3", "agent-b", "wait", 12};
  const auto got = to_error(to_status(sent), "another stage", "another peer");
  EXPECT_EQ(got.code, sent.code);
  EXPECT_EQ(got.message(), sent.message());
  EXPECT_EQ(got.native, sent.native);
}

TEST(StatusWords, ARealRefusedConnectionIsToldInWords) {
  pool::testing::TempDir folder;
  ASSERT_TRUE(tls::create_authority(folder.path()));
  // A port that is taken, and where nobody listens.
  const UniqueFd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(taken.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  socklen_t size = sizeof address;
  ASSERT_EQ(::getsockname(taken.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  client::ClientOptions options;
  options.broker = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  options.credentials = *tls::load(*tls::issue(folder.path(), "alice", tls::Role::client));
  const auto refused = client::PoolClient::connect(options)->leases(Deadline::in(std::chrono::seconds(2)));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(),
              AllOf(HasSubstr(options.broker), HasSubstr("nothing listens there (connection refused)")));
}

}  // namespace
}  // namespace cenote::pool
