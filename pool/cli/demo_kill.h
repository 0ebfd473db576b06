// What `cenote demo --kill` does: it ends processes of the pool with SIGKILL in the middle of a training and
// watches what becomes of the work, of the lease and of the devices.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "pool/cli/process_set.h"
#include "pool/client/pool_client.h"
#include "runtime/deadline.h"
#include "runtime/result.h"

namespace cenote::pool::cli {

/// Whom `--kill` ends.
enum class Victim : std::uint8_t { none, broker, agent, worker, client };

/// One kill and what was seen of it. What does not apply is empty or 0.
struct KillFigures {
  std::string victim;             ///< "broker", "agent node2", "worker of node2", "client"
  std::uint64_t step = 0;         ///< of the training, before which it died
  double away_ms = 0;             ///< broker: until it listened again
  std::uint64_t steps_away = 0;   ///< broker: issued meanwhile
  std::uint64_t epochs_away = 0;  ///< broker: trained to their end meanwhile
  std::string refusal;            ///< broker: what it said, once back, to who asked for one more GPU
  double heard_ms = 0;            ///< worker, agent: until the training ended with an error
  std::string error;              ///< worker, agent: that error, in one line
  double freed_ms = 0;            ///< worker, agent, client: until all its GPUs were leased again
  std::size_t workers_gone = 0;   ///< worker, agent, client: processes that served the lease
};

/// In one line, for people.
std::string kill_text(const KillFigures& kill);

struct TakenLease {
  std::unique_ptr<client::Lease> lease;
  double grant_ms = 0;  ///< of the request that was granted, not of those before
};
/// Asks again and again until there are as many free.
Result<TakenLease> lease_when_free(client::PoolClient& client, const client::LeaseSpec& spec,
                                   const CancelFlag& cancel);

/// Kills the broker, starts it again a moment later on the same folder and port, and asks it for a GPU that
/// is held. Training goes on meanwhile; only the next kill waits until the broker of the last one is back.
/// `pool`, `lease`, `random` and `cancel` outlive it; not thread-safe.
class BrokerKills {
 public:
  using Tell = std::function<void(const std::string& line)>;

  BrokerKills(ProcessSet& pool, const client::Lease& lease, unsigned times, std::uint64_t steps,
              std::mt19937& random, const CancelFlag& cancel, Tell tell);

  /// Before each of `steps` is issued, counted from 0.
  Result<void> before_step(std::uint64_t step);
  void epoch_ended();
  /// After the training: waits for the last one, and until agents and lease are as before.
  /// Errors: internal, when the lease was lost or one of its devices has another holder.
  Result<void> settle();
  [[nodiscard]] const std::vector<KillFigures>& figures() const { return kills_; }

 private:
  Result<void> move_on(bool hurry);
  Result<void> come_back();
  /// What the broker says to who asks for one more GPU. Errors: internal, when it grants it.
  Result<std::string> ask_for_one_more() const;
  Result<void> wait_until_back();
  Result<void> check_holders(const client::PoolState& state) const;

  ProcessSet& pool_;
  const client::Lease& lease_;
  const CancelFlag& cancel_;
  const Tell tell_;
  std::mt19937& random_;
  std::vector<std::uint64_t> moments_;  ///< steps, ascending
  std::vector<KillFigures> kills_;
  enum class Stage : std::uint8_t { there, away, starting } stage_ = Stage::there;
  Clock::time_point killed_at_, back_from_;
};

/// Kills a worker of the lease, or an agent with all its workers. `pool` and `cancel` outlive it; not
/// thread-safe.
class HolderKill {
 public:
  HolderKill(ProcessSet& pool, Victim victim, const client::LeaseInfo& lease, std::uint64_t steps,
             std::mt19937& random, const CancelFlag& cancel);

  Result<void> before_step(std::uint64_t step);
  /// The training ended with `error`.
  void heard(const Error& error);
  /// Brings the agent back, where it was the agent.
  Result<void> repair();
  /// After the same GPUs were leased again: waits until no process of the old lease is left.
  Result<void> freed();
  [[nodiscard]] bool done() const { return killed_at_.has_value(); }
  [[nodiscard]] const KillFigures& figures() const { return figures_; }

 private:
  ProcessSet& pool_;
  const CancelFlag& cancel_;
  const Victim victim_;
  std::vector<std::string> agents_;  ///< of the lease
  std::string agent_;                ///< that is hit
  std::uint64_t moment_;
  std::vector<pid_t> workers_;
  std::optional<Clock::time_point> killed_at_;
  KillFigures figures_;
};

struct ReclaimedLease {
  KillFigures figures;
  TakenLease taken;
};
/// Starts a client that trains on all GPUs, kills it, and leases them once they are reclaimed.
Result<ReclaimedLease> kill_a_client(ProcessSet& pool, client::PoolClient& client,
                                     const client::LeaseSpec& spec, const std::string& data,
                                     std::mt19937& random, const CancelFlag& cancel);

}  // namespace cenote::pool::cli
