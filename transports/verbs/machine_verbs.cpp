// The word of libibverbs on the devices of a machine.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "transports/verbs/machine.h"
#include "transports/verbs/nic.h"

namespace cenote::transport::verbs {
namespace {

std::vector<Gid> gids_of(const std::vector<ibv_gid_entry>& table, std::uint8_t port) {
  std::vector<Gid> out;
  for (const ibv_gid_entry& entry : table) {
    if (entry.port_num != port || entry.gid_index > 255) continue;
    Gid gid;
    gid.type = static_cast<GidType>(entry.gid_type);
    gid.index = static_cast<std::uint8_t>(entry.gid_index);
    std::memcpy(gid.raw.data(), entry.gid.raw, gid.raw.size());
    out.push_back(gid);
  }
  return out;
}

PortRecord& port_named(DeviceRecord& device, const std::string& name) {
  for (PortRecord& port : device.ports)
    if (port.name == name) return port;
  device.ports.push_back({});
  device.ports.back().name = name;
  return device.ports.back();
}

DeviceRecord& device_named(MachineRecord& machine, const std::string& name) {
  for (DeviceRecord& device : machine.devices)
    if (device.name == name) return device;
  machine.devices.push_back({});
  machine.devices.back().name = name;
  return machine.devices.back();
}

void ask_port(const VerbsApi& api, ibv_context* context, std::uint8_t number, PortRecord& port) {
  ibv_port_attr attributes{};
  if (api.query_port(context, number, &attributes) != 0) return;
  port.state = port_state_name(attributes.state);
  port.link_layer =
      attributes.link_layer == IBV_LINK_LAYER_ETHERNET ? LinkLayer::ethernet : LinkLayer::infiniband;
  port.mtu = mtu_bytes(attributes.active_mtu);
  port.max_mtu = mtu_bytes(attributes.max_mtu);
  if (const auto speed = port_speed(attributes.active_width, attributes.active_speed); speed != 0)
    port.mbps = speed;
  std::vector<ibv_gid_entry> table(512);
  const ssize_t count = api.query_gid_table(context, table.data(), table.size());
  if (count < 0) return;
  table.resize(static_cast<std::size_t>(count));
  port.gids = gids_of(table, number);
}

void ask_device(const VerbsApi& api, ibv_device* listed, const MachineFiles& files, DeviceRecord& device) {
  const Owned<ibv_context> context(api.open_device(listed), api.close_device);
  if (!context) {
    device.refused = std::strerror(errno);
    return;
  }
  ibv_device_attr attributes{};
  if (const int number = api.query_device(context.get(), &attributes); number != 0) {
    device.refused = std::strerror(number);
    return;
  }
  device.node_there = true;
  for (unsigned number = 1; number <= attributes.phys_port_cnt; ++number) {
    PortRecord& port = port_named(device, fmt::format("{}:{}", device.name, number));
    ask_port(api, context.get(), static_cast<std::uint8_t>(number), port);
    if (port.interface.name.empty())
      port.interface =
          network_interface(files, interface_of_port(files, device.name, static_cast<std::uint8_t>(number)));
  }
}

}  // namespace

void ask_verbs(MachineRecord& machine, const VerbsApi& api, const MachineFiles& files) {
  machine.asked_library = true;
  const DeviceList devices(api);
  std::set<std::string> listed;
  for (int i = 0; i < devices.count; ++i) {
    const std::string name = api.get_device_name(devices.list[i]);
    listed.insert(name);
    ask_device(api, devices.list[i], files, device_named(machine, name));
  }
  for (DeviceRecord& device : machine.devices)
    if (!listed.contains(device.name) && device.refused.empty())
      device.refused = "libibverbs does not list it: the provider of this device is missing, or its node";
}

MachineRecord read_this_machine() {
  const MachineFiles files;
  auto machine = read_machine(files);
  const auto api = load_verbs_api();
  if (api) {
    ask_verbs(machine, **api, files);
  } else {
    machine.asked_library = true;
    machine.library = api.error().cause;
  }
  return machine;
}

std::uint32_t port_speed(std::uint8_t width, std::uint8_t speed) {
  const std::uint32_t lanes = width == 1    ? 1
                              : width == 2  ? 4
                              : width == 4  ? 8
                              : width == 8  ? 12
                              : width == 16 ? 2
                                            : 0;
  std::uint32_t lane = 0;
  switch (speed) {
    case 1:
      lane = 2'500;
      break;
    case 2:
      lane = 5'000;
      break;
    case 4:
    case 8:
      lane = 10'000;
      break;
    case 16:
      lane = 14'000;
      break;
    case 32:
      lane = 25'000;
      break;
    case 64:
      lane = 50'000;
      break;
    case 128:
      lane = 100'000;
      break;
    default:
      break;
  }
  return lanes * lane;
}

std::uint32_t mtu_bytes(int code) {
  return code >= IBV_MTU_256 && code <= IBV_MTU_4096 ? 128U << static_cast<unsigned>(code) : 0;
}

}  // namespace cenote::transport::verbs
