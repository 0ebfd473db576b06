// BrokerCore: state, scheduler, store and clock as one thread-safe object; what the gRPC service calls.
//
// Every decision is durable before the call that made it returns. While the store cannot be written, calls
// that decide fail with its reason; leases in force go on, heartbeats are answered.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pool/broker/clock.h"
#include "pool/broker/journal.h"
#include "pool/broker/messages.h"
#include "pool/scheduler/snapshot.h"
#include "runtime/result.h"

namespace cenote {
class Logger;
}

namespace cenote::pool {

class BrokerCore {
 public:
  /// Replays the store and starts a new term. `clock` and `log` outlive the core.
  static Result<std::unique_ptr<BrokerCore>> open(std::unique_ptr<Store> store, KeyPair key,
                                                  const BrokerClock& clock, Logger& log,
                                                  BrokerPolicy policy = {});

  /// Errors: invalid_argument, already_exists (a device of another agent), the store's.
  Result<AgentWelcome> register_agent(const AgentHello& hello);
  /// Never fails for the store's sake: what an agent confirmed is kept and logged later.
  Result<PulseAnswer> heartbeat(const AgentPulse& pulse);

  /// Errors: as place() says; not_found when the request was granted and its lease has ended.
  Result<LeaseView> request(const LeaseAsk& ask);
  /// Errors: not_found (ended), permission_denied (proof), invalid_argument (ttl).
  Result<LeaseView> renew(const std::string& lease_id, std::int64_t ttl_ms, const Proof& proof);
  /// Releasing a lease that has ended is a success. Errors: not_found, permission_denied (proof).
  Result<void> release(const std::string& lease_id, const Proof& proof);

  [[nodiscard]] std::vector<LeaseView> list() const;
  [[nodiscard]] TopView top() const;
  [[nodiscard]] const PublicKey& public_key() const { return key_.public_key(); }

  /// Expires, gives up silent agents, reclaims. Call it every 100 ms or so.
  void tick();

  /// For tests and the trace simulator: a copy.
  [[nodiscard]] State state() const;

 private:
  struct AgentLife {
    std::int64_t heard_monotonic_ms = 0;
    std::int64_t heard_unix_ms = 0;
    bool registered = false;  ///< in this term
    std::vector<DeviceLoad> loads;
  };

  BrokerCore(Journal journal, KeyPair key, const BrokerClock& clock, Logger& log, BrokerPolicy policy);

  // All of these expect the lock to be held.
  Result<void> commit(std::span<const Command> commands);
  void commit_or_keep(std::vector<Command> commands);
  void log_events(std::span<const Event> events);
  [[nodiscard]] std::vector<std::string> leases_to_end(const std::string& agent,
                                                       const std::vector<LiveLease>& live) const;
  [[nodiscard]] std::vector<DeviceFloor> floors(const std::string& agent) const;
  [[nodiscard]] std::vector<Command> after_ends(const AgentPulse& pulse) const;
  [[nodiscard]] std::vector<Command> due(std::int64_t now_ms) const;
  void hear(const std::string& agent);
  void take_loads(const AgentPulse& pulse);
  void confirm_deferred();
  Result<LeaseView> granted_before(const LeaseAsk& ask, const GrantedRequest& request) const;
  [[nodiscard]] LeaseView view(const std::string& id, const Lease& lease) const;
  [[nodiscard]] Result<LeaseView> signed_view(const std::string& id) const;
  Result<std::int64_t> ttl(std::int64_t asked_ms) const;

  mutable std::mutex mutex_;
  Journal journal_;
  const KeyPair key_;
  const BrokerClock& clock_;
  Logger& log_;
  const BrokerPolicy policy_;
  const std::int64_t started_monotonic_ms_;
  std::map<std::string, AgentLife> lives_;
  LoadSnapshot load_;
  /// Ends that agents confirmed while the store was failing: (lease, agent) and the reason.
  std::map<std::pair<std::string, std::string>, std::string> deferred_;
  std::string last_store_error_;
};

}  // namespace cenote::pool
