// Reading a Topology through hwloc.
#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <tuple>

#include "runtime/process.h"
#include "runtime/topology.h"

namespace cenote {
namespace {

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Handle = std::unique_ptr<hwloc_topology, Destroy>;

constexpr std::string_view stage = "read the machine's topology";
// Plugins that an installed Open MPI brings: pci finds what is found without it, and leaks its table of
// names; the others start a graphics or OpenCL driver inside this process. One that is not there cannot be
// refused.
constexpr const char* unwanted[] = {"pci", "gl", "opencl"};
constexpr std::size_t most_xml = std::size_t{64} << 20U;

Result<Handle> open() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return fail(system_error(std::string(stage), errno));
  Handle handle(raw);
  // Bridges too, not only the devices: they say how far two devices are apart.
  if (hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_ALL) != 0)
    return fail(system_error(std::string(stage), errno));
  for (const char* plugin : unwanted)
    (void)hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, plugin);
  return handle;
}

const char* info(hwloc_obj_t object, const char* name) { return hwloc_obj_get_info_by_name(object, name); }

std::string bus_id(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", pci.domain, pci.bus, pci.dev, pci.func);
}

std::string model(hwloc_obj_t device) {
  const char* vendor = info(device, "PCIVendor");
  const char* name = info(device, "PCIDevice");
  if (vendor != nullptr && name != nullptr) return fmt::format("{} {}", vendor, name);
  return fmt::format("{:04x}:{:04x}", device->attr->pcidev.vendor_id, device->attr->pcidev.device_id);
}

/// A device's place: its NUMA node and the bridges above it.
void place(hwloc_obj_t object, TopologyDevice& device) {
  hwloc_obj_t above = object->parent;
  for (; above != nullptr && hwloc_obj_type_is_io(above->type) != 0; above = above->parent)
    if (above->type == HWLOC_OBJ_BRIDGE) device.path.push_back(static_cast<std::uint32_t>(above->gp_index));
  std::ranges::reverse(device.path);
  const bool one_node =
      above != nullptr && above->nodeset != nullptr && hwloc_bitmap_weight(above->nodeset) == 1;
  if (one_node) device.numa = hwloc_bitmap_first(above->nodeset);
}

/// The name a program knows a GPU by: CUDA's, else NVML's, else none.
std::string gpu_name(hwloc_obj_t pci) {
  std::string nvml;
  for (hwloc_obj_t child = pci->io_first_child; child != nullptr; child = child->next_sibling) {
    if (child->type != HWLOC_OBJ_OS_DEVICE || child->name == nullptr) continue;
    const std::string_view name(child->name);
    if (name.starts_with("cuda")) return child->name;
    if (name.starts_with("nvml")) nvml = name;
  }
  return nvml;
}

void add_network(hwloc_obj_t pci, const TopologyDevice& like, std::vector<TopologyDevice>& out) {
  bool named = false;
  for (hwloc_obj_t child = pci->io_first_child; child != nullptr; child = child->next_sibling) {
    if (child->type != HWLOC_OBJ_OS_DEVICE || child->name == nullptr) continue;
    const auto type = child->attr->osdev.type;
    if (type != HWLOC_OBJ_OSDEV_NETWORK && type != HWLOC_OBJ_OSDEV_OPENFABRICS) continue;
    auto device = like;
    device.kind = type == HWLOC_OBJ_OSDEV_NETWORK ? DeviceKind::network : DeviceKind::rdma;
    device.name = child->name;
    out.push_back(std::move(device));
    named = true;
  }
  if (!named) out.push_back(like);
}

void add_pci_devices(hwloc_topology_t topology, std::vector<TopologyDevice>& out) {
  for (hwloc_obj_t pci = nullptr; (pci = hwloc_get_next_pcidev(topology, pci)) != nullptr;) {
    const unsigned base_class = pci->attr->pcidev.class_id >> 8U;
    if (base_class != 0x02 && base_class != 0x03) continue;
    TopologyDevice device;
    device.bus_id = bus_id(pci->attr->pcidev);
    device.name = device.bus_id;
    device.vendor = pci->attr->pcidev.vendor_id;
    device.model = model(pci);
    place(pci, device);
    if (base_class == 0x03) {
      if (auto name = gpu_name(pci); !name.empty()) device.name = std::move(name);
      out.push_back(std::move(device));
    } else {
      device.kind = DeviceKind::network;
      add_network(pci, device, out);
    }
  }
}

/// Network and RDMA devices that hang from no PCI device (virtio on a virtual bus, rxe over any of them).
void add_loose_devices(hwloc_topology_t topology, std::vector<TopologyDevice>& out) {
  for (hwloc_obj_t os = nullptr; (os = hwloc_get_next_osdev(topology, os)) != nullptr;) {
    const auto type = os->attr->osdev.type;
    const bool network = type == HWLOC_OBJ_OSDEV_NETWORK;
    if ((!network && type != HWLOC_OBJ_OSDEV_OPENFABRICS) || os->name == nullptr) continue;
    if (os->parent != nullptr && os->parent->type == HWLOC_OBJ_PCI_DEVICE) continue;
    TopologyDevice device;
    device.kind = network ? DeviceKind::network : DeviceKind::rdma;
    device.name = os->name;
    place(os, device);
    out.push_back(std::move(device));
  }
}

std::string cpu_list(hwloc_const_bitmap_t set) {
  char* text = nullptr;
  if (set == nullptr || hwloc_bitmap_list_asprintf(&text, set) < 0) return {};
  const std::unique_ptr<char, void (*)(void*)> owner(text, &std::free);
  return text;
}

std::vector<NumaNode> numa_nodes(hwloc_topology_t topology) {
  std::vector<NumaNode> nodes;
  for (hwloc_obj_t at = nullptr;
       (at = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, at)) != nullptr;) {
    const hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, at);
    nodes.push_back({at->os_index, at->attr->numanode.local_memory, cpu_list(at->cpuset),
                     package == nullptr ? 0 : package->logical_index});
  }
  return nodes;
}

std::uint32_t count(hwloc_topology_t topology, hwloc_obj_type_t type) {
  return static_cast<std::uint32_t>(std::max(hwloc_get_nbobjs_by_type(topology, type), 0));
}

Topology describe(hwloc_topology_t handle) {
  Topology topology;
  topology.packages = count(handle, HWLOC_OBJ_PACKAGE);
  topology.cores = count(handle, HWLOC_OBJ_CORE);
  topology.processors = count(handle, HWLOC_OBJ_PU);
  topology.numa_nodes = numa_nodes(handle);
  add_pci_devices(handle, topology.devices);
  add_loose_devices(handle, topology.devices);
  std::ranges::stable_sort(topology.devices, {},
                           [](const TopologyDevice& d) { return std::tuple(d.kind, d.bus_id, d.name); });
  return topology;
}

}  // namespace

Result<Topology> Topology::of_this_machine() {
  CENOTE_ASSIGN(const auto handle, open());
  if (hwloc_topology_load(handle.get()) != 0) return fail(system_error(std::string(stage), errno));
  return describe(handle.get());
}

Result<Topology> Topology::from_xml(std::string_view xml) {
  auto refuse = [](std::string cause) {
    return fail(Error{ErrorCode::invalid_argument, "read a recorded topology", std::move(cause)}.fix(
        "record one with: lstopo --whole-io machine.xml"));
  };
  if (xml.size() > most_xml) return refuse("it is larger than 64 MiB");
  CENOTE_ASSIGN(const auto handle, open());
  const std::string text(xml);  // hwloc wants the terminating NUL counted
  if (hwloc_topology_set_xmlbuffer(handle.get(), text.c_str(), static_cast<int>(text.size() + 1)) != 0)
    return refuse("it is not XML that hwloc reads: " + system_error({}, errno).cause);
  if (hwloc_topology_load(handle.get()) != 0)
    return refuse("it is not a topology that hwloc reads: " + system_error({}, errno).cause);
  return describe(handle.get());
}

Result<Topology> Topology::from_xml_file(const std::string& path) {
  CENOTE_ASSIGN(const auto text, read_file(path, most_xml));
  auto topology = from_xml(text);
  if (!topology) topology.error().stage = "read topology " + path;
  return topology;
}

}  // namespace cenote
