#include "pool/agent/cage.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "pool/agent/system_calls.h"
#include "runtime/unique_fd.h"

namespace cenote::pool::agent {
namespace {

Result<void> done(int result, const char* step) {
  if (result == 0) return {};
  return fail(system_error(std::string("cage the worker: ") + step, errno));
}

Result<void> move_into(const std::string& cgroup) {
  const auto path = cgroup + "/cgroup.procs";
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file || ::write(file.get(), "0", 1) != 1)
    return fail(system_error("cage the worker: move it into " + path, errno));
  return {};
}

Result<void> limit(int resource, rlim_t value, const char* step) {
  const rlimit limit{value, value};
  return done(::setrlimit(static_cast<__rlimit_resource>(resource), &limit), step);
}

// What a user without privileges may lock is little; root was not bound by it, and cards need it.
void keep_locked_memory() {
  const rlimit all{RLIM_INFINITY, RLIM_INFINITY};
  if (::setrlimit(RLIMIT_MEMLOCK, &all) == 0) return;
  rlimit most{};
  if (::getrlimit(RLIMIT_MEMLOCK, &most) != 0) return;
  most.rlim_cur = most.rlim_max;
  static_cast<void>(::setrlimit(RLIMIT_MEMLOCK, &most));  // up to its own most: allowed to everybody
}

Result<void> become(const Cage& cage) {
  keep_locked_memory();
  const std::vector<gid_t> groups(cage.groups.begin(), cage.groups.end());
  CENOTE_TRY(done(::setgroups(groups.size(), groups.data()), "set its groups"));
  CENOTE_TRY(done(::setresgid(cage.user, cage.user, cage.user), "take its group"));
  return done(::setresuid(cage.user, cage.user, cage.user), "take its user");
}

Result<void> die_with(pid_t parent) {
  CENOTE_TRY(done(::prctl(PR_SET_PDEATHSIG, SIGKILL), "tie it to its agent"));
  // It may have died before the line above.
  if (::getppid() != parent) return fail(ErrorCode::peer_failed, "cage the worker", "its agent is gone");
  return {};
}

}  // namespace

Result<void> enter(const Cage& cage, pid_t parent) {
  if (!cage.cgroup.empty()) CENOTE_TRY(move_into(cage.cgroup));
  CENOTE_TRY(limit(RLIMIT_CORE, 0, "allow it no core dump"));
  if (cage.threads != 0) CENOTE_TRY(limit(RLIMIT_NPROC, cage.threads, "limit its threads"));
  if (cage.user != 0) CENOTE_TRY(become(cage));
  CENOTE_TRY(done(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "allow it no new privileges"));
  // These two after the change of user, which sets both anew.
  CENOTE_TRY(done(::prctl(PR_SET_DUMPABLE, cage.dumpable ? 1 : 0), "let nobody trace it"));
  if (parent != 0) CENOTE_TRY(die_with(parent));
  if (cage.filtered) CENOTE_TRY(filter_system_calls());
  return {};
}

std::vector<std::string> caged_environment(std::vector<std::string> variables) {
  constexpr auto exact =
      std::to_array<std::string_view>({"PATH", "HOME", "TMPDIR", "LANG", "LANGUAGE", "TZ"});
  constexpr auto families = std::to_array<std::string_view>(
      {"LC_", "LD_", "MALLOC_", "GLIBC_", "CUDA_", "NVIDIA_", "NCCL_", "UCX_", "UCS_", "IBV_", "RDMAV_",
       "MLX4_", "MLX5_", "HWLOC_", "SHARP_", "ASAN_", "UBSAN_", "LSAN_", "TSAN_"});
  std::erase_if(variables, [&](const std::string& variable) {
    const auto name = std::string_view(variable).substr(0, variable.find('='));
    return std::ranges::find(exact, name) == exact.end() &&
           std::ranges::none_of(families, [&](auto family) { return name.starts_with(family); });
  });
  return variables;
}

}  // namespace cenote::pool::agent
