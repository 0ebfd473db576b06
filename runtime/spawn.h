// Starting a program, by posix_spawn: nothing of ours runs in the child before exec, for this process may
// have any threads.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "runtime/result.h"

namespace cenote {

inline constexpr int spawn_inherit = -1;   ///< the child has this process's
inline constexpr int spawn_null = -2;      ///< the child has /dev/null
inline constexpr int spawn_passed_fd = 3;  ///< where the child finds SpawnOptions::pass

struct SpawnOptions {
  std::string program;                                    ///< a path
  bool in_path = false;                                   ///< a name without '/' is looked up in PATH
  std::vector<std::string> words;                         ///< its arguments, its own name first
  std::optional<std::vector<std::string>> environment{};  ///< "NAME=value"; none = this process's
  int output = spawn_inherit;
  int error = spawn_inherit;
  int pass = spawn_inherit;  ///< a descriptor of this process, for spawn_passed_fd; spawn_inherit = none
  bool own_group = true;     ///< a Ctrl-C at the terminal does not reach it, and its input is /dev/null
  bool own_session = false;  ///< with own_group: it has no terminal at all
};

/// Starts it and returns its number; the caller reaps it. The child has the descriptors named above and no
/// others, no blocked signals, and for each signal its default action. Descriptors are moved in the order
/// output, error, pass: one that stands where an earlier one goes must not be named. Errors: system_error
/// (`native` ENOENT: no such program).
Result<pid_t> spawn(const SpawnOptions& options);

/// The environment of this process, each variable as "NAME=value": what to hand on all or some of.
std::vector<std::string> own_environment();

}  // namespace cenote
