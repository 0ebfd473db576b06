#include "transports/verbs/port.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "runtime/process.h"
#include "transports/endpoint_base.h"

namespace cenote::transport::verbs {
namespace {

constexpr std::size_t subnet_bytes = 8;     // of an IPv6 address or an InfiniBand GID
constexpr std::size_t subnet_bytes_v4 = 2;  // of an IPv4 one: the length of its prefix is not known here
constexpr std::size_t v4_begins = 12;
constexpr std::uint8_t no_distance = 0xff;

std::span<const std::uint8_t> subnet_of(const Gid& gid) {
  const std::span whole(gid.raw);
  return gid.is_ipv4() ? whole.subspan(v4_begins, subnet_bytes_v4) : whole.first(subnet_bytes);
}

/// What two GIDs must have in common to talk.
std::uint16_t kind_of(const Gid& gid) {
  return static_cast<std::uint16_t>(static_cast<unsigned>(gid.type) << 1U | (gid.is_ipv4() ? 1U : 0U));
}

/// Fit for a log, however long a peer makes it.
std::string name_from(Reader& in) {
  const auto text = in.blob();
  return printable(text.first(std::min(text.size(), max_name)));
}

/// Greater = likelier.
int likelihood(const GidPair& pair) {
  return (pair.mine.type == GidType::roce_v2 ? 8 : 0) + (one_subnet(pair.mine, pair.theirs) ? 4 : 0) +
         (pair.mine.is_ipv4() ? 2 : 0) + (pair.mine.is_link_local() ? 0 : 1);
}

}  // namespace

bool one_subnet(const Gid& a, const Gid& b) {
  return kind_of(a) == kind_of(b) && std::ranges::equal(subnet_of(a), subnet_of(b));
}

bool Gid::is_ipv4() const {
  static constexpr std::array<std::uint8_t, v4_begins> prefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(prefix.begin(), prefix.end(), raw.begin());
}

bool Gid::is_link_local() const { return raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80; }

std::string Gid::text() const {
  std::array<char, INET6_ADDRSTRLEN> out{};
  if (is_ipv4()) {
    (void)::inet_ntop(AF_INET, raw.data() + v4_begins, out.data(), out.size());
  } else {
    (void)::inet_ntop(AF_INET6, raw.data(), out.data(), out.size());
  }
  return out.data();
}

void pack(const RailHome& home, Writer& out) { out.put(home.kind).put(home.number).text(home.name); }

RailHome unpack_home(Reader& in) {
  RailHome home;
  const auto kind = in.get<std::uint8_t>();
  if (kind <= static_cast<std::uint8_t>(RailHome::Kind::gpu)) home.kind = static_cast<RailHome::Kind>(kind);
  home.number = in.get<std::uint8_t>();
  home.name = name_from(in);
  return home;
}

void Port::pack(Writer& out) const {
  out.text(name).put(link_layer).put(lid).put(mtu).put(reads_served).put(reads_issued);
  out.put(lmc).put(members).put(mbps).text(interface).text(bond);
  out.put(distance ? static_cast<std::uint8_t>(*distance) : no_distance);
  out.put(static_cast<std::uint8_t>(atomics ? 1 : 0)).put(static_cast<std::uint8_t>(gids.size()));
  for (const Gid& gid : gids) out.put(gid.type).put(gid.index).raw(std::as_bytes(std::span(gid.raw)));
}

Port Port::unpack(Reader& in) {
  Port port;
  port.name = name_from(in);
  port.link_layer = static_cast<LinkLayer>(in.get<std::uint8_t>());
  port.lid = in.get<std::uint16_t>();
  port.mtu = in.get<std::uint8_t>();
  port.reads_served = in.get<std::uint8_t>();
  port.reads_issued = in.get<std::uint8_t>();
  port.lmc = in.get<std::uint8_t>() & max_lmc;
  port.members = std::clamp<std::uint8_t>(in.get<std::uint8_t>(), 1, max_members);
  port.mbps = in.get<std::uint32_t>();
  port.interface = name_from(in);
  port.bond = name_from(in);
  const auto distance = in.get<std::uint8_t>();
  if (distance <= static_cast<std::uint8_t>(Distance::cross_numa))
    port.distance = static_cast<Distance>(distance);
  port.atomics = in.get<std::uint8_t>() != 0;
  port.gids.resize(in.get<std::uint8_t>() % (max_gids + 1));
  for (Gid& gid : port.gids) {
    gid.type = static_cast<GidType>(in.get<std::uint8_t>());
    gid.index = in.get<std::uint8_t>();
    const auto raw = in.raw(gid.raw.size());
    if (!in.bad()) std::memcpy(gid.raw.data(), raw.data(), raw.size());
  }
  return port;
}

std::vector<GidPair> gid_candidates(const Port& mine, const Port& theirs) {
  std::vector<GidPair> out;
  if (mine.link_layer != theirs.link_layer) return out;
  for (const Gid& a : mine.gids) {
    for (const Gid& b : theirs.gids) {
      if (a.type == b.type && a.is_ipv4() == b.is_ipv4()) out.push_back({a, b});
    }
  }
  // Ties are broken by what both sides see alike, whoever is `mine`.
  std::sort(out.begin(), out.end(), [](const GidPair& x, const GidPair& y) {
    const int at_x = likelihood(x), at_y = likelihood(y);
    if (at_x != at_y) return at_x > at_y;
    const int sum_x = x.mine.index + x.theirs.index, sum_y = y.mine.index + y.theirs.index;
    if (sum_x != sum_y) return sum_x < sum_y;
    return std::minmax(x.mine.raw, x.theirs.raw) < std::minmax(y.mine.raw, y.theirs.raw);
  });
  return out;
}

RailSide rail_side_of(std::uint64_t id, const std::vector<Port>& ports, const RailHome& home) {
  RailSide side;
  side.id = fmt::format("{:016x}", id);
  side.home = home;
  for (const Port& port : ports) {
    RailPort& out = side.ports.emplace_back();
    out.name = port.name;
    out.link = port.link_layer == LinkLayer::infiniband ? RailLink::infiniband : RailLink::ethernet;
    out.mbps = port.mbps;
    out.interface = port.interface;
    out.bond = port.bond;
    out.members = port.members;
    out.distance = port.distance;
    for (const Gid& gid : port.gids) out.addresses.push_back({kind_of(gid), to_hex(subnet_of(gid))});
  }
  return side;
}

}  // namespace cenote::transport::verbs
