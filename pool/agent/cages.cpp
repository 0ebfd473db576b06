#include "pool/agent/cages.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <utility>

namespace cenote::pool::agent {
namespace {

/// 0, or the number of the error.
int lock_user(int fd, std::uint32_t user) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const auto name = fmt::format("cenote-user-{}", user);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return ::bind(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0 ? 0 : errno;
}

void refuse(std::vector<CageRung>& rungs, std::string_view name, const Error& error) {
  for (auto& rung : rungs)
    if (rung.name == name) rung = {name, false, error.message(), error.remedy};
}

}  // namespace

Cages Cages::create(CagePlan plan) {
  Cages cages;
  cages.plan_ = std::move(plan);
  auto& made = cages.plan_;
  if (made.first_user != 0)
    cages.next_user_ =
        made.first_user + static_cast<std::uint32_t>(::getpid()) % (made.last_user - made.first_user + 1);
  if (!made.limit_memory && !made.limit_threads) return cages;
  if (const auto prepared = prepare_groups(made.room); !prepared) {
    if (std::exchange(made.limit_memory, false)) refuse(made.rungs, "memory", prepared.error());
    if (std::exchange(made.limit_threads, false)) refuse(made.rungs, "threads", prepared.error());
  }
  return cages;
}

Result<void> Cages::take_user(HeldCage& held) {
  const auto count = plan_.last_user - plan_.first_user + 1;
  UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return fail(system_error("make the lock of a worker's user", errno));
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto user =
        std::exchange(next_user_, next_user_ == plan_.last_user ? plan_.first_user : next_user_ + 1);
    const int error = lock_user(fd.get(), user);
    if (error == EADDRINUSE) continue;
    if (error != 0) return fail(system_error(fmt::format("lock user {} for a worker", user), error));
    held.cage.user = user;
    held.user_lock = std::move(fd);
    return {};
  }
  return fail(Error{ErrorCode::resource_exhausted, "find a user for a worker",
                    fmt::format("workers have all of {}-{}", plan_.first_user, plan_.last_user)}
                  .fix("widen agent.cage.users"));
}

Result<HeldCage> Cages::make(const WorkerSetup& setup) {
  HeldCage held;
  held.cage.groups = plan_.groups;
  held.cage.filtered = plan_.filtered;
  held.cage.dumpable = plan_.dumpable;
  if (plan_.threads_by_user) held.cage.threads = plan_.threads;
  if (plan_.first_user != 0) CENOTE_TRY(take_user(held));
  if (!plan_.limit_memory && !plan_.limit_threads) return held;
  WorkerGroup::Limits limits;
  if (plan_.limit_memory) {
    limits.memory =
        plan_.memory != 0 ? plan_.memory : kMemoryPerGpu * std::max<std::size_t>(setup.devices.size(), 1);
    if (!setup.driver.emulated.empty())
      limits.memory = std::accumulate(setup.memory_limits.begin(), setup.memory_limits.end(), limits.memory);
  }
  if (plan_.limit_threads) limits.threads = plan_.threads;
  CENOTE_ASSIGN(held.group, WorkerGroup::create(plan_.room.folder, ++made_, limits));
  held.cage.cgroup = held.group.folder();
  return held;
}

}  // namespace cenote::pool::agent
