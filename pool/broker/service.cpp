#include "pool/broker/service.h"

#include <grpcpp/server_context.h>

#include <string>

#include "pool/proto/channel.h"
#include "pool/proto/status.h"

namespace cenote::pool {
namespace {

template <class T>
grpc::Status status_of(const Result<T>& result) {
  return result ? grpc::Status::OK : to_status(result.error());
}

std::string text_of(std::span<const std::byte> bytes) { return std::string(as_text(bytes)); }
std::string text_of(const PublicKey& key) { return text_of(std::as_bytes(std::span(key))); }

void write(const DeviceSpec& spec, const std::string& agent, v1::Device& out) {
  out.set_uuid(spec.uuid);
  out.set_model(spec.model);
  out.set_memory_bytes(spec.memory_bytes);
  out.set_ordinal(spec.ordinal);
  out.set_agent(agent);
}

void write(const LeaseView& view, v1::Lease& out) {
  out.set_id(view.id);
  out.set_client(view.client);
  out.set_expires_unix_ms(view.expires_ms);
  out.set_granted_unix_ms(view.granted_ms);
  out.set_token(text_of(view.token));
  out.set_note(view.note);
  for (const auto& device : view.devices) {
    auto& leased = *out.add_devices();
    write(device.spec, device.share.agent, *leased.mutable_device());
    leased.set_memory_bytes(device.share.memory_bytes);
    leased.set_agent_endpoint(device.endpoint);
    leased.set_epoch(device.share.epoch);
  }
}

void write(const LeaseView& view, const PublicKey& broker, v1::LeaseReply& out) {
  write(view, *out.mutable_lease());
  out.set_reason(view.reason);
  out.set_broker_public_key(text_of(broker));
}

template <class Reply>
void write_floors(const std::vector<DeviceFloor>& floors, Reply& out) {
  for (const auto& floor : floors) {
    auto& written = *out.add_floors();
    written.set_uuid(floor.device);
    written.set_epoch(floor.epoch);
  }
}

template <class Messages>
std::vector<LiveLease> read_live(const Messages& messages) {
  std::vector<LiveLease> live;
  for (const auto& lease : messages) live.push_back({lease.lease_id(), lease.epoch()});
  return live;
}

Proof read_proof(std::int64_t unix_ms, const std::string& signature) {
  const auto bytes = as_bytes(signature);
  return {unix_ms, Bytes(bytes.begin(), bytes.end())};
}

/// An agent speaks for itself only.
Result<void> check_agent(const grpc::ServerContext& context, const std::string& name) {
  CENOTE_ASSIGN(const auto identity, caller_as(context, tls::Role::agent));
  if (identity.name != name) {
    return fail(ErrorCode::permission_denied, "authorise the call",
                "the certificate is of " + identity.text() + ", the call is in the name of \"" + name + "\"");
  }
  return {};
}

Result<LeaseAsk> read_ask(const tls::Identity& client, const v1::LeaseRequest& request) {
  LeaseAsk ask{.client = client.name,
               .gpus = request.gpus(),
               .model = request.model(),
               .memory_bytes = request.memory_bytes(),
               .ttl_ms = std::int64_t{request.ttl_seconds()} * 1000,
               .client_key = {},
               .note = request.note(),
               .request_id = request.request_id()};
  const auto& key = request.client_public_key();
  if (key.size() != ask.client_key.size()) {
    return fail(ErrorCode::invalid_argument, "read the lease request",
                "the client's public key has " + std::to_string(key.size()) + " bytes, not 32");
  }
  std::copy(key.begin(), key.end(), ask.client_key.begin());
  return ask;
}

}  // namespace

grpc::Status BrokerService::RegisterAgent(grpc::ServerContext* context,
                                          const v1::RegisterAgentRequest* request,
                                          v1::RegisterAgentReply* reply) {
  if (auto allowed = check_agent(*context, request->name()); !allowed) return to_status(allowed.error());
  AgentHello hello{.name = request->name(),
                   .endpoint = request->endpoint(),
                   .instance = request->instance(),
                   .devices = {},
                   .live = read_live(request->live())};
  for (const auto& device : request->devices()) {
    hello.devices.push_back({device.uuid(), device.model(), device.memory_bytes(), device.ordinal()});
  }
  const auto welcome = core_.register_agent(hello);
  if (!welcome) return to_status(welcome.error());
  reply->set_heartbeat_ms(static_cast<std::uint32_t>(welcome->heartbeat_ms));
  reply->set_broker_public_key(text_of(welcome->broker_key));
  reply->set_broker_term(welcome->term);
  reply->set_grace_seconds(static_cast<std::uint32_t>(welcome->grace_ms / 1000));
  for (const auto& lease : welcome->end_leases) reply->add_end_leases(lease);
  write_floors(welcome->floors, *reply);
  return grpc::Status::OK;
}

grpc::Status BrokerService::Heartbeat(grpc::ServerContext* context, const v1::HeartbeatRequest* request,
                                      v1::HeartbeatReply* reply) {
  if (auto allowed = check_agent(*context, request->name()); !allowed) return to_status(allowed.error());
  AgentPulse pulse{.name = request->name(),
                   .instance = request->instance(),
                   .live = read_live(request->live()),
                   .ended = {},
                   .loads = {}};
  for (const auto& lease : request->ended()) pulse.ended.push_back({lease.lease_id(), lease.reason()});
  for (const auto& load : request->devices()) {
    pulse.loads.push_back({load.device().uuid(), load.lease_id(), load.memory_used_bytes(),
                           load.utilisation(), load.launches()});
  }
  const auto answer = core_.heartbeat(pulse);
  if (!answer) return to_status(answer.error());
  reply->set_register_again(answer->register_again);
  for (const auto& lease : answer->end_leases) reply->add_end_leases(lease);
  for (const auto& lease : answer->renewed) {
    auto& renewed = *reply->add_renewed();
    renewed.set_lease_id(lease.lease_id);
    renewed.set_expires_unix_ms(lease.expires_ms);
  }
  write_floors(answer->floors, *reply);
  return grpc::Status::OK;
}

grpc::Status BrokerService::RequestLease(grpc::ServerContext* context, const v1::LeaseRequest* request,
                                         v1::LeaseReply* reply) {
  const auto client = caller_as(*context, tls::Role::client);
  if (!client) return to_status(client.error());
  const auto ask = read_ask(*client, *request);
  if (!ask) return to_status(ask.error());
  const auto granted = core_.request(*ask);
  if (granted) write(*granted, core_.public_key(), *reply);
  return status_of(granted);
}

grpc::Status BrokerService::RenewLease(grpc::ServerContext* context, const v1::RenewRequest* request,
                                       v1::LeaseReply* reply) {
  if (auto client = caller_as(*context, tls::Role::client); !client) return to_status(client.error());
  const auto renewed = core_.renew(request->lease_id(), std::int64_t{request->ttl_seconds()} * 1000,
                                   read_proof(request->proof_unix_ms(), request->proof()));
  if (renewed) write(*renewed, core_.public_key(), *reply);
  return status_of(renewed);
}

grpc::Status BrokerService::ReleaseLease(grpc::ServerContext* context, const v1::ReleaseRequest* request,
                                         v1::ReleaseReply* /*reply*/) {
  if (auto client = caller_as(*context, tls::Role::client); !client) return to_status(client.error());
  return status_of(
      core_.release(request->lease_id(), read_proof(request->proof_unix_ms(), request->proof())));
}

grpc::Status BrokerService::ListLeases(grpc::ServerContext* context, const v1::ListLeasesRequest* /*request*/,
                                       v1::ListLeasesReply* reply) {
  if (auto who = caller(*context); !who) return to_status(who.error());
  for (const auto& lease : core_.list()) write(lease, *reply->add_leases());
  return grpc::Status::OK;
}

grpc::Status BrokerService::Top(grpc::ServerContext* context, const v1::TopRequest* /*request*/,
                                v1::TopReply* reply) {
  if (auto who = caller(*context); !who) return to_status(who.error());
  const auto top = core_.top();
  reply->set_now_unix_ms(top.now_ms);
  reply->set_broker_term(top.term);
  for (const auto& lease : top.leases) write(lease, *reply->add_leases());
  for (const auto& agent : top.agents) {
    auto& status = *reply->add_agents();
    status.set_name(agent.name);
    status.set_endpoint(agent.endpoint);
    status.set_alive(agent.alive);
    status.set_last_heartbeat_unix_ms(agent.last_heard_unix_ms);
    for (const auto& device : agent.devices) {
      auto& load = *status.add_devices();
      write(device.spec, agent.name, *load.mutable_device());
      load.set_lease_id(device.lease_id);
      load.set_memory_used_bytes(device.load.memory_used_bytes);
      load.set_utilisation(device.load.utilisation);
      load.set_launches(device.load.launches);
    }
  }
  return grpc::Status::OK;
}

}  // namespace cenote::pool
