// cgroups (version 2) for workers: where an agent may make them, and one for each worker, with its limits.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/machine_files.h"
#include "runtime/result.h"

namespace cenote::pool::agent {

/// A folder of cgroup v2 whose groups can limit memory and threads. What keeps either from it, it says.
struct GroupRoom {
  std::string folder;                     ///< "" = there is none
  bool enable = false;                    ///< its controllers have to be handed down first
  std::string no_memory{}, no_threads{};  ///< why not; "" = it can
};

/// `named`: the setting agent.cage.cgroup; "" = the cgroup of this process. Changes nothing.
GroupRoom find_group_room(const MachineFiles& files, const std::string& named);

/// Hands the controllers of `room` down to the groups made in it (where this process alone is in it, it moves
/// into a group "agent" of its own first, as version 2 wants it) and removes what agents left behind that are
/// gone, with what still runs there. Errors: system_error.
Result<void> prepare_groups(const GroupRoom& room);

/// One worker's group, removed with its scope, after the worker was reaped. Movable.
class WorkerGroup {
 public:
  struct Limits {
    std::uint64_t memory = 0;  ///< bytes; 0 = none
    std::uint64_t threads = 0;
  };
  WorkerGroup() = default;
  /// `number`: no other of this process has it. Errors: system_error, naming the file.
  static Result<WorkerGroup> create(const std::string& folder, std::uint64_t number, const Limits& limits);
  WorkerGroup(WorkerGroup&& other) noexcept;
  WorkerGroup& operator=(WorkerGroup&& other) noexcept;
  ~WorkerGroup();

  [[nodiscard]] const std::string& folder() const { return folder_; }

 private:
  explicit WorkerGroup(std::string folder) : folder_(std::move(folder)) {}
  std::string folder_;
};

}  // namespace cenote::pool::agent
