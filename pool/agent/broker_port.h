// The broker, as an agent's heartbeat loop sees it, over gRPC.
#pragma once

#include <memory>
#include <string>

#include "pool/agent/heartbeat_loop.h"
#include "pool/tls/credentials.h"

namespace cenote::pool::agent {

struct BrokerPortOptions {
  std::string broker;    ///< host:port
  std::string agent;     ///< this agent's name
  std::string endpoint;  ///< where its service can be reached
  std::string instance;  ///< random, new with each start
  tls::Credentials credentials;
  Clock::duration call_timeout = std::chrono::seconds(3);
};

std::unique_ptr<BrokerPort> make_broker_port(BrokerPortOptions options);

}  // namespace cenote::pool::agent
