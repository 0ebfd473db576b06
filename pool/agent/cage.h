// The cage of a worker: what its process gives up before it opens a driver or hears a client, so that who
// takes it over has one lease's GPUs and no more. cage_plan.h decides what a machine can do; this does it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/result.h"

namespace cenote::pool::agent {

/// One worker's. Travels to it in its setup. Beside what is named here every cage has: no new privileges, no
/// core dump.
struct Cage {
  std::uint32_t user = 0;               ///< its user and its group; 0 = it stays who it is
  std::vector<std::uint32_t> groups{};  ///< with a user of its own: those of the device nodes
  std::string cgroup{};                 ///< folder of the cgroup that it moves into; "" = none
  std::uint64_t threads = 0;            ///< RLIMIT_NPROC; 0 = as it is
  bool filtered = false;                ///< system calls that it does not need are refused
  bool dumpable = true;                 ///< others of its user may trace it and read its memory
};

/// Puts the calling process, and all its threads, into `cage`, for good. `parent` (0 = nobody): it dies with
/// that process, also after its user has changed. Takes descriptors as they are. Errors: system_error, naming
/// the step; the process is then half caged and has to end.
Result<void> enter(const Cage& cage, pid_t parent);

/// Of an agent's environment ("NAME=value"), what a worker may have: what the loader, the C library, drivers
/// and network libraries read. Nothing of Cenote's own, and no secrets of whoever started the agent.
std::vector<std::string> caged_environment(std::vector<std::string> variables);

}  // namespace cenote::pool::agent
