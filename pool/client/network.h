// Network: the calls that the pool's client makes, as its own code sees them. gRPC in grpc_network.cpp, a
// double in the tests. What has threads, clocks, locks and retries stands above it and knows no gRPC.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pool/call_gate.h"
#include "pool/client/pool_client.h"
#include "pool/lease_token.h"
#include "runtime/bytes.h"
#include "runtime/deadline.h"
#include "runtime/result.h"

namespace cenote::pool::client {

/// Error.native of what the network itself reports, in gRPC's numbers (grpc_network.cpp compares them).
inline constexpr int kNetworkDeadline = 4, kNetworkUnavailable = 14;

/// The peer could not be reached, or did not answer; what it refused is another matter.
inline bool unreachable(const Error& error) {
  return (error.code == ErrorCode::peer_failed && error.native == kNetworkUnavailable) ||
         (error.code == ErrorCode::deadline_exceeded && error.native == kNetworkDeadline);
}

/// Of every call: it ends with an answer, at the deadline, or soon after the gate is shut (error: cancelled)
/// or `cancel`, which may be null, is raised.
struct CallTerms {
  std::string stage;  ///< for errors
  CallGate& gate;
  Deadline deadline;
  const CancelFlag* cancel = nullptr;
};

struct GrantCall {
  LeaseSpec spec;
  PublicKey key{};
  std::string request_id;  ///< the same id asked twice is granted once
};
struct Granted {
  LeaseInfo lease;
  Bytes token;
  std::string reason;
};
struct RenewCall {
  std::string lease_id;
  std::uint32_t ttl_seconds = 0;
  Proof proof;
};
struct Renewed {
  std::int64_t expires_unix_ms = 0;
  Bytes token;  ///< empty = as before
};
struct ReleaseCall {
  std::string lease_id;
  Proof proof;
};
struct OpenCall {
  Bytes token;
  Proof proof;
  Bytes client_fabric_address;
};
struct Opened {
  Bytes worker_fabric_address;
  std::size_t devices = 0;
  std::uint32_t channel = 0;
};

/// The connection to one agent.
class AgentLine {
 public:
  virtual ~AgentLine() = default;
  virtual Result<Opened> open(const CallTerms& terms, const OpenCall& call) = 0;
};

/// Asks an agent to say when a session is over, at the latest after `wait`.
struct AwaitCall {
  std::shared_ptr<AgentLine> line;  ///< of the same Network
  std::string lease_id;
  std::uint32_t channel = 0;  ///< Opened.channel
  Clock::duration wait{};
  Clock::duration patience{};  ///< how much longer the answer may take
  bool connect = false;        ///< wait for a connection, also where none can be made now
};
struct AwaitedEnd {
  bool over = false;
  bool failed = false;  ///< by more than its client's leave
  std::string reason{};
};
struct AwaitAnswer {
  std::uint64_t id = 0;
  Result<AwaitedEnd> end;
};

/// Any number of such calls in flight. start(), cancel() and shut() from any thread and without waiting,
/// next() from one thread.
class AwaitCalls {
 public:
  virtual ~AwaitCalls() = default;
  /// `id` is new. Not after shut().
  virtual void start(std::uint64_t id, AwaitCall call) = 0;
  /// It ends soon, with an error; nothing where it has ended.
  virtual void cancel(std::uint64_t id) = 0;
  /// Cancels all. Then next() gives what is left, and nullopt.
  virtual void shut() = 0;
  /// Waits for the next call to end; each is given once.
  virtual std::optional<AwaitAnswer> next() = 0;
};

/// Thread-safe.
class Network {
 public:
  virtual ~Network() = default;
  // To the broker:
  virtual Result<Granted> grant(const CallTerms& terms, const GrantCall& call) = 0;
  virtual Result<Renewed> renew(const CallTerms& terms, const RenewCall& call) = 0;
  virtual Result<void> release(const CallTerms& terms, const ReleaseCall& call) = 0;
  virtual Result<std::vector<LeaseInfo>> leases(const CallTerms& terms) = 0;
  virtual Result<PoolState> top(const CallTerms& terms) = 0;
  /// To that agent; connects with the first call.
  virtual std::shared_ptr<AgentLine> line(const std::string& agent, const std::string& endpoint) = 0;
  virtual std::unique_ptr<AwaitCalls> await_calls() = 0;
};

}  // namespace cenote::pool::client
