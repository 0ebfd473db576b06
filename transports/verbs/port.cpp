#include "transports/verbs/port.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

namespace cenote::transport::verbs {
namespace {

constexpr std::size_t subnet_bytes = 8;     // of an IPv6 address or an InfiniBand GID
constexpr std::size_t subnet_bytes_v4 = 2;  // of an IPv4 one: the length of its prefix is not known here
constexpr std::size_t v4_begins = 12;

bool one_subnet(const Gid& a, const Gid& b) {
  if (a.is_ipv4())
    return std::memcmp(a.raw.data() + v4_begins, b.raw.data() + v4_begins, subnet_bytes_v4) == 0;
  return std::memcmp(a.raw.data(), b.raw.data(), subnet_bytes) == 0;
}

/// Greater = likelier.
int likelihood(const GidPair& pair) {
  return (pair.mine.type == GidType::roce_v2 ? 8 : 0) + (one_subnet(pair.mine, pair.theirs) ? 4 : 0) +
         (pair.mine.is_ipv4() ? 2 : 0) + (pair.mine.is_link_local() ? 0 : 1);
}

bool have_pair(const Port& a, const Port& b, bool in_subnet) {
  const auto pairs = gid_candidates(a, b);
  return std::any_of(pairs.begin(), pairs.end(), [in_subnet](const GidPair& pair) {
    return !in_subnet || one_subnet(pair.mine, pair.theirs);
  });
}

}  // namespace

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

void Port::pack(Writer& out) const {
  out.text(name).put(link_layer).put(lid).put(mtu).put(reads_served).put(reads_issued);
  out.put(static_cast<std::uint8_t>(atomics ? 1 : 0)).put(static_cast<std::uint8_t>(gids.size()));
  for (const Gid& gid : gids) out.put(gid.type).put(gid.index).raw(std::as_bytes(std::span(gid.raw)));
}

Port Port::unpack(Reader& in) {
  Port port;
  port.name = in.text();
  port.link_layer = static_cast<LinkLayer>(in.get<std::uint8_t>());
  port.lid = in.get<std::uint16_t>();
  port.mtu = in.get<std::uint8_t>();
  port.reads_served = in.get<std::uint8_t>();
  port.reads_issued = in.get<std::uint8_t>();
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

std::vector<RailPorts> plan_rails(const std::vector<Port>& dialer, const std::vector<Port>& acceptor,
                                  std::size_t most) {
  std::vector<RailPorts> rails;
  std::vector<bool> taken(acceptor.size());
  for (std::size_t i = 0; i < dialer.size() && rails.size() < most; ++i) {
    std::size_t best = acceptor.size();
    for (const bool in_subnet : {true, false}) {
      for (std::size_t j = 0; j < acceptor.size() && best == acceptor.size(); ++j) {
        if (!taken[j] && have_pair(dialer[i], acceptor[j], in_subnet)) best = j;
      }
    }
    if (best == acceptor.size()) continue;
    taken[best] = true;
    rails.push_back({i, best});
  }
  return rails;
}

}  // namespace cenote::transport::verbs
