#include "pool/agent/broker_port.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "pool/call_gate.h"
#include "pool/proto/call.h"
#include "pool/proto/cenote.grpc.pb.h"
#include "pool/proto/channel.h"
#include "pool/proto/status.h"

namespace cenote::pool::agent {

namespace {

void fill(v1::Device& out, const LocalDevice& device, const std::string& agent) {
  out.set_uuid(device.uuid);
  out.set_model(device.model);
  out.set_memory_bytes(device.memory_bytes);
  out.set_ordinal(device.ordinal);
  out.set_agent(agent);
}

void fill(v1::LiveLease& out, const LiveWorker& live) {
  out.set_lease_id(live.lease_id);
  out.set_epoch(live.epoch);
}

class GrpcBrokerPort final : public BrokerPort {
 public:
  explicit GrpcBrokerPort(BrokerPortOptions options)
      : options_(std::move(options)),
        stub_(v1::Broker::NewStub(
            connect(options_.broker, options_.credentials, {.role = tls::Role::broker, .name = {}}))) {}

  Result<RegistrationTerms> register_agent(const AgentReport& report) override {
    v1::RegisterAgentRequest request;
    request.set_name(options_.agent);
    request.set_endpoint(options_.endpoint);
    request.set_instance(options_.instance);
    for (const auto& load : report.devices) fill(*request.add_devices(), load.device, options_.agent);
    for (const auto& live : report.live) fill(*request.add_live(), live);
    v1::RegisterAgentReply reply;
    CENOTE_TRY(call("register with the broker", &v1::Broker::Stub::AsyncRegisterAgent, request, reply));
    return read_terms(reply);
  }

  Result<HeartbeatOrders> heartbeat(const AgentReport& report) override {
    v1::HeartbeatRequest request;
    request.set_name(options_.agent);
    request.set_instance(options_.instance);
    for (const auto& live : report.live) fill(*request.add_live(), live);
    for (const auto& ended : report.ended) {
      auto& out = *request.add_ended();
      out.set_lease_id(ended.lease_id);
      out.set_reason(ended.reason);
    }
    add_loads(request, report);
    v1::HeartbeatReply reply;
    CENOTE_TRY(call("heartbeat to the broker", &v1::Broker::Stub::AsyncHeartbeat, request, reply));
    HeartbeatOrders orders;
    orders.register_again = reply.register_again();
    orders.end_leases.assign(reply.end_leases().begin(), reply.end_leases().end());
    for (const auto& renewed : reply.renewed()) {
      orders.renewed.push_back({renewed.lease_id(), renewed.expires_unix_ms()});
    }
    for (const auto& floor : reply.floors()) orders.floors[floor.uuid()] = floor.epoch();
    return orders;
  }

  void interrupt() override { gate_.shut(); }

 private:
  // gRPC moves a connection forward only while a call waits on it: calls that fail at once, again and again,
  // would never see the broker come back. So the first failure comes at once, with its cause; later calls
  // wait for the connection, and where that does not come either, the cause is still the first one.
  template <class Method, class Request, class Reply>
  Result<void> call(const char* stage, Method method, const Request& request, Reply& reply) {
    grpc::ClientContext context;
    context.set_wait_for_ready(away_.has_value());
    const auto status = perform({gate_, Deadline::in(options_.call_timeout)}, context, reply,
                                beginning(*stub_, method, request));
    if (status.ok()) {
      away_.reset();
      return {};
    }
    if (gate_.is_shut())
      return fail(Error{ErrorCode::cancelled, stage, "the agent ends"}.with(options_.broker));
    auto error = to_error(status, stage, options_.broker);
    const bool unreachable = error.native == static_cast<int>(grpc::StatusCode::UNAVAILABLE);
    const bool still_away = away_ && error.native == static_cast<int>(grpc::StatusCode::DEADLINE_EXCEEDED);
    if (unreachable) away_ = error;
    if (still_away) return fail(*away_);
    if (!unreachable) away_.reset();
    return fail(std::move(error));
  }

  static Result<RegistrationTerms> read_terms(const v1::RegisterAgentReply& reply) {
    RegistrationTerms terms;
    if (reply.broker_public_key().size() != terms.broker_key.size()) {
      return fail(ErrorCode::protocol_error, "register with the broker",
                  "its public key is not 32 bytes long");
    }
    std::copy(reply.broker_public_key().begin(), reply.broker_public_key().end(), terms.broker_key.begin());
    terms.heartbeat_ms = reply.heartbeat_ms();
    terms.grace_seconds = reply.grace_seconds();
    terms.broker_term = reply.broker_term();
    terms.end_leases.assign(reply.end_leases().begin(), reply.end_leases().end());
    for (const auto& floor : reply.floors()) terms.floors[floor.uuid()] = floor.epoch();
    return terms;
  }

  // Utilisation is the share of the time since the last beat that a device was at work.
  void add_loads(v1::HeartbeatRequest& request, const AgentReport& report) {
    const auto now = Clock::now();
    const auto span = std::chrono::duration<double, std::nano>(now - last_beat_).count();
    for (const auto& load : report.devices) {
      auto& out = *request.add_devices();
      fill(*out.mutable_device(), load.device, options_.agent);
      out.set_lease_id(load.lease_id);
      out.set_memory_used_bytes(load.use.memory_used);
      out.set_launches(load.use.launches);
      auto& busy = busy_ns_[load.device.uuid];
      const auto more = load.use.busy_ns > busy ? load.use.busy_ns - busy : 0;
      out.set_utilisation(span > 0 ? std::min(1.0, static_cast<double>(more) / span) : 0.0);
      busy = load.use.busy_ns;
    }
    last_beat_ = now;
  }

  const BrokerPortOptions options_;
  std::unique_ptr<v1::Broker::Stub> stub_;
  std::optional<Error> away_;  ///< why the broker could not be reached, while it cannot
  CallGate gate_;
  Clock::time_point last_beat_ = Clock::now();
  std::map<std::string, std::uint64_t> busy_ns_;
};

}  // namespace

std::unique_ptr<BrokerPort> make_broker_port(BrokerPortOptions options) {
  return std::make_unique<GrpcBrokerPort>(std::move(options));
}

}  // namespace cenote::pool::agent
