// Preflight of the way between cards and GPUs: IOMMU, access control of bridges, distance.
#include <fmt/format.h>

#include <algorithm>

#include "transports/verbs/preflight_parts.h"

namespace cenote::transport::verbs {
namespace {

constexpr std::uint16_t request_redirect = 0x4, completion_redirect = 0x8;

std::string list_of(const std::vector<std::string>& names) {
  std::string out;
  for (const auto& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

bool has_card(const MachineRecord& machine) {
  return std::ranges::any_of(machine.devices,
                             [](const DeviceRecord& device) { return device.pci.has_value(); });
}

/// The bridges that lie between a GPU and a card below the host bridge that both are at.
std::vector<std::string> bridges_between(const PciDevice& gpu, const PciDevice& card) {
  const auto [a, b] = std::ranges::mismatch(gpu.above, card.above);
  const auto common = static_cast<std::size_t>(a - gpu.above.begin());
  if (common < 2) return {};
  std::vector<std::string> out(a, gpu.above.end());
  out.insert(out.end(), b, card.above.end());
  return out;
}

}  // namespace

void check_iommu(const MachineRecord& machine, Findings& out) {
  if (!has_card(machine)) return;
  std::vector<std::string> translated, passed;
  for (const auto& [bus_id, type] : machine.translation)
    (type == "identity" ? passed : translated).push_back(fmt::format("{} ({})", bus_id, type));
  if (!machine.iommu && machine.translation.empty()) {
    out.push_back(
        {"IOMMU", Verdict::ok, "off, or not seen from here: addresses of cards are not translated", {}});
  } else if (translated.empty()) {
    out.push_back({"IOMMU", Verdict::ok, "on, and passes cards and GPUs through: " + list_of(passed), {}});
  } else {
    out.push_back(
        {"IOMMU", Verdict::warning,
         "translates what these do: " + list_of(translated) +
             "; it costs bandwidth, and keeps cards from GPU memory where peer-to-peer mappings fail",
         "boot with iommu=pt (and intel_iommu=on or amd_iommu=on), if isolation of these is not needed"});
  }
}

void check_acs(const MachineRecord& machine, Findings& out) {
  if (!has_card(machine) || machine.gpus.empty()) return;
  std::set<std::string> between;
  for (const PciDevice& gpu : machine.gpus)
    for (const DeviceRecord& device : machine.devices)
      if (device.pci)
        for (auto& bridge : bridges_between(gpu, *device.pci)) between.insert(std::move(bridge));
  std::vector<std::string> on, unread;
  for (const auto& name : between) {
    const auto found = machine.bridges.find(name);
    if (found == machine.bridges.end() || !found->second.readable) {
      unread.push_back(name);
    } else if ((found->second.control & (request_redirect | completion_redirect)) != 0) {
      on.push_back(name);
    }
  }
  if (between.empty()) {
    out.push_back({"PCI ACS",
                   Verdict::ok,
                   "no GPU and card share a switch: there is nothing that it could redirect",
                   {}});
  } else if (!on.empty()) {
    out.push_back(
        {"PCI ACS", Verdict::warning,
         "these ports between GPU and card send what the two say to each other up to the processor: " +
             list_of(on),
         fmt::format("turn it off in the firmware's setup, or: setpci -s {} ECAP_ACS+6.w=0 (each; virtual "
                     "machines that own one of the two need it on)",
                     on.front())});
  } else if (!unread.empty()) {
    out.push_back({"PCI ACS", Verdict::unknown,
                   "the configuration of these ports between GPU and card cannot be read: " + list_of(unread),
                   "run `cenote doctor` as root"});
  } else {
    out.push_back(
        {"PCI ACS", Verdict::ok, "no port between GPU and card redirects what they say to each other", {}});
  }
}

void check_distances(const MachineRecord& machine, Findings& out) {
  if (!has_card(machine)) return;
  for (const PciDevice& gpu : machine.gpus) {
    const auto* place = machine.topology.find(gpu.bus_id);
    if (place == nullptr) continue;
    std::optional<Distance> nearest;
    std::vector<std::string> names;
    for (const TopologyDevice& device : machine.topology.devices) {
      if (device.kind != DeviceKind::rdma || device.bus_id.empty()) continue;
      const auto far = distance(*place, device);
      if (nearest && *nearest < far) continue;
      if (!nearest || far < *nearest) names.clear();
      nearest = far;
      names.push_back(device.name);
    }
    if (!nearest) continue;
    const auto seen = fmt::format("nearest card {}: {}", list_of(names), to_string(*nearest));
    const bool below_switch = *nearest <= Distance::several_switches;
    const bool far = *nearest == Distance::cross_numa;
    out.push_back(
        {"GPU " + gpu.bus_id, below_switch ? Verdict::ok : Verdict::warning,
         below_switch ? seen
         : far        ? seen + "; every byte crosses the link between the processors"
                      : seen + "; every byte goes through the processor",
         below_switch ? ""
         : far ? "put the card into a slot of the GPU's socket, or run this GPU's work on another machine"
               : "where the board has a slot below the GPU's switch, put the card there"});
  }
}

}  // namespace cenote::transport::verbs
