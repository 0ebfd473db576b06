// What can be asked of a topology. How one is read: topology_hwloc.cpp.
#include "runtime/topology.h"

#include <fmt/format.h>

#include <algorithm>

namespace cenote {

Distance distance(const TopologyDevice& a, const TopologyDevice& b) {
  if (&a == &b || (!a.bus_id.empty() && a.bus_id == b.bus_id)) return Distance::same_device;
  const auto [end_a, end_b] = std::ranges::mismatch(a.path, b.path);
  const auto common = end_a - a.path.begin();
  if (common == 0) return a.numa == b.numa ? Distance::same_numa : Distance::cross_numa;
  if (common == 1) return Distance::same_host_bridge;
  // Each port of a switch is a bridge of its own: one more below the common one is still the same switch.
  const auto deepest = std::max(a.path.end() - end_a, b.path.end() - end_b);
  return deepest <= 1 ? Distance::same_switch : Distance::several_switches;
}

std::string_view to_string(Distance distance) {
  switch (distance) {
    case Distance::same_device:
      return "same device";
    case Distance::same_switch:
      return "same switch";
    case Distance::several_switches:
      return "several switches";
    case Distance::same_host_bridge:
      return "same host bridge";
    case Distance::same_numa:
      return "same NUMA node";
    case Distance::cross_numa:
      return "across NUMA nodes";
  }
  return "unknown distance";
}

std::string_view to_string(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::gpu:
      return "gpu";
    case DeviceKind::network:
      return "network";
    case DeviceKind::rdma:
      return "rdma";
  }
  return "unknown kind";
}

const TopologyDevice* Topology::find(std::string_view name_or_bus_id) const {
  const auto at = std::ranges::find_if(devices, [&](const TopologyDevice& d) {
    return d.name == name_or_bus_id || d.bus_id == name_or_bus_id;
  });
  return at == devices.end() ? nullptr : &*at;
}

namespace {

std::string_view short_name(Distance distance) {
  constexpr std::string_view names[] = {"X", "PIX", "PXB", "PHB", "NODE", "SYS"};
  return names[static_cast<std::size_t>(distance)];
}

std::string matrix(const std::vector<TopologyDevice>& devices) {
  std::size_t width = 5;
  for (const auto& device : devices) width = std::max(width, device.name.size());
  std::string text = fmt::format("{:<{}}", "", width);
  for (const auto& column : devices) text += fmt::format(" {:>{}}", column.name, width);
  text += '\n';
  for (const auto& row : devices) {
    text += fmt::format("{:<{}}", row.name, width);
    for (const auto& column : devices)
      text += fmt::format(" {:>{}}", short_name(distance(row, column)), width);
    text += '\n';
  }
  return text;
}

}  // namespace

std::string Topology::text() const {
  auto text = fmt::format("{} packages, {} cores, {} processors, {} NUMA nodes\n", packages, cores,
                          processors, numa_nodes.size());
  for (const auto& node : numa_nodes)
    text += fmt::format("numa {}  package {}  {:.1f} GiB  cpus {}\n", node.index, node.package,
                        static_cast<double>(node.memory) / (1ULL << 30U), node.cpus);
  if (devices.empty()) return text + "no GPU and no network card on PCI\n";
  for (const auto& device : devices)
    text += fmt::format("{:<8} {:<14} {:<13} numa {:<3} {}\n", to_string(device.kind), device.name,
                        device.bus_id, device.numa < 0 ? "-" : std::to_string(device.numa), device.model);
  return text + matrix(devices) +
         "X same device, PIX same switch, PXB several switches, PHB same host bridge, NODE same NUMA node, "
         "SYS across NUMA nodes\n";
}

}  // namespace cenote
