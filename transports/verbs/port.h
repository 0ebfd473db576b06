// What one side knows of a port, and the choices that both sides make alike from what each knows: which ports
// are joined to rails, and between which GIDs. Pure functions of plain values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/bytes.h"
#include "runtime/result.h"

namespace cenote::transport::verbs {

enum class LinkLayer : std::uint8_t { infiniband = 1, ethernet = 2 };
/// As ibv_gid_type counts them.
enum class GidType : std::uint8_t { infiniband = 0, roce_v1 = 1, roce_v2 = 2 };

struct Gid {
  GidType type{};
  std::uint8_t index = 0;  ///< in its port's table
  std::array<std::uint8_t, 16> raw{};

  [[nodiscard]] bool is_ipv4() const;        ///< IPv4-mapped
  [[nodiscard]] bool is_link_local() const;  ///< fe80::/10
  [[nodiscard]] std::string text() const;    ///< "10.77.0.1", "fe80::..."
};

/// A port that is up, as its peer learns of it.
struct Port {
  std::string name;  ///< "mlx5_0:1", for errors and logs
  LinkLayer link_layer{};
  std::uint16_t lid = 0;
  std::uint8_t mtu = 0;           ///< active, as enum ibv_mtu counts: 1 = 256 ... 5 = 4096 bytes
  std::uint8_t reads_served = 0;  ///< reads and atomics that it answers at once
  std::uint8_t reads_issued = 0;  ///< that it asks at once
  bool atomics = false;
  std::vector<Gid> gids;  ///< by index, at most max_gids

  void pack(Writer& out) const;
  /// Makes `in` bad() where it is no port.
  static Port unpack(Reader& in);
};
inline constexpr std::size_t max_gids = 16;
inline constexpr std::size_t max_ports = 8;

struct GidPair {
  Gid mine, theirs;
};
/// The pairs that may work, the likeliest first: of one type and one family, RoCE v2 before v1, in one subnet
/// before not, IPv4 before IPv6, global before link-local. The same for both sides but for who is `mine`.
std::vector<GidPair> gid_candidates(const Port& mine, const Port& theirs);

/// Ports by index, one pair a rail. The ports of the side that dials are taken in their order; each gets the
/// first that is left of the other side's with a pair of GIDs, preferring one in its subnet.
struct RailPorts {
  std::size_t dialer = 0, acceptor = 0;
};
std::vector<RailPorts> plan_rails(const std::vector<Port>& dialer, const std::vector<Port>& acceptor,
                                  std::size_t most);

}  // namespace cenote::transport::verbs
