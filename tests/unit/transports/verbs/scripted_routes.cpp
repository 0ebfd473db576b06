// Who is reached: addresses, partitions, links.
#include <cstring>

#include "tests/unit/transports/verbs/scripted_core.h"

namespace cenote::transport::verbs::test::detail {

namespace {

bool lid_matches(const PortSpec& port, std::uint16_t lid) {
  return (lid >> port.lmc) == (port.lid >> port.lmc);
}

bool partition_matches(const Qp& a, const Port& a_port, const Qp& b, const Port& b_port) {
  const std::uint16_t x = a_port.spec.pkeys[a.attr.pkey_index];
  const std::uint16_t y = b_port.spec.pkeys[b.attr.pkey_index];
  return (x & 0x7fff) == (y & 0x7fff) && ((x | y) & 0x8000) != 0;
}

/// Whether a packet with this address vector out of `from` reaches `to`.
bool addresses(const Port& from, const ibv_ah_attr& address, const Port& to) {
  if (from.spec.link_layer != to.spec.link_layer) return false;
  const bool infiniband = from.spec.link_layer == IBV_LINK_LAYER_INFINIBAND;
  if (infiniband && !lid_matches(to.spec, address.dlid)) return false;
  if (address.is_global == 0) return infiniband;
  if (address.grh.sgid_index >= from.spec.gids.size() || from.broken_gids.contains(address.grh.sgid_index))
    return false;
  const GidSpec& source = from.spec.gids[address.grh.sgid_index];
  if (!source.valid) return false;
  for (std::size_t i = 0; i < to.spec.gids.size(); ++i) {
    const GidSpec& target = to.spec.gids[i];
    if (target.valid && target.type == source.type && !to.broken_gids.contains(static_cast<int>(i)) &&
        std::memcmp(target.gid.raw, address.grh.dgid.raw, sizeof target.gid.raw) == 0)
      return true;
  }
  return false;
}

/// An end takes only what comes from the LID that it was told (InfiniBand 1, 9.6.1).
bool from_known_lid(const Port& from, const ibv_ah_attr& address, const ibv_ah_attr& back) {
  if (from.spec.link_layer != IBV_LINK_LAYER_INFINIBAND) return true;
  const auto path = address.src_path_bits & ((1U << from.spec.lmc) - 1);
  return from.spec.lid + path == back.dlid;
}

/// Packets of a connection carry the GIDs it was made with, in one form (RoCE v1 or v2).
bool same_gids(const Port& from, const ibv_ah_attr& address, const Port& to, const ibv_ah_attr& back) {
  if (address.is_global == 0 || back.is_global == 0) return true;
  if (back.grh.sgid_index >= to.spec.gids.size()) return false;
  const GidSpec& target = to.spec.gids[back.grh.sgid_index];
  return target.type == from.spec.gids[address.grh.sgid_index].type &&
         std::memcmp(target.gid.raw, address.grh.dgid.raw, sizeof target.gid.raw) == 0;
}

/// The queue pair behind `port` that `qp` is connected with, if it is connected back.
Qp* peer_at(const Qp& qp, const Port& own, Device& device, int number) {
  const Port& port = *device.port(number);
  if (!port.spec.up || !addresses(own, qp.attr.ah_attr, port)) return nullptr;
  const auto found = device.qps.find(qp.attr.dest_qp_num);
  if (found == device.qps.end()) return nullptr;
  Qp& peer = *found->second;
  const bool ready = peer.state == IBV_QPS_RTR || peer.state == IBV_QPS_RTS;
  if (!ready || peer.attr.port_num != number || peer.attr.dest_qp_num != qp.qp_num) return nullptr;
  if (!same_gids(own, qp.attr.ah_attr, port, peer.attr.ah_attr)) return nullptr;
  if (!from_known_lid(own, qp.attr.ah_attr, peer.attr.ah_attr)) return nullptr;
  if (!addresses(port, peer.attr.ah_attr, own) || !partition_matches(qp, own, peer, port)) return nullptr;
  return &peer;
}

Route find_route(Core& core, const Qp& qp) {
  const Port& own = *qp.card->port(qp.attr.port_num);
  if (!own.spec.up) return {.own_port_down = true};
  for (Device& device : core.devices) {
    if (device.removed) continue;
    for (int number = 1; number <= static_cast<int>(device.ports.size()); ++number)
      if (Qp* peer = peer_at(qp, own, device, number))
        return {peer, false, road_locked(core, qp.card, &device), road_locked(core, &device, qp.card)};
  }
  return {};
}

}  // namespace

Road road_locked(const Core& core, const Device* from, const Device* to) {
  const auto found = core.roads.find({from, to});
  return found == core.roads.end() ? Road::open : found->second;
}

const Route& route_locked(Core& core, Qp& qp) {
  if (qp.route_epoch != core.epoch) {
    qp.route = find_route(core, qp);
    qp.route_epoch = core.epoch;
  }
  return qp.route;
}

}  // namespace cenote::transport::verbs::test::detail
