// The broker's service for real: gRPC over TLS on loopback.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <thread>

#include "pool/broker/clock.h"
#include "pool/broker/server.h"
#include "pool/proto/cenote.grpc.pb.h"
#include "pool/proto/channel.h"
#include "pool/proto/status.h"
#include "pool/tls/certificates.h"
#include "runtime/log.h"
#include "tests/unit/pool/temp_dir.h"

namespace cenote::pool {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;
using tls::Identity;
using tls::Role;
using Stub = std::unique_ptr<v1::Broker::Stub>;

constexpr std::uint64_t kGiB = 1ULL << 30U;

std::int64_t unix_ms() { return SystemClock().unix_ms(); }

std::string text_of(const PublicKey& key) { return std::string(as_text(std::as_bytes(std::span(key)))); }

/// Calls with a deadline that a busy machine meets.
template <class Request, class Reply, class Method>
Result<Reply> call(v1::Broker::Stub& stub, Method method, const Request& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  Reply reply;
  const auto status = (stub.*method)(&context, request, &reply);
  if (!status.ok()) return fail(to_error(status, "call the broker", "test broker"));
  return reply;
}

class BrokerServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(tls::create_authority(certificates_.path()));
    options_.listen = "127.0.0.1:0";
    options_.state_dir = state_ / "broker";
    options_.certificate = *tls::issue(certificates_.path(), "main", Role::broker);
    options_.policy.agent_timeout_ms = 600'000;  // nobody is lost for a slow machine's sake
    options_.policy.agent_dead_ms = 600'000;
    alice_ = load("alice", Role::client);
    agent_ = load("agent-a", Role::agent);
  }

  tls::Credentials load(std::string_view name, Role role) {
    return *tls::load(*tls::issue(certificates_.path(), name, role));
  }
  std::unique_ptr<BrokerServer> start() {
    auto server = BrokerServer::start(options_, *log_);
    EXPECT_TRUE(server) << server.error().message();
    return server ? std::move(*server) : nullptr;
  }
  static Stub stub(const BrokerServer& server, const tls::Credentials& who,
                   const Identity& peer = {Role::broker, "main"}) {
    return v1::Broker::NewStub(connect(server.endpoint(), who, peer));
  }

  static v1::RegisterAgentRequest hello(int gpus, const std::string& name = "agent-a") {
    v1::RegisterAgentRequest request;
    request.set_name(name);
    request.set_endpoint("127.0.0.1:9");
    request.set_instance("first");
    for (int i = 0; i < gpus; ++i) {
      auto& device = *request.add_devices();
      device.set_uuid(name + "-gpu-" + std::to_string(i));
      device.set_model("H200");
      device.set_memory_bytes(8 * kGiB);
      device.set_ordinal(static_cast<std::uint32_t>(i));
    }
    return request;
  }
  v1::LeaseRequest ask(std::uint32_t gpus, const std::string& id = "") const {
    v1::LeaseRequest request;
    request.set_gpus(gpus);
    request.set_client_public_key(text_of(key_.public_key()));
    request.set_request_id(id);
    return request;
  }
  static Result<v1::RegisterAgentReply> enrol(v1::Broker::Stub& stub,
                                              const v1::RegisterAgentRequest& request) {
    return call<v1::RegisterAgentRequest, v1::RegisterAgentReply>(stub, &v1::Broker::Stub::RegisterAgent,
                                                                  request);
  }
  static Result<v1::HeartbeatReply> pulse(v1::Broker::Stub& stub, const v1::HeartbeatRequest& request) {
    return call<v1::HeartbeatRequest, v1::HeartbeatReply>(stub, &v1::Broker::Stub::Heartbeat, request);
  }
  static Result<v1::LeaseReply> lease(v1::Broker::Stub& stub, const v1::LeaseRequest& request) {
    return call<v1::LeaseRequest, v1::LeaseReply>(stub, &v1::Broker::Stub::RequestLease, request);
  }
  Result<v1::LeaseReply> renew(v1::Broker::Stub& stub, const std::string& id, const KeyPair& key) {
    const auto proof = *make_proof(key, "renew", id, "broker", ++proof_ms_);
    v1::RenewRequest request;
    request.set_lease_id(id);
    request.set_ttl_seconds(120);
    request.set_proof(std::string(as_text(proof.signature)));
    request.set_proof_unix_ms(proof.unix_ms);
    return call<v1::RenewRequest, v1::LeaseReply>(stub, &v1::Broker::Stub::RenewLease, request);
  }
  Result<v1::ReleaseReply> release(v1::Broker::Stub& stub, const std::string& id) {
    const auto proof = *make_proof(key_, "release", id, "broker", ++proof_ms_);
    v1::ReleaseRequest request;
    request.set_lease_id(id);
    request.set_proof(std::string(as_text(proof.signature)));
    request.set_proof_unix_ms(proof.unix_ms);
    return call<v1::ReleaseRequest, v1::ReleaseReply>(stub, &v1::Broker::Stub::ReleaseLease, request);
  }

  TempDir certificates_;
  TempDir state_;
  std::unique_ptr<Logger> log_ = Logger::silent();
  BrokerServerOptions options_;
  tls::Credentials alice_;
  tls::Credentials agent_;
  KeyPair key_ = *KeyPair::generate();
  std::int64_t proof_ms_ = unix_ms();
};

TEST_F(BrokerServerTest, LeasesRenewsAndReleases) {
  const auto server = start();
  ASSERT_TRUE(server);
  const auto agent = stub(*server, agent_);
  const auto client = stub(*server, alice_);
  const auto welcome = enrol(*agent, hello(2));
  ASSERT_TRUE(welcome) << welcome.error().message();
  EXPECT_EQ(welcome->broker_term(), 1U);

  const auto granted = lease(*client, ask(2));
  ASSERT_TRUE(granted) << granted.error().message();
  EXPECT_EQ(granted->lease().client(), "alice");
  PublicKey broker{};
  ASSERT_EQ(granted->broker_public_key().size(), broker.size());
  std::copy(granted->broker_public_key().begin(), granted->broker_public_key().end(), broker.begin());
  const auto token = unseal(as_bytes(granted->lease().token()), broker);
  ASSERT_TRUE(token) << token.error().message();
  EXPECT_EQ(token->devices.size(), 2U);
  EXPECT_EQ(token->client_key, key_.public_key());

  const auto renewed = renew(*client, granted->lease().id(), key_);
  ASSERT_TRUE(renewed) << renewed.error().message();
  EXPECT_GT(renewed->lease().expires_unix_ms(), granted->lease().expires_unix_ms());
  const auto stolen = renew(*client, granted->lease().id(), *KeyPair::generate());
  ASSERT_FALSE(stolen);
  EXPECT_EQ(stolen.error().code, ErrorCode::permission_denied);
  EXPECT_THAT(stolen.error().message(), HasSubstr("not signed by the key that the lease was granted to"));

  ASSERT_TRUE(release(*client, granted->lease().id()));
  v1::HeartbeatRequest beat;
  beat.set_name("agent-a");
  beat.set_instance("first");
  const auto told = pulse(*agent, beat);
  ASSERT_TRUE(told) << told.error().message();
  EXPECT_THAT(told->end_leases(), ::testing::ElementsAre(granted->lease().id()));
  EXPECT_FALSE(lease(*client, ask(1))) << "held until the agent confirms";
  beat.add_ended()->set_lease_id(granted->lease().id());
  ASSERT_TRUE(pulse(*agent, beat));
  EXPECT_TRUE(lease(*client, ask(1)));
}

TEST_F(BrokerServerTest, SendsTheWholeErrorToTheClient) {
  const auto server = start();
  ASSERT_TRUE(server);
  ASSERT_TRUE(enrol(*stub(*server, agent_), hello(4)));
  const auto client = stub(*server, alice_);
  const auto impossible = lease(*client, ask(9));
  ASSERT_FALSE(impossible);
  EXPECT_EQ(impossible.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(impossible.error().cause, "asks 9 GPUs, the pool has 4");
  ASSERT_TRUE(lease(*client, ask(4)));
  const auto full = lease(*client, ask(1));
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, ErrorCode::resource_exhausted);
  EXPECT_THAT(full.error().cause, HasSubstr("no free GPU: 4 of 4 leased, the next lease ends in "));
}

TEST_F(BrokerServerTest, RefusesCallersWithoutACertificate) {
  const auto server = start();
  ASSERT_TRUE(server);
  auto nobody = alice_;
  nobody.certificate.clear();
  nobody.key.clear();
  const auto refused = lease(*stub(*server, nobody), ask(1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::peer_failed);
  EXPECT_EQ(refused.error().native, static_cast<int>(grpc::StatusCode::UNAVAILABLE));
}

TEST_F(BrokerServerTest, RefusesCertificatesOfAnotherAuthority) {
  const auto server = start();
  ASSERT_TRUE(server);
  const TempDir other;
  ASSERT_TRUE(tls::create_authority(other.path()));
  auto stranger = *tls::load(*tls::issue(other.path(), "alice", Role::client));
  stranger.authority = alice_.authority;  // it trusts our broker; our broker does not trust it
  const auto refused = lease(*stub(*server, stranger), ask(1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::peer_failed);
}

TEST_F(BrokerServerTest, RefusesExpiredCertificates) {
  const auto server = start();
  ASSERT_TRUE(server);
  const auto files =
      *tls::issue(certificates_.path(), "late", Role::client, {.valid_for = std::chrono::seconds(-2)});
  auto late = alice_;
  std::ifstream certificate(files.certificate);
  late.certificate.assign(std::istreambuf_iterator<char>(certificate), {});
  std::ifstream key(files.key);
  late.key.assign(std::istreambuf_iterator<char>(key), {});
  EXPECT_FALSE(lease(*stub(*server, late), ask(1)));
}

TEST_F(BrokerServerTest, ClientsRefuseAServerThatIsNoBroker) {
  options_.certificate = *tls::issue(certificates_.path(), "agent-a", Role::agent);
  const auto not_broker = BrokerServer::start(options_, *log_);
  ASSERT_FALSE(not_broker);
  EXPECT_THAT(not_broker.error().message(), HasSubstr("not of the role broker"));

  // An agent with a valid certificate that listens where the broker should be.
  v1::Broker::Service impostor;
  const auto listening = listen("127.0.0.1:0", agent_, impostor);
  ASSERT_TRUE(listening) << listening.error().message();
  const auto channel =
      connect("127.0.0.1:" + std::to_string(listening->port), alice_, {Role::broker, "main"});
  const auto refused = lease(*v1::Broker::NewStub(channel), ask(1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::peer_failed) << refused.error().message();
}

TEST_F(BrokerServerTest, LetsEachRoleCallOnlyItsOwn) {
  const auto server = start();
  ASSERT_TRUE(server);
  v1::HeartbeatRequest beat;
  beat.set_name("alice");
  const auto client_pulse = pulse(*stub(*server, alice_), beat);
  ASSERT_FALSE(client_pulse);
  EXPECT_EQ(client_pulse.error().code, ErrorCode::permission_denied);
  EXPECT_THAT(client_pulse.error().message(), HasSubstr("this one is of client alice"));
  EXPECT_EQ(enrol(*stub(*server, alice_), hello(1, "alice")).error().code, ErrorCode::permission_denied);
  EXPECT_EQ(lease(*stub(*server, agent_), ask(1)).error().code, ErrorCode::permission_denied);

  const auto other_name = enrol(*stub(*server, agent_), hello(1, "agent-b"));
  ASSERT_FALSE(other_name);
  EXPECT_EQ(other_name.error().code, ErrorCode::permission_denied);
  EXPECT_THAT(other_name.error().message(),
              HasSubstr("agent agent-a, the call is in the name of \"agent-b\""));
}

TEST_F(BrokerServerTest, TwoBrokersShareNeitherPortNorStore) {
  const auto server = start();
  ASSERT_TRUE(server);
  auto second = options_;
  second.listen = server->endpoint();
  const auto same_store = BrokerServer::start(second, *log_);
  ASSERT_FALSE(same_store);
  EXPECT_EQ(same_store.error().code, ErrorCode::already_exists);
  EXPECT_THAT(same_store.error().message(), HasSubstr("pid " + std::to_string(::getpid())));
  second.state_dir = state_ / "second";
  const auto same_port = BrokerServer::start(second, *log_);
  ASSERT_FALSE(same_port);
  EXPECT_EQ(same_port.error().code, ErrorCode::already_exists);
  EXPECT_EQ(same_port.error().native, EADDRINUSE);
  EXPECT_THAT(same_port.error().message(), HasSubstr("listen on " + server->endpoint()));
}

TEST_F(BrokerServerTest, NamesAnAddressThatCannotBe) {
  options_.listen = "192.0.2.1:4700";  // TEST-NET-1: no machine has it
  const auto refused = BrokerServer::start(options_, *log_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().native, EADDRNOTAVAIL) << refused.error().message();
}

TEST_F(BrokerServerTest, LeasesSurviveARestartAndRequestsAreGrantedOnce) {
  auto server = start();
  ASSERT_TRUE(server);
  ASSERT_TRUE(enrol(*stub(*server, agent_), hello(2)));
  const auto before = lease(*stub(*server, alice_), ask(1, "once"));
  ASSERT_TRUE(before) << before.error().message();

  server->stop();
  options_.listen = server->endpoint();  // the same port, at once
  server = start();
  ASSERT_TRUE(server);
  const auto agent = stub(*server, agent_);
  v1::HeartbeatRequest beat;
  beat.set_name("agent-a");
  beat.set_instance("first");
  EXPECT_TRUE(pulse(*agent, beat)->register_again());
  const auto welcome = enrol(*agent, hello(2));
  ASSERT_TRUE(welcome) << welcome.error().message();
  EXPECT_EQ(welcome->broker_term(), 2U);
  EXPECT_EQ(welcome->broker_public_key(), before->broker_public_key());
  EXPECT_THAT(welcome->end_leases(), ::testing::IsEmpty());

  const auto client = stub(*server, alice_);
  const auto after = lease(*client, ask(1, "once"));
  ASSERT_TRUE(after) << after.error().message();
  EXPECT_EQ(after->lease().token(), before->lease().token());
  EXPECT_TRUE(lease(*client, ask(1, "twice")));
  EXPECT_EQ(lease(*client, ask(1)).error().code, ErrorCode::resource_exhausted);
  EXPECT_TRUE(release(*client, before->lease().id()));
}

TEST_F(BrokerServerTest, ShowsWhoHasWhat) {
  const auto server = start();
  ASSERT_TRUE(server);
  const auto agent = stub(*server, agent_);
  const auto client = stub(*server, alice_);
  ASSERT_TRUE(enrol(*agent, hello(2)));
  const auto granted = lease(*client, ask(1));
  ASSERT_TRUE(granted);
  v1::HeartbeatRequest beat;
  beat.set_name("agent-a");
  beat.set_instance("first");
  auto& live = *beat.add_live();
  live.set_lease_id(granted->lease().id());
  live.set_epoch(granted->lease().devices(0).epoch());
  auto& load = *beat.add_devices();
  load.mutable_device()->set_uuid(granted->lease().devices(0).device().uuid());
  load.set_lease_id(granted->lease().id());
  load.set_memory_used_bytes(kGiB);
  load.set_utilisation(0.5);
  load.set_launches(42);
  const auto answer = pulse(*agent, beat);
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->renewed_size(), 1);
  EXPECT_EQ(answer->renewed(0).expires_unix_ms(), granted->lease().expires_unix_ms());
  EXPECT_EQ(answer->floors_size(), 2);

  const auto top = call<v1::TopRequest, v1::TopReply>(*client, &v1::Broker::Stub::Top, {});
  ASSERT_TRUE(top) << top.error().message();
  ASSERT_EQ(top->agents_size(), 1);
  EXPECT_TRUE(top->agents(0).alive());
  ASSERT_EQ(top->agents(0).devices_size(), 2);
  EXPECT_EQ(top->agents(0).devices(0).launches(), 42U);
  EXPECT_EQ(top->agents(0).devices(1).lease_id(), "");
  const auto list =
      call<v1::ListLeasesRequest, v1::ListLeasesReply>(*client, &v1::Broker::Stub::ListLeases, {});
  ASSERT_TRUE(list);
  ASSERT_EQ(list->leases_size(), 1);
  EXPECT_EQ(list->leases(0).token(), "") << "a listing gives no capability away";
}

TEST(Status, CarriesEveryFieldOfAnError) {
  const Error error{
      ErrorCode::driver_error, "launch", "illegal address", "gpu 2", "agent-b", "look there", 700};
  const auto back = to_error(to_status(error), "other stage", "other peer");
  EXPECT_EQ(back.code, error.code);
  EXPECT_EQ(back.message(), error.message());
  EXPECT_EQ(back.native, 700);
}

TEST(Status, TranslatesEveryCodeBothWays) {
  for (auto code = 0; code <= static_cast<int>(ErrorCode::internal); ++code) {
    const Error error{static_cast<ErrorCode>(code), "s", "c"};
    const auto status = to_status(error);
    EXPECT_NE(status.error_code(), grpc::StatusCode::OK);
    EXPECT_EQ(to_error({status.error_code(), "plain"}, "s", "p").code, error.code) << code;
  }
}

TEST(Status, LeavesForeignDetailsAlone) {
  for (const auto* details : {"", "x", "CER1", "CER1\x01\xff\xff\xff\xff"}) {
    const auto error = to_error({grpc::StatusCode::NOT_FOUND, "no such thing", details}, "look", "them");
    EXPECT_EQ(error.code, ErrorCode::not_found);
    EXPECT_EQ(error.cause, "gRPC reports: no such thing");
    EXPECT_EQ(error.peer, "them");
  }
}

}  // namespace
}  // namespace cenote::pool
