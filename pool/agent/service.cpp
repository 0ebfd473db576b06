#include "pool/agent/service.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <chrono>

#include "pool/agent/core.h"
#include "pool/proto/cenote.grpc.pb.h"
#include "pool/proto/channel.h"
#include "pool/proto/status.h"
#include "runtime/log.h"

namespace cenote::pool::agent {

namespace {

constexpr auto kLongestCall = std::chrono::seconds(30);
constexpr auto kLongestAwait = std::chrono::minutes(30);

// Debian's gRPC speaks of deadlines on the wall clock; ours are monotonic.
Deadline deadline_of(const grpc::ServerContext& context) {
  const auto left = context.deadline() - std::chrono::system_clock::now();
  return Deadline::in(std::clamp<Clock::duration>(std::chrono::duration_cast<Clock::duration>(left),
                                                  Clock::duration::zero(), kLongestCall));
}

class Service final : public v1::Agent::Service {
 public:
  Service(AgentCore& core, Logger& log) : core_(core), log_(log) {}

  grpc::Status OpenSession(grpc::ServerContext* context, const v1::OpenSessionRequest* request,
                           v1::OpenSessionReply* reply) override {
    const auto caller = caller_as(*context, tls::Role::client);
    if (!caller) return to_status(caller.error());
    const Claim claim{as_bytes(request->token()), as_bytes(request->proof()), request->proof_unix_ms()};
    auto opened = core_.open(claim, as_bytes(request->client_fabric_address()), deadline_of(*context));
    if (!opened) {
      log_.write(LogLevel::warn, opened.error());
      return to_status(opened.error());
    }
    reply->set_worker_fabric_address(std::string(as_text(opened->worker_fabric_address)));
    reply->set_channel(opened->channel);
    for (const auto& uuid : opened->device_uuids) reply->add_device_uuids(uuid);
    return grpc::Status::OK;
  }

  grpc::Status CloseSession(grpc::ServerContext* context, const v1::CloseSessionRequest* request,
                            v1::CloseSessionReply*) override {
    const auto caller = caller_as(*context, tls::Role::client);
    if (!caller) return to_status(caller.error());
    auto closed = core_.close(request->lease_id(), as_bytes(request->proof()), request->proof_unix_ms(),
                              deadline_of(*context));
    return closed ? grpc::Status::OK : to_status(closed.error());
  }

  grpc::Status AwaitSessionEnd(grpc::ServerContext* context, const v1::AwaitSessionEndRequest* request,
                               v1::AwaitSessionEndReply* reply) override {
    const auto caller = caller_as(*context, tls::Role::client);
    if (!caller) return to_status(caller.error());
    const auto wait = std::min<Clock::duration>(std::chrono::milliseconds(request->wait_ms()), kLongestAwait);
    const auto end = core_.await_end(request->lease_id(), request->channel(), Deadline::in(wait),
                                     [context] { return context->IsCancelled(); });
    reply->set_over(end.over);
    reply->set_failed(end.failed);
    reply->set_reason(end.reason);
    return grpc::Status::OK;
  }

 private:
  AgentCore& core_;
  Logger& log_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_agent_service(AgentCore& core, Logger& log) {
  return std::make_unique<Service>(core, log);
}

}  // namespace cenote::pool::agent
