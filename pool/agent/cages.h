// Cages: by an agent's plan, a cage for each of its workers: a user that no other worker of this machine has,
// and a cgroup with the limits.
#pragma once

#include <cstdint>

#include "pool/agent/cage.h"
#include "pool/agent/cage_plan.h"
#include "pool/agent/worker_groups.h"
#include "pool/agent/worker_host.h"
#include "runtime/unique_fd.h"

namespace cenote::pool::agent {

/// Lives as long as the worker, and until it is reaped: then its user is free and its cgroup removed.
struct HeldCage {
  Cage cage{};
  UniqueFd user_lock{};  ///< an abstract unix socket: gone with the agent, however that ends
  WorkerGroup group{};
};

/// Not thread-safe.
class Cages {
 public:
  Cages() = default;  ///< of a plan that takes nothing
  /// Prepares the cgroups; when that fails, the rungs that need them are refused with the reason.
  static Cages create(CagePlan plan);

  [[nodiscard]] const std::vector<CageRung>& rungs() const { return plan_.rungs; }
  /// Errors: resource_exhausted (every user of the range is taken), system_error (no cgroup).
  Result<HeldCage> make(const WorkerSetup& setup);

 private:
  Result<void> take_user(HeldCage& held);
  CagePlan plan_{};
  std::uint32_t next_user_ = 0;
  std::uint64_t made_ = 0;
};

}  // namespace cenote::pool::agent
