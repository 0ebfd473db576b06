// What cage this machine allows the workers of an agent: a ladder with reasons, from the settings
// agent.cage.* and from what the machine says. `cenote doctor` prints it, the agent logs it and holds its
// workers to it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pool/agent/worker_groups.h"
#include "runtime/machine_files.h"
#include "runtime/result.h"
#include "runtime/settings.h"

namespace cenote::pool::agent {

// Built with a sanitizer, which needs calls that a cage refuses.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

struct CageOptions {
  std::string users = "1900000000-1900065535";  ///< FIRST-LAST; "" = none of their own
  bool filter = true;
  std::string cgroup{};  ///< "" = the agent's
  std::uint64_t memory =
      0;  ///< of each worker, without that of emulated cards; 0 = kMemoryPerGpu for each GPU
  std::uint64_t threads = 4096;
  std::vector<std::string> require{};  ///< rungs without which an agent does not start
  bool over_ucx = false;               ///< the workers may use UCX
};
inline constexpr std::uint64_t kMemoryPerGpu = std::uint64_t{4} << 30U;

CageOptions cage_options(const Settings& settings);

struct CageRung {
  std::string_view name;  ///< user, system-calls, memory, threads, core-dumps, credentials
  bool taken = false;
  std::string reason;
  std::string remedy{};
};

/// Of one agent; what is not taken is 0, false or empty.
struct CagePlan {
  std::vector<CageRung> rungs;
  std::uint32_t first_user = 0, last_user = 0;
  std::vector<std::uint32_t> groups{};
  bool filtered = false;
  bool dumpable = true;
  GroupRoom room{};
  bool limit_memory = false, limit_threads = false;
  std::uint64_t memory = 0, threads = 0;  ///< as the settings say
  bool threads_by_user = false;           ///< RLIMIT_NPROC, for want of a cgroup
};

/// Of an agent that runs as this process does. Changes nothing. Errors: invalid_argument (agent.cage.users).
Result<CagePlan> plan_cage(const CageOptions& options, const MachineFiles& files = MachineFiles());

/// Errors: failed by the first rung of `required` that is not taken (permission_denied), with its reason.
Result<void> check_required(const std::vector<CageRung>& rungs, const std::vector<std::string>& required);

}  // namespace cenote::pool::agent
