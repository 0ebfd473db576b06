// BrokerCore: state, scheduler, store and clock as one thread-safe object; what the gRPC service calls.
//
// Every decision is durable before the call that made it returns, and before anybody sees it. While the store
// cannot be written, calls that decide fail with its reason; leases in force go on, heartbeats are answered.
// While it is slow, calls that decide wait for it in turn, renewals together; the others wait for nothing.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pool/broker/broker_metrics.h"
#include "pool/broker/clock.h"
#include "pool/broker/journal.h"
#include "pool/broker/messages.h"
#include "pool/scheduler/snapshot.h"
#include "runtime/result.h"

namespace cenote {
class Logger;
}

namespace cenote::pool {

/// What the proofs of those who call a broker name.
inline constexpr auto kBrokerAudience = "broker";

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
  /// What it did and holds, in Prometheus' text format.
  [[nodiscard]] std::string metrics_text() const;
  [[nodiscard]] const PublicKey& public_key() const { return key_.public_key(); }

  /// Expires, gives up silent agents, reclaims. Call it every 100 ms or so.
  void tick();

  /// For tests and the trace simulator: a copy.
  [[nodiscard]] State state() const;
  /// Renewals that wait for the store.
  [[nodiscard]] std::size_t renewals_waiting() const;

 private:
  struct AgentLife {
    std::int64_t heard_monotonic_ms = 0;
    std::int64_t heard_unix_ms = 0;
    bool registered = false;  ///< in this term
    std::vector<DeviceLoad> loads;
  };

  BrokerCore(Journal journal, KeyPair key, const BrokerClock& clock, Logger& log, BrokerPolicy policy,
             std::unique_ptr<BrokerMetrics> metrics);

  /// A renewal of somebody who waits for the store.
  struct Renewal {
    const std::string& lease_id;
    std::int64_t length_ms;
    const Proof& proof;
    bool done = false;
    Result<LeaseView> answer = LeaseView{};
  };

  // These expect mutex_ to be held.
  Result<void> write(std::span<const Command> commands);
  Result<void> start_term();
  void notice_absence();
  Result<void> recover_store();
  void publish(std::span<const Command> commands, std::int64_t now_ms);
  void commit_renewals();
  Result<void> commit(std::span<const Command> commands);
  bool commit_or_keep(std::vector<Command> commands);  ///< true = it is logged
  void log_events(std::span<const Event> events);
  [[nodiscard]] std::vector<Command> due(std::int64_t now_ms) const;
  void log_heard();
  Result<LeaseView> grant(const LeaseAsk& ask);
  Result<LeaseView> granted_before(const LeaseAsk& ask, const GrantedRequest& request) const;
  // These are of the state that they are given.
  static Result<Command> renewal_command(const State& state, const Renewal& renewal, std::int64_t now_ms);
  static std::vector<Command> after_ends(const State& state, const AgentPulse& pulse);
  static LeaseView view(const State& state, const std::string& id, const Lease& lease);
  [[nodiscard]] Result<LeaseView> signed_view(const State& state, const std::string& id) const;
  [[nodiscard]] Result<std::int64_t> ttl(std::int64_t asked_ms) const;
  // These expect seen_mutex_ to be held.
  [[nodiscard]] std::vector<std::string> leases_to_end(const std::string& agent,
                                                       const std::vector<LiveLease>& live) const;
  [[nodiscard]] std::vector<DeviceFloor> floors(const std::string& agent) const;
  [[nodiscard]] bool is_known(const AgentHello& hello) const;
  void hear(const std::string& agent);
  void take_loads(const AgentPulse& pulse);

  /// Of who decides; held while the store writes. Never taken by who has seen_mutex_.
  mutable std::mutex mutex_;
  Journal journal_;            ///< its state may be ahead of what is durable while somebody has mutex_
  bool store_failed_ = false;  ///< at its last commit
  std::int64_t awake_ms_;      ///< by the monotonic clock: when this process was last seen to be running
  std::int64_t ahead_ms_;      ///< of the wall clock before the monotonic one, then
  const KeyPair key_;
  const BrokerClock& clock_;
  Logger& log_;
  const BrokerPolicy policy_;
  const std::unique_ptr<BrokerMetrics> metrics_;
  const std::int64_t started_monotonic_ms_;

  mutable std::mutex seen_mutex_;  ///< of all below; nobody waits while holding it
  State seen_;                     ///< what is durable: the journal's state, but for what is being written
  std::map<std::string, AgentLife> lives_;
  LoadSnapshot load_;
  std::set<std::string> recovered_;  ///< agents that are heard again, until the log has it
  /// Ends that agents confirmed, until the log has them: (lease, agent) and the reason.
  std::map<std::pair<std::string, std::string>, std::string> deferred_;
  mutable std::mutex renewals_mutex_;
  std::vector<Renewal*> renewals_;
};

}  // namespace cenote::pool
