// Preflight: what of a machine stands in the way of RDMA, or slows it down, and what to do about it. A pure
// function of the machine's record. What can be used as it is, is said too, so that nothing found and nothing
// looked at are not the same.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transports/verbs/machine.h"

namespace cenote::transport::verbs {

enum class Verdict : std::uint8_t {
  ok,
  warning,  ///< works, slower or not for everything
  problem,  ///< does not work
  unknown,  ///< could not be looked at
};

struct Finding {
  std::string subject;  ///< "locked memory", "mlx5_0:1 GIDs"
  Verdict verdict{};
  std::string seen;
  std::string remedy;  ///< empty: nothing needs to be done
};

/// In the order of the way up: limits, library, modules, devices, ports, network, PCI, GPUs.
std::vector<Finding> preflight(const MachineRecord& machine);

std::string_view to_string(Verdict verdict);

}  // namespace cenote::transport::verbs
