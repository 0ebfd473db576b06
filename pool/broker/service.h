// The gRPC face of BrokerCore: translates messages, and lets each role call only what is its own. Agents
// register and pulse under the name in their certificate; everybody may list; clients lease.
#pragma once

#include "pool/broker/core.h"
#include "pool/proto/cenote.grpc.pb.h"

namespace cenote::pool {

/// Thread-safe. `core` outlives it.
class BrokerService final : public v1::Broker::Service {
 public:
  explicit BrokerService(BrokerCore& core) : core_(core) {}

  grpc::Status RegisterAgent(grpc::ServerContext* context, const v1::RegisterAgentRequest* request,
                             v1::RegisterAgentReply* reply) override;
  grpc::Status Heartbeat(grpc::ServerContext* context, const v1::HeartbeatRequest* request,
                         v1::HeartbeatReply* reply) override;
  grpc::Status RequestLease(grpc::ServerContext* context, const v1::LeaseRequest* request,
                            v1::LeaseReply* reply) override;
  grpc::Status RenewLease(grpc::ServerContext* context, const v1::RenewRequest* request,
                          v1::LeaseReply* reply) override;
  grpc::Status ReleaseLease(grpc::ServerContext* context, const v1::ReleaseRequest* request,
                            v1::ReleaseReply* reply) override;
  grpc::Status ListLeases(grpc::ServerContext* context, const v1::ListLeasesRequest* request,
                          v1::ListLeasesReply* reply) override;
  grpc::Status Top(grpc::ServerContext* context, const v1::TopRequest* request, v1::TopReply* reply) override;

 private:
  BrokerCore& core_;
};

}  // namespace cenote::pool
