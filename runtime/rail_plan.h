// Which ports of two machines are joined to rails, in what order and for which share of the data: a pure
// function of what each side knows of itself and the other. It needs no asking: either side computes the
// other's plan, mirrored.
//
//   - Ports join that are up, of one link layer, and have addresses of one kind; those in one subnet first.
//   - Near a GPU, only the nearest ports carry data: the way through the processor or to another socket is
//     slower than the card, and other GPUs need those cards. The others are spares, for when no rail is left.
//   - Near memory of the host, every port carries data; the nearest stand first.
//   - Then faster before slower, equals with equals; then by number, each GPU beginning at its own.
//   - A bond's port takes a rail for each member, and its members' own ports none.
//   - GPUs of one NVLink domain are reached over it, by no port.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/result.h"
#include "runtime/topology.h"

namespace cenote {

enum class RailLink : std::uint8_t { infiniband, ethernet };

/// Two ports can talk between addresses of one kind; without a router, only within one subnet.
struct RailAddress {
  std::uint16_t kind = 0;
  std::string subnet;
  bool operator==(const RailAddress&) const = default;
};

struct RailPort {
  std::string name;  ///< "mlx5_0:1"
  RailLink link{};
  bool up = true;
  std::uint32_t mbps = 0;  ///< 0: not known
  std::vector<RailAddress> addresses;
  std::string interface;             ///< its network device: "eth0", "bond0"; empty: none, or not known
  std::string bond;                  ///< that its network device is a member of
  std::uint8_t members = 1;          ///< of the bond that its network device is
  std::optional<Distance> distance;  ///< from where the data is
};

/// Where the data is.
struct RailHome {
  enum class Kind : std::uint8_t { anywhere, host, gpu };
  Kind kind = Kind::anywhere;
  std::string name;         ///< "cuda3", "numa 1"
  std::uint8_t number = 0;  ///< among the GPUs of its machine
  std::string nvlink;       ///< NVLink domain: cluster and clique; empty: none, or (verbs) of no use there
};

struct RailSide {
  std::string id;  ///< the two sides' differ: says whose ports are asked first, the greater's
  std::vector<RailPort> ports;
  RailHome home;
  std::string label;  ///< what this side calls it; empty: its id
};

/// A side whose data lies near a device of the topology ("cuda0", a bus id), a NUMA node ("numa:1") or
/// anywhere (""). A port belongs to the device that its name begins with. Errors: not_found, with what there
/// is; invalid_argument.
Result<RailSide> rail_side(std::string id, const Topology& topology, std::vector<RailPort> ports,
                           std::string_view near);

struct RailPlan {
  struct Rail {
    std::size_t mine = 0, theirs = 0;  ///< ports by number
    bool spare = false;                ///< carries data only when no other is left
    bool one_subnet = false;
    std::uint32_t mbps = 0;   ///< of the slower end; 0: not known
    std::uint32_t share = 0;  ///< of the data, in thousandths
  };
  struct LeftOut {
    std::size_t port = 0;
    std::string why;
  };
  bool nvlink = false;
  std::vector<Rail> rails;  ///< best first, spares last
  std::vector<LeftOut> mine_left, theirs_left;
};

/// At most `most` rails, spares included.
RailPlan plan_rails(const RailSide& mine, const RailSide& theirs, std::size_t most = 8);

/// For people: each rail and each port left out with its reason. The same text on both sides,
/// where the sides have no labels.
std::string text_of(const RailPlan& plan, const RailSide& mine, const RailSide& theirs);
/// The same of one rail: "a mlx5_0:1 <> b mlx5_1:1  share 50.0 %  InfiniBand 400 Gb/s, one subnet; ...".
std::string text_of(const RailPlan::Rail& rail, const RailSide& mine, const RailSide& theirs);

std::string_view to_string(RailLink link);
/// "400 Gb/s".
std::string speed_text(std::uint32_t mbps);

}  // namespace cenote
