// What one side knows of a port, as it tells its peer, and the choice that both make alike from what each
// knows: between which GIDs a rail is tried. Which ports are joined to rails: runtime/rail_plan.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/bytes.h"
#include "runtime/rail_plan.h"
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
  std::uint8_t lmc = 0;              ///< of InfiniBand: it answers to 2^lmc LIDs
  std::uint8_t members = 1;          ///< of the bond that its network interface is
  std::uint32_t mbps = 0;            ///< 0: not known
  std::string interface;             ///< "eth0"; empty: none, or not known
  std::string bond;                  ///< that its network interface is a member of
  std::optional<Distance> distance;  ///< from where its side's data is
  std::vector<Gid> gids;             ///< by index, at most max_gids

  [[nodiscard]] std::uint8_t path_mask() const { return static_cast<std::uint8_t>((1U << lmc) - 1); }

  void pack(Writer& out) const;
  /// Makes `in` bad() where it is no port.
  static Port unpack(Reader& in);
};
inline constexpr std::size_t max_gids = 16;
inline constexpr std::size_t max_ports = 8;
inline constexpr std::uint8_t max_lmc = 7, max_members = 8;
inline constexpr std::size_t max_name = 64;  ///< of a port, an interface or a home, as a peer may send it

/// Where a side's data is, as its peer learns of it.
void pack(const RailHome& home, Writer& out);
/// Makes `in` bad() where it is none.
RailHome unpack_home(Reader& in);

struct GidPair {
  Gid mine, theirs;
};
/// The pairs that may work, the likeliest first: of one type and one family, RoCE v2 before v1, in one subnet
/// before not, IPv4 before IPv6, global before link-local. The same for both sides but for who is `mine`.
std::vector<GidPair> gid_candidates(const Port& mine, const Port& theirs);

/// Whether two addresses need no router between them.
bool one_subnet(const Gid& a, const Gid& b);

/// What the plan of rails (runtime/rail_plan.h) is made from. The side with the greater id is asked first.
RailSide rail_side_of(std::uint64_t id, const std::vector<Port>& ports, const RailHome& home);

}  // namespace cenote::transport::verbs
