// The parts of the preflight: each adds its findings.
#pragma once

#include "transports/verbs/preflight.h"

namespace cenote::transport::verbs {

using Findings = std::vector<Finding>;

// preflight.cpp
void check_locked_memory(const MachineRecord& machine, Findings& out);
void check_library(const MachineRecord& machine, Findings& out);
void check_devices(const MachineRecord& machine, Findings& out);
void check_modules(const MachineRecord& machine, Findings& out);
// preflight_ports.cpp
void check_ports(const MachineRecord& machine, Findings& out);
void check_mtu_between_ports(const MachineRecord& machine, Findings& out);
// preflight_pci.cpp
void check_iommu(const MachineRecord& machine, Findings& out);
void check_acs(const MachineRecord& machine, Findings& out);
void check_distances(const MachineRecord& machine, Findings& out);

}  // namespace cenote::transport::verbs
