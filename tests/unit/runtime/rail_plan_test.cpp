// Plans between recorded machines (tests/data/topology), compared with tests/data/rail_plan as text; and the
// rules that hold for all.
#include "runtime/rail_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>
#include <set>

#include "tests/test_paths.h"

// As in topology_test.cpp: hwloc keeps what it made.
extern "C" const char* __lsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier): its name
extern "C" const char* __lsan_default_suppressions() {
  return "leak:hwloc_alloc_setup_object\nleak:libhwloc.so";
}

namespace cenote {
namespace {

using testing::HasSubstr;

std::string data(const std::string& name) { return std::string(CENOTE_SOURCE_DIR) + "/tests/data/" + name; }

Topology machine(const std::string& name) {
  auto topology = Topology::from_xml_file(data("topology/" + name + ".xml"));
  EXPECT_TRUE(topology) << topology.error().message();
  return topology ? std::move(*topology) : Topology{};
}

std::string expected(const std::string& name) {
  std::ifstream file(data("rail_plan/" + name + ".txt"));
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

RailPort infiniband(const std::string& name, std::uint32_t gbps, const std::string& subnet = "fabric") {
  RailPort port;
  port.name = name;
  port.link = RailLink::infiniband;
  port.mbps = gbps * 1000;
  port.addresses = {{0, subnet}};
  return port;
}

/// With an IPv4 and an IPv6 address for RoCE v2.
RailPort roce(const std::string& name, std::uint32_t gbps, const std::string& subnet) {
  RailPort port;
  port.name = name;
  port.link = RailLink::ethernet;
  port.mbps = gbps * 1000;
  port.addresses = {{4, subnet}, {6, "fe80::"}};
  return port;
}

RailSide side(const std::string& id, const Topology& topology, std::vector<RailPort> ports,
              const std::string& near) {
  auto made = rail_side(id, topology, std::move(ports), near);
  EXPECT_TRUE(made) << made.error().message();
  return made ? std::move(*made) : RailSide{};
}

using Links = std::vector<std::tuple<std::size_t, std::size_t, bool, std::uint32_t>>;
Links links(const RailPlan& plan, bool turned = false) {
  Links out;
  for (const auto& rail : plan.rails)
    out.emplace_back(turned ? rail.theirs : rail.mine, turned ? rail.mine : rail.theirs, rail.spare,
                     rail.share);
  return out;
}

/// The text of the plan, which must be the one that the other side makes, too.
std::string plan(const RailSide& a, const RailSide& b, std::size_t most = 8) {
  const auto here = plan_rails(a, b, most), there = plan_rails(b, a, most);
  EXPECT_EQ(links(here), links(there, true));
  const auto text = text_of(here, a, b);
  EXPECT_EQ(text, text_of(there, b, a));
  return text;
}

TEST(RailPlan, SingleNic) {
  const auto one = machine("single_nic");
  const std::vector<RailPort> ports{roce("mlx5_0:1", 100, "10.1")};
  EXPECT_EQ(plan(side("a", one, ports, "cuda0"), side("b", one, ports, "cuda0")) +
                plan(side("a", one, ports, ""), side("b", one, ports, "numa:0")),
            expected("single_nic"));
}

TEST(RailPlan, EightGpusAndEightNics) {
  const auto server = machine("eight_gpus_eight_nics");
  std::vector<RailPort> ports;
  for (int i = 0; i < 8; ++i) ports.push_back(infiniband("mlx5_" + std::to_string(i) + ":1", 400));
  std::string text;
  for (int i = 0; i < 8; ++i) {
    const auto gpu = "cuda" + std::to_string(i);
    text += plan(side("a", server, ports, gpu), side("b", server, ports, gpu));
  }
  text += plan(side("a", server, ports, "cuda1"), side("b", server, ports, "cuda6"));
  ports[1].up = false;  // the card of cuda1: the others of its socket are the nearest then
  text += plan(side("a", server, ports, "cuda1"), side("b", server, ports, "cuda1"));
  text += plan(side("a", server, ports, "numa:1"), side("b", server, ports, "numa:0"), 4);
  EXPECT_EQ(text, expected("eight_gpus_eight_nics"));
}

TEST(RailPlan, DualRail) {
  const auto server = machine("dual_rail");
  std::vector<RailPort> ports{infiniband("mlx5_0:1", 200), infiniband("mlx5_1:1", 200)};
  auto text = plan(side("a", server, ports, ""), side("b", server, ports, ""));
  text += plan(side("a", server, ports, "numa:1"), side("b", server, ports, "numa:1"));
  auto swapped = ports;  // the other machine is cabled the other way round, each rail a subnet of its own
  ports[0].addresses[0].subnet = swapped[1].addresses[0].subnet = "rail 0";
  ports[1].addresses[0].subnet = swapped[0].addresses[0].subnet = "rail 1";
  text += plan(side("a", server, ports, ""), side("b", server, swapped, ""));
  swapped[1].mbps = 100'000;
  text += plan(side("a", server, ports, ""), side("b", server, swapped, ""));
  EXPECT_EQ(text, expected("dual_rail"));
}

TEST(RailPlan, NicBehindTheWrongSocket) {
  const auto wrong = machine("nic_behind_the_wrong_socket"), right = machine("two_socket_gpu_server");
  const std::vector<RailPort> one{roce("mlx5_0:1", 100, "10.1")};
  const std::vector<RailPort> two{roce("mlx5_0:1", 100, "10.1"), roce("mlx5_1:1", 100, "10.1")};
  // The only card is taken, though it is far; where there is a choice, the near one of the peer's.
  EXPECT_EQ(plan(side("a", wrong, one, "cuda0"), side("b", wrong, one, "cuda0")) +
                plan(side("a", wrong, one, "cuda0"), side("b", right, two, "cuda3")) +
                plan(side("a", right, two, "cuda3"), side("b", right, two, "cuda3")),
            expected("nic_behind_the_wrong_socket"));
}

TEST(RailPlan, NvlinkDomainOverSeveralHosts) {
  const auto tray = machine("nvlink_domain");
  std::vector<RailPort> ports;
  for (int i = 0; i < 4; ++i) ports.push_back(infiniband("mlx5_" + std::to_string(i) + ":1", 400));
  auto a = side("tray-a", tray, ports, "cuda0"), b = side("tray-b", tray, ports, "cuda2");
  auto elsewhere = side("tray-c", tray, ports, "cuda0");
  a.home.nvlink = b.home.nvlink = "3f2a-77 clique 1";
  elsewhere.home.nvlink = "3f2a-77 clique 2";
  EXPECT_EQ(plan(a, b) + plan(a, elsewhere), expected("nvlink_domain"));
}

TEST(RailPlan, RoceBond) {
  const auto bonded = machine("roce_bond");
  std::vector<RailPort> ports{roce("mlx5_bond_0:1", 200, "10.1"), roce("irdma0:1", 100, "10.2"),
                              roce("rxe0:1", 100, "10.3")};
  ports[0].interface = "bond0";
  ports[0].members = 2;
  ports[2].interface = "eth1";  // a software device over a member of the bond
  ports[2].bond = "bond0";
  const std::vector<RailPort> plain{roce("mlx5_0:1", 100, "10.1"), roce("mlx5_1:1", 100, "10.1")};
  auto text = plan(side("a", bonded, ports, "cuda0"), side("b", bonded, ports, "cuda0"));
  text += plan(side("a", bonded, ports, "cuda0"), side("b", machine("two_socket_gpu_server"), plain, ""));
  ports[0].up = false;  // nothing carries the member's data then
  text += plan(side("a", bonded, ports, ""), side("b", bonded, ports, ""));
  EXPECT_EQ(text, expected("roce_bond"));
}

TEST(RailPlan, SaysWhyNoRailIsThere) {
  const Topology none;
  auto down = roce("mlx5_1:1", 100, "10.1");
  down.up = false;
  auto other_kind = roce("mlx5_2:1", 100, "10.1");
  other_kind.addresses = {{9, "10.1"}};
  const auto a = side("a", none, {infiniband("mlx5_0:1", 100), down, other_kind}, "");
  const auto b = side("b", none, {roce("mlx5_0:1", 100, "10.1")}, "");
  EXPECT_EQ(plan(a, b),
            "a <> b\n"
            "  no rail\n"
            "  left    a mlx5_0:1: b has no InfiniBand port that is up\n"
            "  left    a mlx5_1:1: it is down\n"
            "  left    a mlx5_2:1: no port of b has an address of a kind that it has\n"
            "  left    b mlx5_0:1: no port of a has an address of a kind that it has\n");
}

TEST(RailPlan, WithoutATopologyPortsJoinByNumber) {
  std::vector<RailPort> three{roce("x:1", 0, "10.1"), roce("y:1", 0, "10.1"), roce("z:1", 0, "10.1")};
  const RailSide a{"a", three, {}}, b{"b", {three[0], three[1]}, {}};
  EXPECT_EQ(links(plan_rails(a, b)), (Links{{0, 0, false, 500}, {1, 1, false, 500}}));
  EXPECT_EQ(links(plan_rails(a, b, 1)), (Links{{0, 0, false, 1000}}));
}

TEST(RailPlan, WhatIsNotThereIsAnErrorThatSaysWhatIs) {
  const auto server = machine("two_socket_gpu_server");
  const auto gpu = rail_side("a", server, {}, "cuda9"), node = rail_side("a", server, {}, "numa:7");
  ASSERT_FALSE(gpu);
  ASSERT_FALSE(node);
  EXPECT_EQ(gpu.error().code, ErrorCode::not_found);
  EXPECT_THAT(gpu.error().message(), HasSubstr("it has cuda0, nvml1, cuda2, cuda3"));
  EXPECT_THAT(node.error().message(), HasSubstr("no NUMA node '7'"));
  EXPECT_FALSE(rail_side("a", server, {}, "mlx5_0")) << "a card is no place where data lies";
}

/// Any two machines: ports of all sorts, few subnets and distances, so that ties are many.
RailSide any_side(std::mt19937_64& random, const std::string& id) {
  RailSide made{id, {}, {}};
  const auto below = [&random](std::uint64_t bound) { return random() % bound; };
  made.home.kind = static_cast<RailHome::Kind>(below(3));
  made.home.number = static_cast<std::uint8_t>(below(8));
  const auto count = below(9);
  for (std::uint64_t i = 0; i < count; ++i) {
    auto port = below(2) != 0 ? roce("p" + std::to_string(i), 0, std::to_string(below(3)))
                              : infiniband("p" + std::to_string(i), 0, std::to_string(below(2)));
    port.up = below(5) != 0;
    port.mbps = static_cast<std::uint32_t>(below(3)) * 100'000;
    port.members = static_cast<std::uint8_t>(1 + below(2));
    port.interface = "n" + std::to_string(below(3));
    if (below(4) == 0) port.bond = "n" + std::to_string(below(3));
    if (below(4) != 0) port.distance = static_cast<Distance>(below(6));
    made.ports.push_back(port);
  }
  return made;
}

TEST(RailPlan, BothSidesMakeOnePlanWhateverTheMachines) {
  std::mt19937_64 random(20260);
  for (int round = 0; round < 3000; ++round) {
    const auto a = any_side(random, "a"), b = any_side(random, "b");
    const std::size_t most = 1 + random() % 8;
    const auto made = plan_rails(a, b, most);
    const auto text = plan(a, b, most);
    ASSERT_FALSE(HasFailure()) << "round " << round << "\n" << text;
    ASSERT_LE(made.rails.size(), most);
    std::uint32_t total = 0;
    std::set<std::size_t> mine;
    bool spares = false;
    for (const auto& rail : made.rails) {
      total += rail.share;
      mine.insert(rail.mine);
      EXPECT_TRUE(a.ports[rail.mine].up && b.ports[rail.theirs].up);
      EXPECT_EQ(a.ports[rail.mine].link, b.ports[rail.theirs].link);
      EXPECT_FALSE(spares && !rail.spare) << text;
      EXPECT_EQ(rail.spare, rail.share == 0) << text;
      spares = spares || rail.spare;
    }
    EXPECT_EQ(total, made.rails.empty() ? 0U : 1000U) << text;
    for (const auto& left : made.mine_left) EXPECT_TRUE(mine.insert(left.port).second) << text;
    ASSERT_EQ(mine.size(), a.ports.size()) << "each port has a rail or a reason\n" << text;
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

}  // namespace
}  // namespace cenote
