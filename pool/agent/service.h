// The agent's gRPC service: a thin coat over AgentCore.
#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace cenote {
class Logger;
}

namespace cenote::pool::agent {

class AgentCore;

/// `core` and `log` outlive the service.
std::unique_ptr<grpc::Service> make_agent_service(AgentCore& core, Logger& log);

}  // namespace cenote::pool::agent
