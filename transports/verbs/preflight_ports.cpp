// Preflight of ports: link, GIDs, MTU.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "transports/verbs/preflight_parts.h"

namespace cenote::transport::verbs {
namespace {

// What RoCE puts around its payload, as the kernel reckons: GRH, UDP, BTH, XRC, atomic header, ICRC.
constexpr std::uint32_t roce_headers = 40 + 8 + 12 + 4 + 28 + 4;

bool is_roce(const PortRecord& port) { return port.link_layer == LinkLayer::ethernet; }

/// The RDMA MTU that a network MTU has room for; 0: for none.
std::uint32_t room_for(std::uint32_t network_mtu) {
  for (std::uint32_t mtu = 4096; mtu >= 256; mtu /= 2)
    if (network_mtu >= mtu + roce_headers) return mtu;
  return 0;
}

void check_link(const PortRecord& port, Findings& out) {
  const auto subject = port.name + " link";
  const auto kind = is_roce(port) ? "RoCE" : "InfiniBand";
  const auto speed = port.mbps == 0 ? "" : ", " + speed_text(port.mbps);
  if (port.state == "ACTIVE") {
    out.push_back({subject, Verdict::ok, fmt::format("{} ACTIVE{}", kind, speed), {}});
    return;
  }
  if (port.state.empty()) {
    out.push_back({subject, Verdict::unknown, "its state cannot be read",
                   "check the rights of /sys and /dev/infiniband"});
    return;
  }
  auto seen = fmt::format("{} {}", kind, port.state);
  if (!port.physical_state.empty()) seen += ", physically " + port.physical_state;
  if (is_roce(port) && !port.interface.state.empty())
    seen += fmt::format("; {} is {}", port.interface.name, port.interface.state);
  std::string remedy = "check cable, transceiver and the switch's port";
  if (port.physical_state == "Disabled") {
    remedy = is_roce(port) ? fmt::format("ip link set {} up", port.interface.name) : "ibportstate enables it";
  } else if (is_roce(port) && port.interface.state == "down") {
    remedy = fmt::format("ip link set {} up; if it stays down: cable, transceiver, switch port",
                         port.interface.name);
  } else if (!is_roce(port) && (port.state == "INIT" || port.state == "ARMED")) {
    remedy = "the link stands and waits for a subnet manager: start opensm on one host, or the switch's";
  }
  out.push_back({subject, Verdict::problem, seen, remedy});
}

void check_gids(const PortRecord& port, Findings& out) {
  const auto subject = port.name + " GIDs";
  const auto& gids = port.gids;
  const auto count = [&](auto test) { return std::ranges::count_if(gids, test); };
  const auto routed = [](const Gid& gid) { return !gid.is_link_local(); };
  const auto v2 = [](const Gid& gid) { return gid.type == GidType::roce_v2; };
  const auto name = port.interface.name.empty() ? "its network interface" : port.interface.name;
  if (gids.empty()) {
    out.push_back(
        {subject, Verdict::problem, "the table is empty",
         is_roce(port)
             ? fmt::format("bring {0} up and give it an address: ip address add 10.0.0.1/24 dev {0}", name)
             : "the port has none until a subnet manager has seen it"});
  } else if (!is_roce(port)) {
    out.push_back({subject, Verdict::ok, fmt::format("{}: {}", gids.size(), gids.front().text()), {}});
  } else if (count(v2) == 0) {
    out.push_back({subject, Verdict::warning, "RoCE v1 only, which no router forwards and not every switch",
                   "turn RoCE v2 on: cma_roce_mode -d DEVICE -p PORT -m 2, or the card's firmware settings"});
  } else if (count([&](const Gid& gid) { return v2(gid) && routed(gid); }) == 0) {
    out.push_back(
        {subject, Verdict::warning,
         fmt::format("link-local only ({}): peers of the same link alone are reached", gids.front().text()),
         fmt::format("give {0} an address: ip address add 10.0.0.1/24 dev {0}", name)});
  } else {
    const auto best = std::ranges::find_if(gids, [&](const Gid& gid) { return v2(gid) && routed(gid); });
    out.push_back({subject,
                   Verdict::ok,
                   fmt::format("{}, index {} is RoCE v2 {}", gids.size(), best->index, best->text()),
                   {}});
  }
}

void check_mtu(const PortRecord& port, Findings& out) {
  const auto subject = port.name + " MTU";
  const auto& interface = port.interface;
  if (!is_roce(port)) {
    if (port.mtu == 0 || port.max_mtu == 0) return;
    const bool less = port.mtu < port.max_mtu;
    out.push_back(
        {subject, less ? Verdict::warning : Verdict::ok,
         fmt::format("active {}{}", port.mtu, less ? fmt::format(", it could do {}", port.max_mtu) : ""),
         less ? "raise the MTU of the partition in the subnet manager (opensm: partitions.conf, mtu=5)"
              : ""});
    return;
  }
  if (interface.mtu == 0) {
    out.push_back({subject, Verdict::unknown, "its network interface, or that one's MTU, is not known", {}});
    return;
  }
  const auto room = room_for(interface.mtu);
  const auto active = port.mtu == 0 ? room : port.mtu;
  const auto seen = port.mtu == 0
                        ? fmt::format("{} has {}: room for RDMA's {}", interface.name, interface.mtu, room)
                        : fmt::format("active {}, {} has {}", active, interface.name, interface.mtu);
  if (room == 0) {
    out.push_back({subject, Verdict::problem,
                   fmt::format("{} has {}: no RDMA MTU fits", interface.name, interface.mtu),
                   fmt::format("ip link set {} mtu 4200", interface.name)});
  } else if (active > room) {
    out.push_back({subject, Verdict::problem,
                   fmt::format("{}, which has room for {}: large packets are dropped", seen, room),
                   fmt::format("ip link set {} mtu {}, here and on the switch, or verbs.mtu={}",
                               interface.name, active + roce_headers + 8, room)});
  } else if (active < room) {
    out.push_back(
        {subject, Verdict::warning, fmt::format("{}, which has room for {}", seen, room),
         fmt::format("take {0} down and up again, so that the port looks at its MTU", interface.name)});
  } else if (active < 4096) {
    out.push_back({subject, Verdict::warning, seen + ": RDMA could do 4096",
                   fmt::format("ip link set {} mtu 9000 (or 4200), where the whole network carries it",
                               interface.name)});
  } else {
    out.push_back({subject, Verdict::ok, seen, {}});
  }
}

}  // namespace

void check_ports(const MachineRecord& machine, Findings& out) {
  for (const DeviceRecord& device : machine.devices) {
    for (const PortRecord& port : device.ports) {
      check_link(port, out);
      check_gids(port, out);
      check_mtu(port, out);
    }
  }
}

void check_mtu_between_ports(const MachineRecord& machine, Findings& out) {
  std::map<std::uint32_t, std::string> by_mtu;
  std::size_t ports = 0;
  for (const DeviceRecord& device : machine.devices) {
    for (const PortRecord& port : device.ports) {
      const auto mtu = is_roce(port) ? port.interface.mtu : port.mtu;
      if (mtu == 0) continue;
      ++ports;
      auto& names = by_mtu[mtu];
      names += (names.empty() ? "" : ", ") + port.name;
    }
  }
  if (ports < 2) return;
  std::string seen;
  for (const auto& [mtu, names] : by_mtu)
    seen += fmt::format("{}{}: {}", seen.empty() ? "" : "; ", mtu, names);
  const bool alike = by_mtu.size() == 1;
  out.push_back(
      {"MTU of the ports", alike ? Verdict::ok : Verdict::warning,
       alike ? fmt::format("{} at all {}", by_mtu.begin()->first, ports) : seen,
       alike ? ""
             : "give all ports of one network the same MTU: rails of unlike MTU carry unlike packets, "
               "and one that is larger than the switch's drops them"});
}

}  // namespace cenote::transport::verbs
