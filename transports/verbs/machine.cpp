#include "transports/verbs/machine.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

namespace cenote::transport::verbs {
namespace {

constexpr std::string_view infiniband = "/sys/class/infiniband/";
constexpr std::string_view pci = "/sys/bus/pci/devices/";

std::string join(std::initializer_list<std::string_view> parts) {
  std::string out;
  for (const auto part : parts) out += part;
  return out;
}

/// "Max locked memory         65536                65536                bytes": the first number.
std::optional<std::uint64_t> memory_lock(const std::string& limits) {
  constexpr std::string_view title = "Max locked memory";
  auto at = limits.find(title);
  if (at == std::string::npos) return std::nullopt;
  at = limits.find_first_not_of(' ', at + title.size());
  if (at == std::string::npos) return std::nullopt;
  const std::string_view rest = std::string_view(limits).substr(at);
  if (rest.starts_with("unlimited")) return ~std::uint64_t{0};
  std::uint64_t bytes = 0;
  if (std::from_chars(rest.data(), rest.data() + rest.size(), bytes).ec != std::errc{}) return std::nullopt;
  return bytes;
}

/// The kernel heeds CAP_IPC_LOCK only where the first user namespace gave it.
bool may_lock(const MachineFiles& files) {
  constexpr unsigned ipc_lock = 14;
  const auto status = files.text("/proc/self/status").value_or("");
  const auto at = status.find("CapEff:");
  if (at == std::string::npos) return false;
  const auto begin = status.find_first_not_of(" \t", at + 7);
  std::uint64_t mask = 0;
  if (begin == std::string::npos ||
      std::from_chars(status.data() + begin, status.data() + status.size(), mask, 16).ec != std::errc{})
    return false;
  const auto map = files.text("/proc/self/uid_map").value_or("");
  const auto last = map.rfind(' ');
  return (mask >> ipc_lock & 1U) != 0 && last != std::string::npos && map.substr(last + 1) == "4294967295";
}

void read_modules(const MachineFiles& files, MachineRecord& machine) {
  const auto folder = "/lib/modules/" + machine.kernel;
  const auto list = files.text(folder + "/modules.dep").value_or("");
  const auto built_in = files.text(folder + "/modules.builtin").value_or("");
  machine.module_list = !list.empty() || !built_in.empty();
  for (const std::string name : rdma_modules) {
    const bool in_kernel = built_in.find("/" + name + ".ko") != std::string::npos;
    if (files.exists("/sys/module/" + name) || in_kernel) machine.modules.insert(name);
    if (in_kernel || list.find("/" + name + ".ko") != std::string::npos) machine.loadable.insert(name);
  }
}

/// "4: ACTIVE"
std::string after_colon(const std::optional<std::string>& text) {
  if (!text) return {};
  const auto at = text->find(": ");
  return at == std::string::npos ? *text : text->substr(at + 2);
}

/// "100 Gb/sec (4X EDR)", "2.5 Gb/sec (1X SDR)"
std::uint32_t speed_of(const std::string& rate) {
  double gigabits = 0;
  const auto [end, error] = std::from_chars(rate.data(), rate.data() + rate.size(), gigabits);
  const bool known = error == std::errc{} && gigabits > 0 && gigabits < 1e6;
  return known ? static_cast<std::uint32_t>(std::lround(gigabits * 1000)) : 0;
}

std::vector<Gid> gids_of(const MachineFiles& files, const std::string& port, LinkLayer layer) {
  std::vector<Gid> out;
  for (const auto& name : files.names(port + "/gids")) {
    unsigned index = 0;
    Gid gid;
    const auto text = files.text(join({port, "/gids/", name}));
    if (std::from_chars(name.data(), name.data() + name.size(), index).ec != std::errc{} || index > 255)
      continue;
    if (!text || ::inet_pton(AF_INET6, text->c_str(), gid.raw.data()) != 1) continue;
    if (std::ranges::all_of(gid.raw, [](std::uint8_t byte) { return byte == 0; })) continue;
    const auto type = files.text(join({port, "/gid_attrs/types/", name})).value_or("");
    gid.index = static_cast<std::uint8_t>(index);
    gid.type = layer == LinkLayer::infiniband ? GidType::infiniband
               : type == "RoCE v2"            ? GidType::roce_v2
                                              : GidType::roce_v1;
    out.push_back(gid);
  }
  std::ranges::sort(out, {}, &Gid::index);
  return out;
}

PortRecord read_port(const MachineFiles& files, const std::string& device, const std::string& number) {
  const auto folder = join({infiniband, device, "/ports/", number});
  PortRecord port;
  port.name = join({device, ":", number});
  port.state = after_colon(files.text(folder + "/state"));
  port.physical_state = after_colon(files.text(folder + "/phys_state"));
  port.link_layer =
      files.text(folder + "/link_layer") == "Ethernet" ? LinkLayer::ethernet : LinkLayer::infiniband;
  port.mbps = speed_of(files.text(folder + "/rate").value_or(""));
  port.gids = gids_of(files, folder, port.link_layer);
  unsigned value = 0;
  std::from_chars(number.data(), number.data() + number.size(), value);
  port.interface =
      network_interface(files, interface_of_port(files, device, static_cast<std::uint8_t>(value)));
  return port;
}

std::string node_of(const MachineFiles& files, const std::string& device) {
  for (const auto& name : files.names("/sys/class/infiniband_verbs"))
    if (files.text(join({"/sys/class/infiniband_verbs/", name, "/ibdev"})) == device) return name;
  return {};
}

DeviceRecord read_device(const MachineFiles& files, const std::string& name) {
  DeviceRecord device;
  device.name = name;
  device.pci = pci_device_at(files, join({infiniband, name}));
  device.node = node_of(files, name);
  device.node_there = !device.node.empty() && files.exists("/dev/infiniband/" + device.node);
  for (const auto& number : files.names(join({infiniband, name, "/ports"})))
    device.ports.push_back(read_port(files, name, number));
  return device;
}

/// The module that makes an RDMA device of a card with this driver.
std::string module_for(const std::string& driver, const PciDevice& card) {
  constexpr std::pair<std::string_view, std::string_view> known[] = {
      {"mlx5_core", "mlx5_ib"}, {"mlx4_core", "mlx4_ib"}, {"ice", "irdma"},     {"i40e", "irdma"},
      {"bnxt_en", "bnxt_re"},   {"qede", "qedr"},         {"cxgb4", "iw_cxgb4"}};
  for (const auto& [with, module] : known)
    if (driver == with) return std::string(module);
  constexpr std::uint16_t mellanox = 0x15b3;
  return driver.empty() && card.vendor == mellanox ? "mlx5_core" : "";
}

void read_idle_cards(const MachineFiles& files, const std::vector<PciDevice>& all, MachineRecord& machine) {
  for (const auto& card : all) {
    if (!card.is_network()) continue;
    const bool used = std::ranges::any_of(machine.devices, [&](const DeviceRecord& device) {
      return device.pci && device.pci->bus_id == card.bus_id;
    });
    const auto driver = files.link(join({pci, card.bus_id, "/driver"}));
    auto module = module_for(driver, card);
    if (!used && !module.empty()) machine.idle.push_back({card, driver, std::move(module)});
  }
}

std::uint32_t word_at(const std::string& bytes, std::size_t at) {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < 4 && at + i < bytes.size(); ++i)
    word |= std::uint32_t{static_cast<std::uint8_t>(bytes[at + i])} << (8 * i);
  return word;
}

/// Access Control Services (PCIe 5.0, 7.7.8): an extended capability, which only root is shown.
AcsState acs_of(const MachineFiles& files, const std::string& bridge) {
  constexpr std::size_t extended = 0x100;
  constexpr std::uint32_t acs = 0x000d;
  AcsState state;
  const auto bytes = files.bytes(join({pci, bridge, "/config"})).value_or("");
  if (bytes.size() <= extended) return state;
  state.readable = true;
  std::size_t at = extended;
  for (int hops = 0; hops < 64 && at >= extended && at + 8 <= bytes.size(); ++hops) {
    const auto head = word_at(bytes, at);
    if ((head & 0xffffU) == acs) {
      state.present = true;
      state.control = static_cast<std::uint16_t>(word_at(bytes, at + 4) >> 16U);
      break;
    }
    at = head >> 20U;
  }
  return state;
}

void read_road(const MachineFiles& files, const PciDevice& device, MachineRecord& machine) {
  for (const auto& above : device.above)
    if (!above.starts_with("pci")) machine.bridges.emplace(above, acs_of(files, above));
  const auto group = files.link(join({pci, device.bus_id, "/iommu_group"}));
  if (group.empty()) return;
  machine.translation[device.bus_id] =
      files.text(join({"/sys/kernel/iommu_groups/", group, "/type"})).value_or("of an unknown type");
}

}  // namespace

NetworkInterface network_interface(const MachineFiles& files, const std::string& name) {
  NetworkInterface out;
  if (name.empty()) return out;
  const auto folder = "/sys/class/net/" + name;
  out.name = name;
  out.mtu = static_cast<std::uint32_t>(files.number(folder + "/mtu").value_or(0));
  out.state = files.text(folder + "/operstate").value_or("");
  if (const auto master = files.link(folder + "/master");
      !master.empty() && files.exists(join({"/sys/class/net/", master, "/bonding"})))
    out.bond = master;
  const auto members = files.text(folder + "/bonding/slaves").value_or("");
  if (!members.empty())
    out.members =
        static_cast<std::uint8_t>(std::clamp<std::ptrdiff_t>(std::ranges::count(members, ' ') + 1, 1, 8));
  return out;
}

std::string interface_of_port(const MachineFiles& files, const std::string& device, std::uint8_t port) {
  const auto folder = join({infiniband, device, "/ports/", std::to_string(port), "/gid_attrs/ndevs"});
  for (const auto& index : files.names(folder))
    if (auto name = files.text(join({folder, "/", index})); name && !name->empty()) return *name;
  return {};
}

MachineRecord read_machine(const MachineFiles& files) {
  MachineRecord machine;
  machine.kernel = files.text("/proc/sys/kernel/osrelease").value_or("");
  machine.memory_lock = memory_lock(files.text("/proc/self/limits").value_or(""));
  machine.may_lock = may_lock(files);
  read_modules(files, machine);
  for (const auto& name : files.names("/sys/class/infiniband"))
    machine.devices.push_back(read_device(files, name));
  const auto all = pci_devices(files);
  std::ranges::copy_if(all, std::back_inserter(machine.gpus), &PciDevice::is_gpu);
  read_idle_cards(files, all, machine);
  machine.iommu = !files.names("/sys/class/iommu").empty();
  for (const auto& gpu : machine.gpus) read_road(files, gpu, machine);
  for (const auto& device : machine.devices)
    if (device.pci) read_road(files, *device.pci, machine);
  machine.topology = topology_of(files);
  return machine;
}

}  // namespace cenote::transport::verbs
