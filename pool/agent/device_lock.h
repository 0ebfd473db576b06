// DeviceLocks: no two agents of one machine serve the same GPU.
#pragma once

#include <string>
#include <vector>

#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace cenote::pool::agent {

/// Holds one lock for each device uuid, until destroyed or until the process is gone, however it ends: an
/// abstract unix socket bound to the uuid. It excludes agents of one network namespace; agents in containers
/// with networks of their own are told apart by their administrator.
class DeviceLocks {
 public:
  /// All or none. Errors: already_exists, naming the device.
  static Result<DeviceLocks> take(const std::vector<std::string>& uuids);

 private:
  std::vector<UniqueFd> held_;
};

}  // namespace cenote::pool::agent
