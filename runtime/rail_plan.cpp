#include "runtime/rail_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace cenote {
namespace {

constexpr int unknown_distance = static_cast<int>(Distance::cross_numa) + 1;
constexpr std::uint32_t whole = 1000;

const std::string& label_of(const RailSide& side) { return side.label.empty() ? side.id : side.label; }

int rank_of(const RailPort& port) {
  return port.distance ? static_cast<int>(*port.distance) : unknown_distance;
}

std::uint32_t link_speed(const RailPort& port) {
  return port.mbps / std::max<std::uint32_t>(port.members, 1);
}

/// Unknown stands for as fast as the other.
std::uint32_t slower(std::uint32_t a, std::uint32_t b) {
  return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b);
}

bool can_talk(const RailPort& a, const RailPort& b, bool in_subnet) {
  return a.link == b.link && std::ranges::any_of(a.addresses, [&](const RailAddress& x) {
           return std::ranges::any_of(
               b.addresses, [&](const RailAddress& y) { return in_subnet ? x == y : x.kind == y.kind; });
         });
}

/// What a side makes of its own ports, and of the other's: enough to rank them.
struct Ranked {
  const RailSide& side;
  std::vector<std::string> refused;  ///< why not, by port; empty: may be used
  std::vector<bool> near;            ///< by port
  std::vector<std::size_t> turn;     ///< by port: its place where all else is equal
  std::vector<std::size_t> room;     ///< by port: rails that it may still take

  explicit Ranked(const RailSide& of) : side(of), refused(of.ports.size()), near(of.ports.size(), true) {
    const auto count = side.ports.size();
    for (std::size_t i = 0; i < count; ++i) {
      refused[i] = refusal(side.ports[i]);
      turn.push_back((i + count - side.home.number % count) % count);
      room.push_back(std::max<std::size_t>(side.ports[i].members, 1));
    }
  }

  [[nodiscard]] std::string refusal(const RailPort& port) const {
    if (!port.up) return "it is down";
    if (port.bond.empty()) return {};
    for (const RailPort& other : side.ports)
      if (other.up && other.interface == port.bond)
        return fmt::format("{} is a member of {}, whose port {} carries its data", port.interface, port.bond,
                           other.name);
    return {};
  }

  /// The best distance among ports that `reaches` says can be used.
  void mark_near(const std::vector<bool>& reaches) {
    if (side.home.kind != RailHome::Kind::gpu) return;
    int nearest = unknown_distance;
    for (std::size_t i = 0; i < side.ports.size(); ++i)
      if (reaches[i]) nearest = std::min(nearest, rank_of(side.ports[i]));
    for (std::size_t i = 0; i < side.ports.size(); ++i) near[i] = rank_of(side.ports[i]) == nearest;
  }
};

struct Candidate {
  std::size_t first, second;
  int farness;  ///< ends that are not near
  bool one_subnet;
  int worst, sum;  ///< of the two distances
  std::uint32_t speed, excess;
  std::size_t turn_first, turn_second;

  [[nodiscard]] auto order() const {
    return std::tuple(farness, !one_subnet, worst, sum, ~speed, excess, turn_first, turn_second, first,
                      second);
  }
};

std::vector<Candidate> candidates(Ranked& a, Ranked& b) {
  std::vector<bool> a_reaches(a.side.ports.size()), b_reaches(b.side.ports.size());
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (std::size_t i = 0; i < a_reaches.size(); ++i) {
    for (std::size_t j = 0; j < b_reaches.size(); ++j) {
      if (!a.refused[i].empty() || !b.refused[j].empty()) continue;
      if (!can_talk(a.side.ports[i], b.side.ports[j], false)) continue;
      a_reaches[i] = b_reaches[j] = true;
      pairs.emplace_back(i, j);
    }
  }
  a.mark_near(a_reaches);
  b.mark_near(b_reaches);
  std::vector<Candidate> out;
  for (const auto& [i, j] : pairs) {
    const RailPort &x = a.side.ports[i], &y = b.side.ports[j];
    const auto fast = std::max(link_speed(x), link_speed(y)), slow = slower(link_speed(x), link_speed(y));
    out.push_back({i, j, (a.near[i] ? 0 : 1) + (b.near[j] ? 0 : 1), can_talk(x, y, true),
                   std::max(rank_of(x), rank_of(y)), rank_of(x) + rank_of(y), slow, fast - slow, a.turn[i],
                   b.turn[j]});
  }
  std::ranges::sort(out, {}, &Candidate::order);
  return out;
}

std::string why_not(const Ranked& own, const Ranked& other, std::size_t port, bool full) {
  if (!own.refused[port].empty()) return own.refused[port];
  bool link = false, talks = false;
  for (std::size_t j = 0; j < other.side.ports.size(); ++j) {
    const RailPort& theirs = other.side.ports[j];
    if (!other.refused[j].empty()) continue;
    link = link || theirs.link == own.side.ports[port].link;
    talks = talks || can_talk(own.side.ports[port], theirs, false);
  }
  if (!link)
    return fmt::format("{} has no {} port that is up", label_of(other.side),
                       to_string(own.side.ports[port].link));
  if (!talks) return fmt::format("no port of {} has an address of a kind that it has", label_of(other.side));
  return full ? "there are as many rails as may be"
              : fmt::format("no port of {} is left for it", label_of(other.side));
}

void leave_out(const Ranked& own, const Ranked& other, bool full, const std::vector<bool>& used,
               std::vector<RailPlan::LeftOut>& out) {
  for (std::size_t i = 0; i < own.side.ports.size(); ++i)
    if (!used[i]) out.push_back({i, why_not(own, other, i, full)});
}

void share_out(std::vector<RailPlan::Rail>& rails) {
  const bool known =
      std::ranges::all_of(rails, [](const auto& rail) { return rail.spare || rail.mbps != 0; });
  std::uint64_t total = 0, before = 0;
  for (const auto& rail : rails) total += rail.spare ? 0 : (known ? rail.mbps : 1);
  const auto thousandths = [&total](std::uint64_t part) { return (part * whole + total / 2) / total; };
  for (auto& rail : rails) {
    if (rail.spare) continue;
    const std::uint64_t after = before + (known ? rail.mbps : 1);
    rail.share = static_cast<std::uint32_t>(thousandths(after) - thousandths(before));
    before = after;
  }
}

/// The plan of `a`, whose ports come first where all else is equal.
RailPlan plan_in_order(const RailSide& a, const RailSide& b, std::size_t most) {
  RailPlan plan;
  Ranked first(a), second(b);
  std::vector<bool> first_used(a.ports.size()), second_used(b.ports.size());
  if (!a.home.nvlink.empty() && a.home.nvlink == b.home.nvlink) {
    plan.nvlink = true;
    for (std::size_t i = 0; i < a.ports.size(); ++i) plan.mine_left.push_back({i, "NVLink reaches the peer"});
    for (std::size_t i = 0; i < b.ports.size(); ++i)
      plan.theirs_left.push_back({i, "NVLink reaches the peer"});
    return plan;
  }
  const auto sorted = candidates(first, second);
  for (const Candidate& pair : sorted) {
    while (plan.rails.size() < most && first.room[pair.first] != 0 && second.room[pair.second] != 0) {
      --first.room[pair.first], --second.room[pair.second];
      first_used[pair.first] = second_used[pair.second] = true;
      plan.rails.push_back(
          {pair.first, pair.second, pair.farness > sorted.front().farness, pair.one_subnet, pair.speed, 0});
    }
  }
  share_out(plan.rails);
  const bool full = plan.rails.size() == most;
  leave_out(first, second, full, first_used, plan.mine_left);
  leave_out(second, first, full, second_used, plan.theirs_left);
  return plan;
}

RailPlan mirrored(RailPlan plan) {
  for (auto& rail : plan.rails) std::swap(rail.mine, rail.theirs);
  std::swap(plan.mine_left, plan.theirs_left);
  return plan;
}

std::optional<Distance> from_node(const Topology& topology, int node, const TopologyDevice& device) {
  if (topology.numa_nodes.size() < 2) return Distance::same_numa;
  if (device.numa < 0) return std::nullopt;
  return device.numa == node ? Distance::same_numa : Distance::cross_numa;
}

Result<int> node_number(const Topology& topology, std::string_view text) {
  for (const NumaNode& node : topology.numa_nodes)
    if (std::to_string(node.index) == text) return static_cast<int>(node.index);
  return fail(ErrorCode::not_found, "find where the data is",
              fmt::format("this machine has no NUMA node '{}'", text));
}

Result<const TopologyDevice*> gpu_named(const Topology& topology, std::string_view name) {
  std::string there;
  for (const TopologyDevice& device : topology.devices) {
    if (device.kind != DeviceKind::gpu) continue;
    if (device.name == name || device.bus_id == name) return &device;
    there += (there.empty() ? "" : ", ") + device.name;
  }
  return fail(ErrorCode::not_found, "find where the data is",
              fmt::format("this machine has no GPU '{}'; it has {}", name, there.empty() ? "none" : there));
}

}  // namespace

Result<RailSide> rail_side(std::string id, const Topology& topology, std::vector<RailPort> ports,
                           std::string_view near) {
  RailSide side{std::move(id), std::move(ports), {}, {}};
  constexpr std::string_view node_prefix = "numa:";
  const TopologyDevice* gpu = nullptr;
  int node = -1;
  if (near.starts_with(node_prefix)) {
    CENOTE_ASSIGN(node, node_number(topology, near.substr(node_prefix.size())));
    side.home = {RailHome::Kind::host, fmt::format("numa {}", node), 0, {}};
  } else if (!near.empty()) {
    CENOTE_ASSIGN(gpu, gpu_named(topology, near));
    std::uint8_t number = 0;
    for (const TopologyDevice& device : topology.devices)
      if (device.kind == DeviceKind::gpu && &device < gpu) ++number;
    side.home = {RailHome::Kind::gpu, gpu->name, number, {}};
  }
  if (near.empty()) return side;
  for (RailPort& port : side.ports) {
    const auto* device = topology.find(std::string_view(port.name).substr(0, port.name.rfind(':')));
    if (device == nullptr || (device->bus_id.empty() && device->numa < 0)) continue;
    port.distance = gpu != nullptr ? distance(*gpu, *device) : from_node(topology, node, *device);
  }
  return side;
}

RailPlan plan_rails(const RailSide& mine, const RailSide& theirs, std::size_t most) {
  if (mine.id >= theirs.id) return plan_in_order(mine, theirs, most);
  return mirrored(plan_in_order(theirs, mine, most));
}

std::string_view to_string(RailLink link) { return link == RailLink::infiniband ? "InfiniBand" : "RoCE"; }

std::string speed_text(std::uint32_t mbps) {
  return mbps % 1000 == 0 ? fmt::format("{} Gb/s", mbps / 1000) : fmt::format("{:.1f} Gb/s", mbps / 1000.0);
}

namespace {

/// Both sides print alike, but for the names that only one of them uses.
bool mine_first(const RailSide& mine, const RailSide& theirs) {
  return !mine.label.empty() || mine.id <= theirs.id;
}

std::string home_text(const RailSide& side) {
  return side.home.name.empty() ? label_of(side) : label_of(side) + " " + side.home.name;
}

std::string end_text(const RailSide& side, const RailPort& port) {
  std::string text;
  if (port.members > 1)
    text += fmt::format("; {}: {} is a bond of {}", label_of(side), port.interface, port.members);
  if (side.home.kind == RailHome::Kind::anywhere) return text;
  return text + fmt::format("; {}: {}", home_text(side),
                            port.distance ? to_string(*port.distance) : "distance not known");
}

std::string rail_text(const RailPlan::Rail& rail, const RailSide& a, const RailSide& b) {
  const RailPort &x = a.ports[rail.mine], &y = b.ports[rail.theirs];
  std::string text = fmt::format("{} {} <> {} {}", label_of(a), x.name, label_of(b), y.name);
  text += rail.spare ? "  spare: others are nearer" : fmt::format("  share {:.1f} %", rail.share / 10.0);
  text += fmt::format("  {}{}", to_string(x.link), rail.mbps == 0 ? "" : " " + speed_text(rail.mbps));
  text += rail.one_subnet ? ", one subnet" : ", through a router: no subnet in common";
  return text + end_text(a, x) + end_text(b, y);
}

std::string plan_text(const RailPlan& plan, const RailSide& a, const RailSide& b) {
  std::string text = fmt::format("{} <> {}\n", home_text(a), home_text(b));
  if (plan.nvlink)
    return text + fmt::format("  NVLink: both are of domain {}, no port is used\n", a.home.nvlink);
  std::size_t number = 0;
  for (const auto& rail : plan.rails) text += fmt::format("  rail {}  {}\n", number++, rail_text(rail, a, b));
  if (plan.rails.empty()) text += "  no rail\n";
  for (const auto& [port, why] : plan.mine_left)
    text += fmt::format("  left    {} {}: {}\n", label_of(a), a.ports[port].name, why);
  for (const auto& [port, why] : plan.theirs_left)
    text += fmt::format("  left    {} {}: {}\n", label_of(b), b.ports[port].name, why);
  return text;
}

}  // namespace

std::string text_of(const RailPlan& plan, const RailSide& mine, const RailSide& theirs) {
  return mine_first(mine, theirs) ? plan_text(plan, mine, theirs) : plan_text(mirrored(plan), theirs, mine);
}

std::string text_of(const RailPlan::Rail& rail, const RailSide& mine, const RailSide& theirs) {
  if (mine_first(mine, theirs)) return rail_text(rail, mine, theirs);
  auto turned = rail;
  std::swap(turned.mine, turned.theirs);
  return rail_text(turned, theirs, mine);
}

}  // namespace cenote
