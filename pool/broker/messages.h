// What the broker's core takes and gives, as plain values: protobuf and gRPC begin above it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pool/lease_token.h"
#include "pool/state/commands.h"
#include "runtime/bytes.h"

namespace cenote::pool {

struct BrokerPolicy {
  std::int64_t heartbeat_ms = 500;
  std::int64_t agent_timeout_ms = 3'000;  ///< silence after which nothing is placed on an agent
  std::int64_t agent_dead_ms = 15'000;    ///< silence after which the leases that touch it end
  std::int64_t grace_ms = 600'000;        ///< how long agents keep leases alive while the broker is silent
  std::int64_t drift_ms = 1'000;          ///< how far two clocks of the pool may differ
  std::int64_t default_ttl_ms = 60'000;
  std::int64_t max_ttl_ms = 86'400'000;
  std::int64_t absence_ms = 0;  ///< stopped so long, or its clock set so far, it has been away; 0 = never
  std::uint32_t snapshot_every = 1'000;  ///< records
};

struct LiveLease {
  std::string lease_id;
  std::uint64_t epoch = 0;  ///< of any of its devices there; 0 = not said
};

struct DeviceFloor {
  std::string device;
  std::uint64_t epoch = 0;
};

struct AgentHello {
  std::string name;
  std::string endpoint;
  std::string instance;
  std::vector<DeviceSpec> devices;
  std::vector<LiveLease> live;
};

struct AgentWelcome {
  std::int64_t heartbeat_ms = 0;
  std::int64_t grace_ms = 0;
  std::uint64_t term = 0;
  PublicKey broker_key{};
  std::vector<std::string> end_leases;
  std::vector<DeviceFloor> floors;
};

struct DeviceLoad {
  std::string device;
  std::string lease_id;
  std::uint64_t memory_used_bytes = 0;
  double utilisation = 0;
  std::uint64_t launches = 0;
};

struct EndedLease {
  std::string lease_id;
  std::string reason;
};

struct AgentPulse {
  std::string name;
  std::string instance;
  std::vector<LiveLease> live;
  std::vector<EndedLease> ended;
  std::vector<DeviceLoad> loads;
};

struct RenewedLease {
  std::string lease_id;
  std::int64_t expires_ms = 0;
};

struct PulseAnswer {
  bool register_again = false;
  std::vector<std::string> end_leases;
  std::vector<RenewedLease> renewed;
  std::vector<DeviceFloor> floors;
};

struct LeaseAsk {
  std::string client;  ///< from the certificate
  std::uint32_t gpus = 1;
  std::string model;
  std::uint64_t memory_bytes = 0;
  std::int64_t ttl_ms = 0;
  PublicKey client_key{};
  std::string note;
  std::string request_id;
};

struct LeasedDevice {
  DeviceSpec spec;
  Share share;
  std::string endpoint;  ///< of its agent
};

struct LeaseView {
  std::string id;
  std::string client;
  std::string note;
  std::string reason;
  std::int64_t granted_ms = 0;
  std::int64_t expires_ms = 0;
  std::vector<LeasedDevice> devices;
  Bytes token;  ///< only for who asked
};

struct DeviceView {
  DeviceSpec spec;
  std::string lease_id;  ///< "" = free; a shared device has one view for each lease
  DeviceLoad load;
};

struct AgentView {
  std::string name;
  std::string endpoint;
  bool alive = false;
  std::int64_t last_heard_unix_ms = 0;  ///< 0 = not since this broker began
  std::vector<DeviceView> devices;
};

struct TopView {
  std::vector<AgentView> agents;
  std::vector<LeaseView> leases;
  std::int64_t now_ms = 0;
  std::uint64_t term = 0;
};

}  // namespace cenote::pool
