// AgentCore: the agent without the network. It admits clients by their leases, keeps one worker for each
// lease, ends workers when their lease does, and knows what the broker should hear. The gRPC service, the
// heartbeat loop and the tests call it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pool/agent/lease_gate.h"
#include "pool/agent/worker_host.h"
#include "runtime/deadline.h"
#include "runtime/result.h"

namespace cenote::pool::agent {

struct CoreOptions {
  std::string agent;
  std::vector<LocalDevice> devices;
  DriverSpec driver;                        ///< what the workers open
  transport::FabricOptions fabric{};        ///< of the workers
  remote::CollectiveOptions collectives{};  ///< of the ranks in the workers
  LogOptions log{};                         ///< of the workers
  std::int64_t clock_drift_ms = 0;
  /// Wall clock in unix milliseconds: leases are written in it.
  std::function<std::int64_t()> now_unix_ms;
};

struct SessionReply {
  Bytes worker_fabric_address;
  std::vector<std::string> device_uuids;
  std::uint32_t channel = 0;
};

/// What the broker answers to a registration.
struct RegistrationTerms {
  PublicKey broker_key{};
  std::uint32_t heartbeat_ms = 1000;
  std::uint32_t grace_seconds = 0;
  std::uint64_t broker_term = 0;
  std::map<std::string, std::uint64_t> floors;  ///< by device uuid: tokens of a lower epoch are refused
  std::vector<std::string> end_leases;
};

struct Renewal {
  std::string lease_id;
  std::int64_t expires_unix_ms = 0;
};

/// What the broker answers to a heartbeat.
struct HeartbeatOrders {
  bool register_again = false;
  std::vector<std::string> end_leases;
  std::vector<Renewal> renewed;
  std::map<std::string, std::uint64_t> floors;
};

struct LiveWorker {
  std::string lease_id;
  std::uint64_t epoch = 0;  ///< the highest among its devices here
};
struct EndedWorker {
  std::string lease_id;
  std::string reason;
};
struct LocalLoad {
  LocalDevice device;
  std::string lease_id;  ///< "" = free; several are separated by commas
  DeviceUse use;
};

/// What the agent tells the broker. A lease is in `ended` only after its worker process was reaped.
struct AgentReport {
  std::vector<LiveWorker> live;
  std::vector<EndedWorker> ended;
  std::vector<LocalLoad> devices;
};

/// What became of a session.
struct SessionEnd {
  bool over = false;
  bool failed = false;  ///< by more than its client's leave
  std::string reason{};
};

/// Thread-safe. Lease rules are LeaseGate's; beyond them:
/// - a lease has one worker. The same client opening again (same fabric address) gets the same one; from
/// another
///   address the newest session wins: the old worker is ended first.
/// - leases share a device as their tokens say; a newer lease that leaves no room for an older one's share
/// ends the
///   older one's worker before its own starts.
/// - a worker that crashes ends its lease; one whose client left does not.
/// - without a word from the broker a lease ends at its expiry plus the grace.
class AgentCore {
 public:
  AgentCore(CoreOptions options, WorkerHost& host);

  Result<SessionReply> open(const Claim& claim, std::span<const std::byte> client_fabric_address,
                            Deadline deadline);
  /// Ends the lease's session; the lease itself goes on. Returns when the worker is gone or the deadline
  /// passed.
  Result<void> close(const std::string& lease_id, std::span<const std::byte> proof,
                     std::int64_t proof_unix_ms, Deadline deadline);

  /// Waits until that session (SessionReply::channel) is over and its worker reaped, `deadline` passes, or
  /// `given_up` says so, which is asked several times a second.
  SessionEnd await_end(const std::string& lease_id, std::uint32_t channel, Deadline deadline,
                       const std::function<bool()>& given_up);

  void registered(const RegistrationTerms& terms);
  void ordered(const HeartbeatOrders& orders);
  /// The broker could not be reached at the last try.
  void broker_lost();

  [[nodiscard]] AgentReport report() const;
  /// The broker has taken that report: its ended leases need not be told again.
  void reported(const AgentReport& report);

  /// Ends what has expired; call it several times a second.
  void tick();
  /// Wire this to WorkerHost::OnExit.
  void worker_ended(const std::string& lease_id, std::uint64_t generation, const WorkerExit& exit);
  /// Called whenever the broker should hear at once; may ask for the report, and not call on_news(). When
  /// this returns, no call of an earlier `tell` is in progress.
  void on_news(std::function<void()> tell);
  /// Ends every worker and waits for them.
  void shut_down(Deadline deadline);

 private:
  enum class Stage : std::uint8_t { starting, serving, ending };
  struct Session {
    LeaseToken token;
    std::vector<LocalDevice> devices;
    Stage stage = Stage::starting;
    std::uint64_t generation = 0;
    Bytes client_address;
    SessionReply reply;
    std::string ending_because{};  ///< set when the whole lease ends, not only this session
  };
  using Lock = std::unique_lock<std::mutex>;

  [[nodiscard]] GateClock clock() const;
  [[nodiscard]] std::vector<std::string> in_the_way(const LeaseToken& token) const;
  Result<void> clear_the_way(Lock& lock, const LeaseToken& token, Deadline deadline);
  Result<WorkerSetup> begin(const LeaseToken& token, std::span<const std::byte> client_fabric_address);
  void end_lease(const std::string& lease_id, const std::string& reason);
  void end_session(Session& session);
  void add_ended(const std::string& lease_id, const std::string& reason);
  void tell_news(Lock lock);

  const CoreOptions options_;
  WorkerHost& host_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  LeaseGate gate_;
  std::map<std::string, Session> sessions_;  ///< by lease
  std::vector<EndedWorker> ended_;           ///< not yet taken by the broker
  /// By channel: how the last sessions ended, for those who ask late.
  std::map<std::uint32_t, std::pair<std::string, SessionEnd>> ends_;
  std::int64_t grace_ms_ = 0;
  bool broker_here_ = false;
  bool closing_ = false;
  std::uint64_t generations_ = 0;
  std::mutex tell_mutex_;  ///< taken without the other
  std::function<void()> tell_;
};

}  // namespace cenote::pool::agent
