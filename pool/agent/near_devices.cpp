#include "pool/agent/near_devices.h"

#include <fmt/format.h>

#include <set>

#include "runtime/pci.h"

namespace cenote::pool::agent {
namespace {

using cuda::DeviceAttribute;

std::string bus_id(cuda::Driver& driver, cuda::DeviceId device) {
  int domain = 0, bus = 0, slot = 0;
  for (const auto& [attribute, value] :
       {std::pair{DeviceAttribute::pci_domain_id, &domain}, std::pair{DeviceAttribute::pci_bus_id, &bus},
        std::pair{DeviceAttribute::pci_device_id, &slot}})
    if (driver.device_get_attribute(value, attribute, device) != cuda::Status::success) return {};
  return fmt::format("{:04x}:{:02x}:{:02x}.0", domain, bus, slot);
}

}  // namespace

std::string near_devices(cuda::Driver& driver, std::span<const cuda::DeviceId> devices,
                         const MachineFiles& files) {
  const auto topology = topology_of(files);
  std::set<int> nodes;
  std::string name;
  for (const auto device : devices) {
    const auto* found = topology.find(bus_id(driver, device));
    if (found == nullptr || found->kind != DeviceKind::gpu) return {};
    nodes.insert(found->numa);
    name = found->bus_id;
  }
  if (devices.size() == 1) return name;
  const bool one_node = nodes.size() == 1 && *nodes.begin() >= 0 && topology.numa_nodes.size() > 1;
  return one_node ? fmt::format("numa:{}", *nodes.begin()) : std::string();
}

}  // namespace cenote::pool::agent
