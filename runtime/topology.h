// Topology: the NUMA nodes, GPUs and network cards of one machine and how far apart they are. A value: taken
// from this machine or from an hwloc XML file that was recorded on another, it no longer depends on either.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/result.h"

namespace cenote {

enum class DeviceKind : std::uint8_t {
  gpu,      ///< PCI class 03: display or 3D controller
  network,  ///< eth0, ib0
  rdma,     ///< mlx5_0: what verbs opens
};

/// How far two devices are apart, nearest first. In brackets: the word of nvidia-smi's matrix.
enum class Distance : std::uint8_t {
  same_device,       ///< one PCI function [X]
  same_switch,       ///< below one PCIe bridge or switch [PIX]
  several_switches,  ///< a chain of switches, below one root port [PXB]
  same_host_bridge,  ///< through the host bridge [PHB]
  same_numa,         ///< between host bridges of one NUMA node [NODE]
  cross_numa,        ///< between NUMA nodes [SYS]
};

struct NumaNode {
  std::uint32_t index;    ///< as the system counts
  std::uint64_t memory;   ///< bytes
  std::string cpus;       ///< "0-15,32-47"
  std::uint32_t package;  ///< of its processors
};

struct TopologyDevice {
  DeviceKind kind = DeviceKind::gpu;
  std::string name;    ///< "cuda0", "mlx5_0", "eth0"; the PCI bus id where the system has no name for it
  std::string bus_id;  ///< "0000:17:00.0"; empty for a device that is not on PCI
  std::string model;   ///< "NVIDIA Corporation GH100", or "10de:2335"
  std::uint16_t vendor = 0;
  int numa = -1;  ///< index of its NUMA node; -1 = the whole machine's
  std::vector<std::uint32_t>
      path;  ///< the bridges above it, host bridge first; numbers mean something only here
};

class Topology {
 public:
  static Result<Topology> of_this_machine();
  /// Errors: not_found (file), invalid_argument (not hwloc's XML, with the reason).
  static Result<Topology> from_xml_file(const std::string& path);
  static Result<Topology> from_xml(std::string_view xml);

  std::uint32_t packages = 0;
  std::uint32_t cores = 0;
  std::uint32_t processors = 0;  ///< hardware threads
  std::vector<NumaNode> numa_nodes;
  std::vector<TopologyDevice> devices;  ///< GPUs, then network, then RDMA; each by bus id

  /// nullptr when there is none of that name or bus id.
  [[nodiscard]] const TopologyDevice* find(std::string_view name_or_bus_id) const;
  /// Machine, devices and their distances, for people.
  [[nodiscard]] std::string text() const;
};

/// Both of one topology.
Distance distance(const TopologyDevice& a, const TopologyDevice& b);
std::string_view to_string(Distance distance);
std::string_view to_string(DeviceKind kind);

}  // namespace cenote
