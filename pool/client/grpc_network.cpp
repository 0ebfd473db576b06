// Network over gRPC: messages to structs and back, nothing else.
#include <grpcpp/channel.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/async_unary_call.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "pool/client/calls.h"
#include "pool/client/network.h"
#include "pool/client/pool_client.h"
#include "pool/proto/call.h"
#include "pool/proto/cenote.grpc.pb.h"
#include "pool/proto/channel.h"
#include "pool/proto/status.h"

namespace cenote::pool::client {

namespace {

static_assert(kNetworkDeadline == static_cast<int>(grpc::StatusCode::DEADLINE_EXCEEDED));
static_assert(kNetworkUnavailable == static_cast<int>(grpc::StatusCode::UNAVAILABLE));

// A request that is cancelled may have been granted: for so long its answer is worth waiting for, since a
// lease that nobody hears of holds its GPUs for its time to live.
constexpr auto kGrantGrace = std::chrono::seconds(1);

std::string text_of(std::span<const std::byte> bytes) { return std::string(as_text(bytes)); }

Bytes bytes_of(const std::string& text) {
  const auto bytes = as_bytes(text);
  return {bytes.begin(), bytes.end()};
}

/// With the devices of one agent together.
LeaseInfo read_lease(const v1::Lease& lease) {
  LeaseInfo info;
  info.id = lease.id();
  info.client = lease.client();
  info.note = lease.note();
  info.granted_unix_ms = lease.granted_unix_ms();
  info.expires_unix_ms = lease.expires_unix_ms();
  std::vector<std::string> agents;
  for (const auto& leased : lease.devices()) {
    const auto& agent = leased.device().agent();
    if (std::ranges::find(agents, agent) == agents.end()) agents.push_back(agent);
  }
  for (const auto& agent : agents) {
    for (const auto& leased : lease.devices()) {
      if (leased.device().agent() != agent) continue;
      info.devices.push_back({.uuid = leased.device().uuid(),
                              .model = leased.device().model(),
                              .memory_bytes = leased.memory_bytes(),
                              .agent = agent,
                              .agent_endpoint = leased.agent_endpoint(),
                              .epoch = leased.epoch()});
    }
  }
  return info;
}

template <class Leases>
std::vector<LeaseInfo> read_leases(const Leases& in) {
  std::vector<LeaseInfo> leases;
  for (const auto& lease : in) leases.push_back(read_lease(lease));
  return leases;
}

AgentState read_agent(const v1::AgentStatus& in) {
  AgentState agent;
  agent.name = in.name();
  agent.endpoint = in.endpoint();
  agent.alive = in.alive();
  agent.last_heartbeat_unix_ms = in.last_heartbeat_unix_ms();
  for (const auto& load : in.devices()) {
    agent.devices.push_back({.uuid = load.device().uuid(),
                             .model = load.device().model(),
                             .agent = in.name(),
                             .ordinal = load.device().ordinal(),
                             .memory_bytes = load.device().memory_bytes(),
                             .memory_used_bytes = load.memory_used_bytes(),
                             .launches = load.launches(),
                             .utilisation = load.utilisation(),
                             .lease_id = load.lease_id()});
  }
  return agent;
}

class GrpcLine final : public AgentLine {
 public:
  GrpcLine(const std::shared_ptr<grpc::Channel>& channel, std::string peer)
      : stub_(v1::Agent::NewStub(channel)), peer_(std::move(peer)) {}

  Result<Opened> open(const CallTerms& terms, const OpenCall& call) override {
    v1::OpenSessionRequest request;
    request.set_token(text_of(call.token));
    request.set_proof(text_of(call.proof.signature));
    request.set_proof_unix_ms(call.proof.unix_ms);
    request.set_client_fabric_address(text_of(call.client_fabric_address));
    v1::OpenSessionReply reply;
    grpc::ClientContext context;
    const auto status = perform({terms.gate, terms.deadline, terms.cancel}, context, reply,
                                beginning(*stub_, &v1::Agent::Stub::AsyncOpenSession, request));
    if (!status.ok()) return fail(to_error(status, terms.stage, peer_));
    return Opened{bytes_of(reply.worker_fabric_address()),
                  static_cast<std::size_t>(reply.device_uuids_size()), reply.channel()};
  }

  [[nodiscard]] v1::Agent::Stub& stub() { return *stub_; }
  [[nodiscard]] const std::string& peer() const { return peer_; }

 private:
  const std::unique_ptr<v1::Agent::Stub> stub_;
  const std::string peer_;
};

class GrpcAwaitCalls final : public AwaitCalls {
 public:
  void start(std::uint64_t id, AwaitCall call) override {
    auto flight = std::make_unique<Flight>();
    flight->id = id;
    flight->call = std::move(call);
    v1::AwaitSessionEndRequest request;
    request.set_lease_id(flight->call.lease_id);
    request.set_channel(flight->call.channel);
    const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(flight->call.wait);
    request.set_wait_ms(static_cast<std::uint32_t>(wait.count()));
    flight->context.set_wait_for_ready(flight->call.connect);
    flight->context.set_deadline(
        std::chrono::system_clock::now() + wait +
        std::chrono::duration_cast<std::chrono::milliseconds>(flight->call.patience));
    const std::lock_guard lock(mutex_);
    auto& here = *flights_.emplace(id, std::move(flight)).first->second;
    here.reader = line(here).stub().AsyncAwaitSessionEnd(&here.context, request, &queue_);
    here.reader->Finish(&here.reply, &here.status, &here);
  }

  void cancel(std::uint64_t id) override {
    const std::lock_guard lock(mutex_);
    if (const auto found = flights_.find(id); found != flights_.end()) found->second->context.TryCancel();
  }

  void shut() override {
    const std::lock_guard lock(mutex_);
    for (auto& [id, flight] : flights_) flight->context.TryCancel();
    queue_.Shutdown();
  }

  std::optional<AwaitAnswer> next() override {
    void* tag = nullptr;
    bool ok = false;
    if (!queue_.Next(&tag, &ok)) return std::nullopt;
    std::unique_lock lock(mutex_);
    auto node = flights_.extract(static_cast<Flight*>(tag)->id);
    lock.unlock();
    auto& flight = *node.mapped();
    if (!flight.status.ok()) {
      return AwaitAnswer{flight.id, fail(to_error(flight.status, "keep lease " + flight.call.lease_id,
                                                  line(flight).peer()))};
    }
    return AwaitAnswer{flight.id,
                       AwaitedEnd{flight.reply.over(), flight.reply.failed(), flight.reply.reason()}};
  }

 private:
  struct Flight {
    std::uint64_t id = 0;
    AwaitCall call{};
    grpc::ClientContext context{};
    v1::AwaitSessionEndReply reply{};
    grpc::Status status{};
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::AwaitSessionEndReply>> reader{};
  };

  // Lines and awaiting calls come from one network: this one.
  static GrpcLine& line(const Flight& flight) { return static_cast<GrpcLine&>(*flight.call.line); }

  std::mutex mutex_;
  grpc::CompletionQueue queue_;
  std::map<std::uint64_t, std::unique_ptr<Flight>> flights_;
};

class GrpcNetwork final : public Network {
 public:
  explicit GrpcNetwork(const ClientOptions& options)
      : address_(options.broker),
        credentials_(options.credentials),
        broker_(v1::Broker::NewStub(
            pool::connect(address_, credentials_, {.role = tls::Role::broker, .name = {}}))) {}

  Result<Granted> grant(const CallTerms& terms, const GrantCall& call) override {
    v1::LeaseRequest request;
    request.set_gpus(call.spec.gpus);
    request.set_model(call.spec.model);
    request.set_memory_bytes(call.spec.memory_bytes);
    request.set_ttl_seconds(
        static_cast<std::uint32_t>(std::chrono::ceil<std::chrono::seconds>(call.spec.ttl).count()));
    request.set_client_public_key(call.key.data(), call.key.size());
    request.set_note(call.spec.note);
    request.set_request_id(call.request_id);
    v1::LeaseReply reply;
    CENOTE_TRY(ask(terms, &v1::Broker::Stub::AsyncRequestLease, request, reply, false, kGrantGrace));
    return Granted{read_lease(reply.lease()), bytes_of(reply.lease().token()), reply.reason()};
  }

  Result<Renewed> renew(const CallTerms& terms, const RenewCall& call) override {
    v1::RenewRequest request;
    request.set_lease_id(call.lease_id);
    request.set_ttl_seconds(call.ttl_seconds);
    request.set_proof(text_of(call.proof.signature));
    request.set_proof_unix_ms(call.proof.unix_ms);
    v1::LeaseReply reply;
    // gRPC moves a connection forward only while a call waits on it. One that fails at once, again and again,
    // would never see the broker come back.
    constexpr bool wait_for_connection = true;
    CENOTE_TRY(ask(terms, &v1::Broker::Stub::AsyncRenewLease, request, reply, wait_for_connection));
    return Renewed{reply.lease().expires_unix_ms(), bytes_of(reply.lease().token())};
  }

  Result<void> release(const CallTerms& terms, const ReleaseCall& call) override {
    v1::ReleaseRequest request;
    request.set_lease_id(call.lease_id);
    request.set_proof(text_of(call.proof.signature));
    request.set_proof_unix_ms(call.proof.unix_ms);
    v1::ReleaseReply reply;
    return ask(terms, &v1::Broker::Stub::AsyncReleaseLease, request, reply);
  }

  Result<std::vector<LeaseInfo>> leases(const CallTerms& terms) override {
    v1::ListLeasesReply reply;
    CENOTE_TRY(ask(terms, &v1::Broker::Stub::AsyncListLeases, v1::ListLeasesRequest(), reply));
    return read_leases(reply.leases());
  }

  Result<PoolState> top(const CallTerms& terms) override {
    v1::TopReply reply;
    CENOTE_TRY(ask(terms, &v1::Broker::Stub::AsyncTop, v1::TopRequest(), reply));
    PoolState state;
    for (const auto& agent : reply.agents()) state.agents.push_back(read_agent(agent));
    state.leases = read_leases(reply.leases());
    state.now_unix_ms = reply.now_unix_ms();
    state.broker_term = reply.broker_term();
    return state;
  }

  std::shared_ptr<AgentLine> line(const std::string& agent, const std::string& endpoint) override {
    return std::make_shared<GrpcLine>(
        pool::connect(endpoint, credentials_, {.role = tls::Role::agent, .name = agent}),
        agent + " (" + endpoint + ")");
  }

  std::unique_ptr<AwaitCalls> await_calls() override { return std::make_unique<GrpcAwaitCalls>(); }

 private:
  template <class Method, class Request, class Reply>
  Result<void> ask(const CallTerms& terms, Method method, const Request& request, Reply& reply,
                   bool wait_for_connection = false, Clock::duration grace = {}) {
    grpc::ClientContext context;
    context.set_wait_for_ready(wait_for_connection);
    const auto status = perform({terms.gate, terms.deadline, terms.cancel, grace}, context, reply,
                                beginning(*broker_, method, request));
    if (!status.ok()) return fail(to_error(status, terms.stage, address_));
    return {};
  }

  const std::string address_;
  const tls::Credentials credentials_;
  const std::unique_ptr<v1::Broker::Stub> broker_;
};

}  // namespace

std::unique_ptr<PoolClient> PoolClient::connect(ClientOptions options) {
  auto network = std::make_shared<GrpcNetwork>(options);
  return client_over(std::move(options), std::move(network));
}

}  // namespace cenote::pool::client
