// Where the GPUs of a lease are, in the words of the setting verbs.near: their data is to leave by the
// network cards beside them.
#pragma once

#include <span>
#include <string>

#include "cuda/driver.h"
#include "runtime/machine_files.h"

namespace cenote::pool::agent {

/// One GPU: its PCI bus id. Several of one NUMA node, where there are several nodes: that node. Empty: they
/// are apart, or the machine does not know them as GPUs on PCI (emulated ones).
std::string near_devices(cuda::Driver& driver, std::span<const cuda::DeviceId> devices,
                         const MachineFiles& files = MachineFiles());

}  // namespace cenote::pool::agent
