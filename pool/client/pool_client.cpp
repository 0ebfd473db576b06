#include "pool/client/pool_client.h"

#include <grpcpp/channel.h>

#include <algorithm>
#include <string_view>
#include <thread>
#include <utility>

#include "pool/client/calls.h"
#include "pool/proto/channel.h"
#include "runtime/process.h"

namespace cenote::pool::client {

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

namespace {

constexpr auto kAskAgain = std::chrono::milliseconds(50);

/// A server that misses a certificate hangs up without a word that gRPC would pass on.
void explain_missing_certificate(const ClientOptions& options, Error& error) {
  if (!options.credentials.certificate.empty() || !unreachable(error)) return;
  const bool hung_up = error.cause == "the TLS handshake failed" || error.cause == "it closed the connection";
  if (!hung_up) return;
  error.code = ErrorCode::permission_denied;
  error.cause = "the broker refused the connection: a client certificate is required (" + error.cause + ")";
  error.remedy = "see tls.dir: cenote needs a certificate there that the pool's authority issued";
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

class Client final : public PoolClient {
 public:
  explicit Client(ClientOptions options)
      : options_(std::move(options)),
        broker_(v1::Broker::NewStub(
            pool::connect(options_.broker, options_.credentials, {.role = tls::Role::broker, .name = {}}))) {}

  Result<std::unique_ptr<Lease>> lease(const LeaseSpec& spec, Deadline deadline,
                                       const CancelFlag* cancel) override {
    CENOTE_ASSIGN(auto key, KeyPair::generate());
    std::array<std::byte, 16> request_id{};
    CENOTE_TRY(random_bytes(request_id));
    v1::LeaseRequest request;
    request.set_gpus(spec.gpus);
    request.set_model(spec.model);
    request.set_memory_bytes(spec.memory_bytes);
    request.set_ttl_seconds(
        static_cast<std::uint32_t>(std::chrono::ceil<std::chrono::seconds>(spec.ttl).count()));
    request.set_client_public_key(key.public_key().data(), key.public_key().size());
    request.set_note(spec.note);
    request.set_request_id(to_hex(request_id));
    v1::LeaseReply reply;
    for (;;) {
      const auto granted = ask("lease from broker", deadline, cancel, [&](grpc::ClientContext& context) {
        return broker_->RequestLease(&context, request, &reply);
      });
      if (granted) break;
      const bool again =
          spec.wait && granted.error().code == ErrorCode::resource_exhausted && !deadline.passed();
      if (!again) return fail(granted.error());
      if (cancel != nullptr && cancel->raised()) {
        return fail(ErrorCode::cancelled, "lease from broker", "cancelled while waiting for free GPUs");
      }
      std::this_thread::sleep_for(std::min<Clock::duration>(deadline.left(), kAskAgain));
    }
    const auto token = as_bytes(reply.lease().token());
    return make_lease(options_, broker_, read_lease(reply.lease()), Bytes(token.begin(), token.end()),
                      std::move(key), reply.reason(), true);
  }

  Result<std::unique_ptr<Lease>> adopt(const LeaseFile& file, bool renew) override {
    CENOTE_ASSIGN(auto key, KeyPair::from_private(file.private_key));
    return make_lease(options_, broker_, file.lease, file.token, std::move(key), {}, renew);
  }

  Result<std::vector<LeaseInfo>> leases(Deadline deadline, const CancelFlag* cancel) override {
    v1::ListLeasesReply reply;
    CENOTE_TRY(ask("list leases of broker", deadline, cancel, [&](grpc::ClientContext& context) {
      return broker_->ListLeases(&context, v1::ListLeasesRequest(), &reply);
    }));
    std::vector<LeaseInfo> leases;
    for (const auto& lease : reply.leases()) leases.push_back(read_lease(lease));
    return leases;
  }

  Result<PoolState> top(Deadline deadline, const CancelFlag* cancel) override {
    v1::TopReply reply;
    CENOTE_TRY(ask("ask broker for its state", deadline, cancel, [&](grpc::ClientContext& context) {
      return broker_->Top(&context, v1::TopRequest(), &reply);
    }));
    PoolState state;
    for (const auto& agent : reply.agents()) state.agents.push_back(read_agent(agent));
    for (const auto& lease : reply.leases()) state.leases.push_back(read_lease(lease));
    state.now_unix_ms = reply.now_unix_ms();
    state.broker_term = reply.broker_term();
    return state;
  }

 private:
  template <class Call>
  Result<void> ask(const std::string& stage, Deadline deadline, const CancelFlag* cancel, const Call& call) {
    CallGate gate;
    auto done = persist(gate, stage, options_.broker, options_.call_timeout, deadline, cancel, call);
    if (!done) explain_missing_certificate(options_, done.error());
    return done;
  }

  const ClientOptions options_;
  std::shared_ptr<v1::Broker::Stub> broker_;
};

}  // namespace

std::unique_ptr<PoolClient> PoolClient::connect(ClientOptions options) {
  return std::make_unique<Client>(std::move(options));
}

}  // namespace cenote::pool::client
