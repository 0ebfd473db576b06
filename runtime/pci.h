// The PCI devices of a machine as its files tell of them: enough to say where a card is, without hwloc's look
// at the whole machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/machine_files.h"
#include "runtime/topology.h"

namespace cenote {

struct PciDevice {
  std::string bus_id;              ///< "0000:17:00.0"
  std::uint32_t device_class = 0;  ///< 0x020700: base class, sub-class, interface
  std::uint16_t vendor = 0, device = 0;
  int numa = -1;                   ///< -1: the system does not say
  std::vector<std::string> above;  ///< host bridge first: "pci0000:16", then bridges: "0000:16:01.0"

  [[nodiscard]] bool is_gpu() const { return device_class >> 16U == 0x03; }
  [[nodiscard]] bool is_network() const { return device_class >> 16U == 0x02; }
};

/// By bus id.
std::vector<PciDevice> pci_devices(const MachineFiles& files);
/// Of the device that `path` (/sys/class/net/eth0/device) leads to; none: it is not on PCI.
std::optional<PciDevice> pci_device_at(const MachineFiles& files, std::string_view path);

/// NUMA nodes; GPUs by their bus id; RDMA devices by name, also those on no PCI device.
Topology topology_of(const MachineFiles& files);

/// The node that "0-3,8" of a process's allowed processors lie in, where there are several nodes; none: in
/// more than one.
std::optional<int> node_of_processors(const MachineFiles& files, std::string_view processors);

}  // namespace cenote
