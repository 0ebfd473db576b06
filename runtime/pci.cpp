#include "runtime/pci.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

namespace cenote {
namespace {

constexpr std::string_view bus = "/sys/bus/pci/devices/";
constexpr std::uint32_t host_bridge_mark = 1U << 31U;

bool is_bus_id(std::string_view text) {
  return text.size() >= 12 && text[4] == ':' && text[7] == ':' && text[10] == '.';
}

std::uint32_t hexadecimal(std::string_view text) {
  std::uint32_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

/// A number for a part of a path, the same for the same part of one machine.
std::uint32_t number_of(const std::string& above) {
  if (above.starts_with("pci")) {
    const auto colon = above.find(':');
    const auto domain =
        hexadecimal(std::string_view(above).substr(3, colon == std::string::npos ? 0 : colon - 3));
    return host_bridge_mark | domain << 8U | hexadecimal(std::string_view(above).substr(colon + 1));
  }
  const std::string_view id = above;
  return hexadecimal(id.substr(0, 4)) << 16U | hexadecimal(id.substr(5, 2)) << 8U |
         hexadecimal(id.substr(8, 2)) << 3U | hexadecimal(id.substr(11, 1));
}

/// "/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/infiniband/mlx5_0": the device is the last bus id.
std::optional<PciDevice> parse(const MachineFiles& files, const std::string& path) {
  PciDevice device;
  std::vector<std::string> parts;
  std::size_t end_of_device = 0;
  for (std::size_t at = 0; at < path.size();) {
    const auto end = std::min(path.find('/', at), path.size());
    const auto part = path.substr(at, end - at);
    const bool host_bridge = part.starts_with("pci") && part.find(':') != std::string::npos;
    if (host_bridge || is_bus_id(part)) parts.push_back(part);
    if (is_bus_id(part)) end_of_device = end;
    at = end + 1;
  }
  if (end_of_device == 0) return std::nullopt;
  const auto folder = path.substr(0, end_of_device);
  device.bus_id = parts.back();
  parts.pop_back();
  device.above = std::move(parts);
  device.device_class = static_cast<std::uint32_t>(files.number(folder + "/class").value_or(0));
  device.vendor = static_cast<std::uint16_t>(files.number(folder + "/vendor").value_or(0));
  device.device = static_cast<std::uint16_t>(files.number(folder + "/device").value_or(0));
  device.numa = static_cast<int>(files.number(folder + "/numa_node").value_or(-1));
  return device;
}

/// "0-3,8" without end: a list of ranges.
std::set<int> members_of(std::string_view list) {
  std::set<int> out;
  for (std::size_t at = 0; at < list.size();) {
    const auto end = std::min(list.find(',', at), list.size());
    const auto part = list.substr(at, end - at);
    int first = 0, last = 0;
    const auto [dash, error] = std::from_chars(part.data(), part.data() + part.size(), first);
    last = first;
    if (error == std::errc{} && dash != part.data() + part.size() && *dash == '-')
      std::from_chars(dash + 1, part.data() + part.size(), last);
    if (error == std::errc{} && last - first < 1 << 16)
      for (int i = first; i <= last; ++i) out.insert(i);
    at = end + 1;
  }
  return out;
}

std::vector<int> node_numbers(const MachineFiles& files) {
  std::vector<int> out;
  for (const auto& name : files.names("/sys/devices/system/node")) {
    int number = -1;
    if (!name.starts_with("node")) continue;
    const auto [end, error] = std::from_chars(name.data() + 4, name.data() + name.size(), number);
    if (error == std::errc{} && end == name.data() + name.size()) out.push_back(number);
  }
  std::ranges::sort(out);
  return out;
}

TopologyDevice placed(const std::optional<PciDevice>& pci, DeviceKind kind, std::string name) {
  TopologyDevice out;
  out.kind = kind;
  out.name = std::move(name);
  if (!pci) return out;
  out.bus_id = pci->bus_id;
  out.vendor = pci->vendor;
  out.model = fmt::format("{:04x}:{:04x}", pci->vendor, pci->device);
  out.numa = pci->numa;
  for (const auto& above : pci->above) out.path.push_back(number_of(above));
  return out;
}

}  // namespace

std::vector<PciDevice> pci_devices(const MachineFiles& files) {
  std::vector<PciDevice> out;
  for (const auto& name : files.names(bus.substr(0, bus.size() - 1)))
    if (auto device = pci_device_at(files, std::string(bus) + name)) out.push_back(std::move(*device));
  return out;
}

std::optional<PciDevice> pci_device_at(const MachineFiles& files, std::string_view path) {
  return parse(files, files.real(path));
}

Topology topology_of(const MachineFiles& files) {
  Topology topology;
  for (const int number : node_numbers(files))
    topology.numa_nodes.push_back(
        {static_cast<std::uint32_t>(number), 0,
         files.text(fmt::format("/sys/devices/system/node/node{}/cpulist", number)).value_or(""), 0});
  for (const auto& device : pci_devices(files))
    if (device.is_gpu()) topology.devices.push_back(placed(device, DeviceKind::gpu, device.bus_id));
  for (const auto& name : files.names("/sys/class/infiniband"))
    topology.devices.push_back(
        placed(pci_device_at(files, "/sys/class/infiniband/" + name), DeviceKind::rdma, name));
  return topology;
}

std::optional<int> node_of_processors(const MachineFiles& files, std::string_view processors) {
  const auto nodes = node_numbers(files);
  const auto allowed = members_of(processors);
  if (nodes.size() < 2 || allowed.empty()) return std::nullopt;
  for (const int node : nodes) {
    const auto of_node =
        members_of(files.text(fmt::format("/sys/devices/system/node/node{}/cpulist", node)).value_or(""));
    if (std::ranges::includes(of_node, allowed)) return node;
  }
  return std::nullopt;
}

}  // namespace cenote
