// A broker process that is killed with -9 at random moments under load.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "pool/broker/clock.h"
#include "pool/broker/journal.h"
#include "pool/proto/cenote.grpc.pb.h"
#include "pool/proto/channel.h"
#include "pool/proto/status.h"
#include "pool/store/sqlite.h"
#include "tests/fault_row.h"
#include "tests/test_paths.h"
#include "tests/unit/pool/temp_dir.h"

namespace cenote::pool {
namespace {

using testing::TempDir;
using tls::Role;
using namespace std::chrono_literals;

constexpr std::uint64_t kGiB = 1ULL << 30U;

/// A broker process; ends with its owner, whatever happens (its input closes).
class BrokerProcess {
 public:
  BrokerProcess(const std::string& state_dir, const std::string& listen, const std::string& certificates) {
    int in[2];
    int out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) return;
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    std::string program = std::string(CENOTE_BINARY_DIR) + "/tests/pool_broker_process";
    std::string a = state_dir;
    std::string b = listen;
    std::string c = certificates;
    char* arguments[] = {program.data(), a.data(), b.data(), c.data(), nullptr};
    if (::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ) != 0) pid_ = -1;
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    input_ = in[1];
    char byte = 0;
    while (::read(out[0], &byte, 1) == 1 && byte != '\n') said_.push_back(byte);
    ::close(out[0]);
  }
  ~BrokerProcess() {
    if (input_ >= 0) ::close(input_);
    if (pid_ > 0) kill();
  }
  BrokerProcess(const BrokerProcess&) = delete;
  BrokerProcess& operator=(const BrokerProcess&) = delete;

  [[nodiscard]] const std::string& said() const { return said_; }
  void kill() {
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  std::string said_;
};

/// One client and one agent that go on through every death of the broker.
class Load {
 public:
  Load(std::unique_ptr<v1::Broker::Stub> client, std::unique_ptr<v1::Broker::Stub> agent)
      : client_(std::move(client)), agent_(std::move(agent)) {}

  /// A lease, renewed, released and confirmed; each call is repeated until a broker answers it.
  void cycle(int number) {
    v1::LeaseRequest ask;
    ask.set_gpus(1 + static_cast<std::uint32_t>(number % 2));
    ask.set_request_id("request " + std::to_string(number));
    const auto& key = key_.public_key();
    ask.set_client_public_key(std::string(as_text(std::as_bytes(std::span(key)))));
    const auto granted =
        insist<v1::LeaseReply>(*client_, &v1::Broker::Stub::RequestLease, [&] { return ask; });
    if (!granted) return;
    const auto again = insist<v1::LeaseReply>(*client_, &v1::Broker::Stub::RequestLease, [&] { return ask; });
    if (!again) return;
    EXPECT_EQ(again->lease().token(), granted->lease().token()) << "one request, one lease";
    for (const auto& device : granted->lease().devices()) {
      auto& known = epochs_[device.device().uuid()];
      EXPECT_GT(device.epoch(), known) << "each grant of a device has an epoch of its own";
      known = device.epoch();
    }
    const auto id = granted->lease().id();
    if (!insist<v1::ReleaseReply>(*client_, &v1::Broker::Stub::ReleaseLease, [&] {
          const auto proof = *make_proof(key_, "release", id, "broker", next_ms());
          v1::ReleaseRequest request;
          request.set_lease_id(id);
          request.set_proof(std::string(as_text(proof.signature)));
          request.set_proof_unix_ms(proof.unix_ms);
          return request;
        })) {
      return;
    }
    beat(id);
    ++cycles_;
  }

  void enrol() {
    insist<v1::RegisterAgentReply>(*agent_, &v1::Broker::Stub::RegisterAgent, [] {
      v1::RegisterAgentRequest request;
      request.set_name("agent-a");
      request.set_endpoint("127.0.0.1:9");
      request.set_instance("only");
      for (std::uint32_t i = 0; i < 2; ++i) {
        auto& device = *request.add_devices();
        device.set_uuid("gpu-" + std::to_string(i));
        device.set_memory_bytes(kGiB);
        device.set_ordinal(i);
      }
      return request;
    });
  }
  [[nodiscard]] int cycles() const { return cycles_; }
  [[nodiscard]] const std::map<std::string, std::uint64_t>& epochs() const { return epochs_; }

 private:
  std::int64_t next_ms() { return last_ms_ = std::max(last_ms_ + 1, SystemClock().unix_ms()); }

  /// Tells that the lease is gone here, and joins again when a new broker asks.
  void beat(const std::string& ended) {
    v1::HeartbeatRequest request;
    request.set_name("agent-a");
    request.set_instance("only");
    request.add_ended()->set_lease_id(ended);
    for (int attempt = 0; attempt < 20; ++attempt) {
      const auto reply =
          insist<v1::HeartbeatReply>(*agent_, &v1::Broker::Stub::Heartbeat, [&] { return request; });
      if (!reply || !reply->register_again()) return;
      enrol();
    }
    ADD_FAILURE() << "the broker forgets its agent again and again";
  }

  template <class Reply, class Method, class Make>
  std::optional<Reply> insist(v1::Broker::Stub& stub, Method method, Make make) {
    const auto give_up = std::chrono::steady_clock::now() + 60s;
    while (std::chrono::steady_clock::now() < give_up) {
      grpc::ClientContext context;
      context.set_wait_for_ready(true);
      context.set_deadline(std::chrono::system_clock::now() + 20s);
      Reply reply;
      const auto status = (stub.*method)(&context, make(), &reply);
      if (status.ok()) return reply;
      const auto error = to_error(status, "call", "broker");
      if (error.code == ErrorCode::peer_failed) continue;  // killed in mid-call
      if (error.code == ErrorCode::resource_exhausted) {   // a new broker, or it waits for the agent's word
        enrol();
        continue;
      }
      ADD_FAILURE() << error.message();
      return std::nullopt;
    }
    ADD_FAILURE() << "no broker answered for a minute";
    return std::nullopt;
  }

  std::unique_ptr<v1::Broker::Stub> client_;
  std::unique_ptr<v1::Broker::Stub> agent_;
  KeyPair key_ = *KeyPair::generate();
  std::map<std::string, std::uint64_t> epochs_;
  std::int64_t last_ms_ = 0;
  int cycles_ = 0;
};

TEST(BrokerKill, LeasesSurviveAndNothingIsGrantedTwice) {
  const TempDir certificates;
  const TempDir state;
  ASSERT_TRUE(tls::create_authority(certificates.path()));
  ASSERT_TRUE(tls::issue(certificates.path(), "main", Role::broker));
  const auto alice = *tls::load(*tls::issue(certificates.path(), "alice", Role::client));
  const auto agent = *tls::load(*tls::issue(certificates.path(), "agent-a", Role::agent));

  auto broker =
      std::make_unique<BrokerProcess>(state.path().string(), "127.0.0.1:0", certificates.path().string());
  const auto endpoint = broker->said();
  ASSERT_THAT(endpoint, ::testing::StartsWith("127.0.0.1:"));
  Load load(v1::Broker::NewStub(connect(endpoint, alice, {Role::broker, "main"})),
            v1::Broker::NewStub(connect(endpoint, agent, {Role::broker, "main"})));
  load.enrol();

  std::atomic<bool> done{false};
  std::thread client([&] {
    for (int number = 0; !done || number < 1; ++number) load.cycle(number);
  });
  std::mt19937_64 random(11);
  int kills = 0;
  for (; kills < 8; ++kills) {
    // A random moment of the load, not a wait for anything.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 120'000));
    broker->kill();
    broker = std::make_unique<BrokerProcess>(state.path().string(), endpoint, certificates.path().string());
    if (broker->said() != endpoint) break;
  }
  EXPECT_EQ(kills, 8) << broker->said();
  done = true;
  client.join();
  EXPECT_GT(load.cycles(), 0);
  broker->kill();

  // The log agrees with what client and agent saw: no epoch was skipped, so no grant was lost or made twice.
  auto store = open_sqlite_store(state / "broker.db");
  ASSERT_TRUE(store) << store.error().message();
  const auto journal = Journal::open(*std::move(store), 11);
  ASSERT_TRUE(journal) << journal.error().message();
  EXPECT_EQ(journal->state().term, 9U);
  for (const auto& [uuid, epoch] : load.epochs())
    EXPECT_EQ(journal->state().devices.at(uuid).epoch, epoch) << uuid;
  EXPECT_TRUE(journal->state().leases.empty());
  cenote::test::tried(
      {"The pool", "the broker is killed under load", 8, "no grant is lost or made twice", "so"});
}

}  // namespace
}  // namespace cenote::pool
