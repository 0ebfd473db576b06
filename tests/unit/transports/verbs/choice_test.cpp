// What is chosen for the rails of a connection, seen in the queue pairs that the card was given and in the
// log: ports by nearness, path bits, and the reason of each choice.
#include <gmock/gmock.h>

#include <mutex>
#include <random>
#include <set>

#include "runtime/log.h"
#include "tests/unit/transports/pair.h"
#include "tests/unit/transports/verbs/recorded_machine.h"
#include "tests/unit/transports/verbs/scripted_provider.h"
#include "transports/side_channel.h"
#include "transports/verbs/port.h"
#include "transports/verbs/verbs.h"

namespace cenote::transport::test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using verbs::test::DeviceSpec;
using verbs::test::infiniband_device;
using verbs::test::QueuePairView;
using verbs::test::RecordedMachine;
using verbs::test::roce_device;
using verbs::test::ScriptedFabric;

/// Two processes, a transport each, and what the first writes into its log.
struct Two {
  Two(const std::vector<DeviceSpec>& left_devices, const std::vector<DeviceSpec>& right_devices) {
    add(0, left_devices);
    add(1, right_devices);
    LogOptions to;
    to.level = LogLevel::debug;
    to.sink = [this](std::string_view line) { lines.emplace_back(line); };
    log = Logger::create(to).value();
    options[0].log = log.get();
  }
  void add(std::size_t which, const std::vector<DeviceSpec>& devices) {
    std::vector<std::string> names;
    for (const auto& device : devices) {
      fabric.add_device(device);
      names.push_back(device.name);
    }
    apis[which] = fabric.process(which == 0 ? "left" : "right", names).api();
    options[which].api = apis[which].get();
  }
  void start() {
    for (std::size_t i : {0, 1}) transports[i] = make_verbs_transport(options[i]).value();
  }
  /// One more connection, settled.
  void connect() {
    const auto channel = static_cast<std::uint32_t>(endpoints.size());
    auto there = transports[0]->connect(transports[1]->address(), "right", channel, soon()).value();
    auto back = transports[1]->connect(transports[0]->address(), "left", channel, soon()).value();
    ASSERT_TRUE(there->put({}, {}, 1, 1));
    ASSERT_TRUE(back->put({}, {}, 1, 1));
    ASSERT_TRUE(until([&] { return there->signal(1) == 1 && back->signal(1) == 1; }))
        << (there->failure() ? there->failure()->message() : "silence");
    endpoints.push_back(std::move(there));
    endpoints.push_back(std::move(back));
  }
  bool until(const std::function<bool()>& done) const {
    return drive({transports[0].get(), transports[1].get()}, done);
  }
  [[nodiscard]] std::vector<QueuePairView> queue_pairs(const std::string& process) const {
    std::vector<QueuePairView> out;
    for (auto& view : fabric.queue_pairs())
      if (view.process == process && view.state == IBV_QPS_RTS) out.push_back(view);
    return out;
  }

  ScriptedFabric fabric;
  std::shared_ptr<const verbs::VerbsApi> apis[2];
  VerbsOptions options[2];
  std::vector<std::string> lines;
  std::unique_ptr<Logger> log;
  std::unique_ptr<Transport> transports[2];
  std::vector<std::unique_ptr<Endpoint>> endpoints;
};

DeviceSpec infiniband(const std::string& name, std::uint16_t lid, std::uint8_t lmc) {
  auto spec = infiniband_device(name, lid);
  spec.ports[0].lmc = lmc;
  return spec;
}

using Lids = std::pair<int, int>;  // where a queue pair sends from, and to
std::multiset<Lids> lids(const std::vector<QueuePairView>& views, int own_lid) {
  std::multiset<Lids> out;
  for (const auto& view : views)
    out.emplace(own_lid + view.attributes.ah_attr.src_path_bits, view.attributes.ah_attr.dlid);
  return out;
}
std::multiset<Lids> turned(const std::multiset<Lids>& lids) {
  std::multiset<Lids> out;
  for (const auto& [from, to] : lids) out.emplace(to, from);
  return out;
}

TEST(Settings, ThatDifferAtTheTwoSidesComeToTheLesser) {
  for (const int lesser : {0, 1}) {
    Two two({roce_device("a0", "10.0.0.1"), roce_device("a1", "10.0.1.1")},
            {roce_device("b0", "10.0.0.2"), roce_device("b1", "10.0.1.2")});
    two.options[lesser].rails = 1;
    two.options[lesser].mtu = 512;
    two.start();
    two.connect();
    if (HasFatalFailure()) return;
    for (const auto* process : {"left", "right"}) {
      const auto pairs = two.queue_pairs(process);
      ASSERT_EQ(pairs.size(), 1U) << process;
      EXPECT_EQ(pairs[0].attributes.path_mtu, IBV_MTU_512) << process;
    }
  }
}

TEST(Settings, AnMtuThatIsNoneIsAnErrorThatNamesTheSetting) {
  for (const std::uint32_t mtu : {1U, 128U, 1000U, 8192U}) {
    Two two({roce_device("a0", "10.0.0.1")}, {roce_device("b0", "10.0.0.2")});
    two.options[0].mtu = mtu;
    const auto made = make_verbs_transport(two.options[0]);
    ASSERT_FALSE(made) << mtu;
    EXPECT_EQ(made.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(made.error().message(), HasSubstr("verbs.mtu is " + std::to_string(mtu)));
  }
}

TEST(Settings, APortThatADeviceDoesNotHaveIsSaidToBeMissing) {
  Two two({roce_device("a0", "10.0.0.1")}, {roce_device("b0", "10.0.0.2")});
  two.options[0].devices = {"a0:2"};
  const auto made = make_verbs_transport(two.options[0]);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message(), HasSubstr("a0 has 1"));
}

TEST(PathBits, EachConnectionTakesTheNextPathOfEitherPort) {
  Two two({infiniband("a0", 0x20, 2)}, {infiniband("b0", 0x30, 1)});
  two.start();
  for (int i = 0; i < 4; ++i) two.connect();
  if (HasFatalFailure()) return;
  const auto there = lids(two.queue_pairs("left"), 0x20), back = lids(two.queue_pairs("right"), 0x30);
  EXPECT_EQ(there, (std::multiset<Lids>{{0x20, 0x30}, {0x21, 0x31}, {0x22, 0x30}, {0x23, 0x31}}));
  EXPECT_EQ(back, turned(there)) << "each end sends to where the other sends from";
  EXPECT_THAT(two.lines, Contains(HasSubstr("path bits 1 > 1, the next of each port")));
  EXPECT_TRUE(two.fabric.violations().empty());
}

TEST(PathBits, ASettingNamesThePathOfItsSide) {
  Two two({infiniband("a0", 0x20, 2)}, {infiniband("b0", 0x30, 1)});
  two.options[0].path_bits = 3;
  two.start();
  for (int i = 0; i < 2; ++i) two.connect();
  EXPECT_EQ(lids(two.queue_pairs("left"), 0x20), (std::multiset<Lids>{{0x23, 0x30}, {0x23, 0x31}}));
  EXPECT_THAT(two.lines, Contains(HasSubstr("path bits 3 > 1, by verbs.path_bits")));
}

TEST(PathBits, OneThatAPortDoesNotHaveIsAnErrorThatNamesTheSetting) {
  Two two({infiniband("a0", 0x20, 1)}, {infiniband("b0", 0x30, 0)});
  two.options[0].path_bits = 2;
  const auto made = make_verbs_transport(two.options[0]);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(made.error().message(), HasSubstr("verbs.path_bits is 2, its LMC of 1 has paths 0 to 1"));
  two.options[1].path_bits = 0;
  EXPECT_TRUE(make_verbs_transport(two.options[1])) << "path 0 is always there";
}

TEST(PathBits, PortsOfLmcZeroAndRoceHaveOnePath) {
  Two two({infiniband("a0", 0x20, 0)}, {infiniband("b0", 0x30, 0)});
  two.start();
  for (int i = 0; i < 2; ++i) two.connect();
  EXPECT_EQ(lids(two.queue_pairs("left"), 0x20), (std::multiset<Lids>{{0x20, 0x30}, {0x20, 0x30}}));
  EXPECT_THAT(two.lines, Contains(HasSubstr("one path: both ports have LMC 0")));
  Two roce({roce_device("a0", "10.0.0.1")}, {roce_device("b0", "10.0.0.2")});
  roce.options[0].path_bits = 5;  // of InfiniBand only
  roce.start();
  roce.connect();
  EXPECT_EQ(roce.queue_pairs("left").at(0).attributes.ah_attr.src_path_bits, 0);
}

TEST(Choices, AreLoggedWithTheirReasons) {
  auto small = roce_device("b0", "10.0.0.2");
  small.ports[0].active_mtu = IBV_MTU_1024;
  Two two({roce_device("a0", "10.0.0.1")}, {small});
  two.start();
  two.connect();
  EXPECT_THAT(two.lines,
              Contains(testing::AllOf(HasSubstr("rail to right: a0:1 10.0.0.1 > b0:1 10.0.0.2"),
                                      HasSubstr("path mtu 1024, the lesser of the ports' 4096 and 1024"),
                                      HasSubstr("gid 3 > 3, RoCE v2 IPv4 in one subnet, the likeliest of"),
                                      HasSubstr("timeout 14 (0.0671 s), longer than"),
                                      HasSubstr("retries 6, as many as"),
                                      HasSubstr("service level 0, the fabric's default"),
                                      HasSubstr("traffic class 0, the network's default"))));
  EXPECT_EQ(two.queue_pairs("left").at(0).attributes.path_mtu, IBV_MTU_1024);
}

TEST(Choices, OfSettingsAreLoggedAsSuch) {
  Two two({roce_device("a0", "10.0.0.1")}, {roce_device("b0", "10.0.0.2")});
  two.options[0].mtu = two.options[1].mtu = 2048;
  two.options[0].timeout = 10;
  two.options[0].retries = 5;
  two.options[0].service_level = 3;
  two.options[0].traffic_class = 106;
  two.options[0].gid_index = 3;
  two.start();
  two.connect();
  EXPECT_THAT(two.lines, Contains(testing::AllOf(HasSubstr("path mtu 2048, by verbs.mtu"),
                                                 HasSubstr("by verbs.gid_index"),
                                                 HasSubstr("timeout 10 (0.00419 s), by verbs.timeout"),
                                                 HasSubstr("retries 5, by verbs.retries"),
                                                 HasSubstr("service level 3, by verbs.service_level"),
                                                 HasSubstr("traffic class 106, by verbs.traffic_class"))));
}

TEST(Choices, AGidThatIsNotTheLikeliestSaysWhy) {
  Two two({roce_device("a0", "10.0.0.1")}, {roce_device("b0", "10.0.0.2")});
  two.fabric.break_gid("b0", 1, 3);
  two.start();
  two.connect();
  EXPECT_THAT(two.lines, Contains(HasSubstr("pairs: no write went over those before it")));
}

/// The healthy machine twice; the first one's data is near its GPU, whose card is mlx5_0.
struct Near : Two {
  explicit Near(std::string near)
      : Two({roce_device("mlx5_1", "10.1.1.1"), roce_device("mlx5_0", "10.1.0.1")},
            {roce_device("peer0", "10.1.0.2"), roce_device("peer1", "10.1.1.2")}),
        machine("healthy_roce") {
    options[0].system_root = machine.root();
    options[0].near = std::move(near);
  }
  RecordedMachine machine;
};

TEST(NearestPort, CarriesTheDataOfAGpuAndTheOtherIsASpare) {
  Near two("0000:1a:00.0");
  two.start();
  two.connect();
  EXPECT_THAT(two.lines, Contains(HasSubstr("rail 0  here mlx5_0:1 <> right peer")));
  EXPECT_THAT(two.lines, Contains(testing::AllOf(HasSubstr("mlx5_0:1"), HasSubstr("share 100.0 %"),
                                                 HasSubstr("here 0000:1a:00.0: same switch"))));
  EXPECT_THAT(two.lines, Contains(testing::AllOf(HasSubstr("mlx5_1:1"), HasSubstr("spare: others are nearer"),
                                                 HasSubstr("here 0000:1a:00.0: across NUMA nodes"))));
  // A large put leaves by the near one alone.
  const auto source = region(*two.transports[0], 8 << 20), target = region(*two.transports[1], 8 << 20);
  const Bytes data = pattern(8 << 20, 5);
  std::memcpy(source->bytes().data(), data.data(), data.size());
  two.fabric.lagging(3);
  ASSERT_TRUE(two.endpoints[0]->put(source->bytes(), {&target->key(), 0}, 2, 2));
  std::uint64_t far = 0, near = 0;
  ASSERT_TRUE(two.until([&] {
    for (const auto& view : two.queue_pairs("left"))
      (view.device == "mlx5_0" ? near : far) =
          std::max(view.device == "mlx5_0" ? near : far, view.outstanding);
    return two.endpoints[1]->signal(2) == 1;
  }));
  EXPECT_GT(near, 0U);
  EXPECT_EQ(far, 0U) << "the spare carried data";
  EXPECT_TRUE(same(target->bytes(), data));
}

TEST(NearestPort, GoneLeavesTheDataToTheSpare) {
  Near two("0000:1a:00.0");
  two.start();
  two.connect();
  two.fabric.link_down("mlx5_0");
  const auto source = region(*two.transports[0], 4 << 20), target = region(*two.transports[1], 4 << 20);
  const Bytes data = pattern(4 << 20, 6);
  std::memcpy(source->bytes().data(), data.data(), data.size());
  ASSERT_TRUE(two.endpoints[0]->put(source->bytes(), {&target->key(), 0}, 2, 2));
  ASSERT_TRUE(two.until([&] { return two.endpoints[1]->signal(2) == 1; }));
  EXPECT_TRUE(same(target->bytes(), data));
  EXPECT_FALSE(two.endpoints[0]->failure());
}

TEST(NearestPort, StandsFirstForMemoryOfTheHostAndAllCarry) {
  Near two("numa:1");
  two.start();
  two.connect();
  EXPECT_THAT(two.lines,
              Contains(testing::AllOf(HasSubstr("rail 0"), HasSubstr("mlx5_1:1"), HasSubstr("share 50.0 %"),
                                      HasSubstr("numa 1: same NUMA node"))));
  EXPECT_THAT(two.lines, Contains(testing::AllOf(HasSubstr("rail 1"), HasSubstr("mlx5_0:1"),
                                                 HasSubstr("share 50.0 %"))));
}

TEST(NearestPort, IsThatOfTheNodeWhichTheProcessIsBoundTo) {
  Near two("");
  two.machine.add("/proc/self/status = Cpus_allowed_list:\\t2-3");
  two.start();
  two.connect();
  EXPECT_THAT(two.lines,
              Contains(testing::AllOf(HasSubstr("rail 0"), HasSubstr("mlx5_1:1"), HasSubstr("here numa 1"))));
}

TEST(NearestPort, OfNowhereIsAnErrorThatNamesTheSetting) {
  for (const auto* near : {"0000:ff:00.0", "numa:7", "cuda0"}) {
    Near two(near);
    const auto made = make_verbs_transport(two.options[0]);
    ASSERT_FALSE(made) << near;
    EXPECT_THAT(made.error().message(), HasSubstr("verbs.near"));
  }
}

TEST(NearestPort, ABondTakesARailForEachMember) {
  Two two({roce_device("mlx5_0", "10.1.0.1")},
          {roce_device("peer0", "10.1.0.2"), roce_device("peer1", "10.1.0.3")});
  const RecordedMachine machine("bond");
  two.options[0].system_root = machine.root();
  two.start();
  two.connect();
  EXPECT_EQ(two.queue_pairs("left").size(), 2U);
  EXPECT_THAT(two.lines, Contains(HasSubstr("here: bond0 is a bond of 2")));
}

// What a peer says of its ports is not to be trusted.

TEST(PortNote, OfTheMostPortsWithTheLongestNamesFitsTheSideChannel) {
  verbs::Port port;
  port.name = std::string(verbs::max_name + 2, 'd');
  port.interface = port.bond = std::string(15, 'i');
  port.gids.resize(verbs::max_gids);
  RailHome home;
  home.name = std::string(verbs::max_name, 'h');
  Writer note;
  verbs::pack(home, note);
  note.put(std::uint8_t{verbs::max_ports});
  for (std::size_t i = 0; i < verbs::max_ports; ++i) port.pack(note);
  EXPECT_LE(note.bytes().size(), SideChannel::max_body);
}

TEST(PortNote, ArrivesAsItWasSent) {
  verbs::Port port;
  port.name = "mlx5_0:1";
  port.link_layer = verbs::LinkLayer::infiniband;
  port.lmc = 3;
  port.members = 2;
  port.mbps = 400'000;
  port.interface = "bond0";
  port.bond = "br1";
  port.distance = Distance::several_switches;
  RailHome home{RailHome::Kind::gpu, "0000:1a:00.0", 3, {}};
  Writer note;
  verbs::pack(home, note);
  port.pack(note);
  Reader in(note.bytes());
  const auto got_home = verbs::unpack_home(in);
  const auto got = verbs::Port::unpack(in);
  ASSERT_TRUE(in.finished());
  EXPECT_EQ(std::tie(got_home.kind, got_home.name, got_home.number),
            std::tie(home.kind, home.name, home.number));
  EXPECT_EQ(std::tie(got.lmc, got.members, got.mbps, got.interface, got.bond, got.distance),
            std::tie(port.lmc, port.members, port.mbps, port.interface, port.bond, port.distance));
}

TEST(PortNote, WhateverItHoldsValuesStayInTheirBounds) {
  std::mt19937_64 random(7);
  verbs::Port good;
  good.name = "mlx5_0:1";
  good.gids.resize(2);
  for (int round = 0; round < 20'000; ++round) {
    Writer note;
    verbs::pack(RailHome{RailHome::Kind::gpu, "cuda0", 0, {}}, note);
    good.pack(note);
    Bytes bytes = note.take();
    for (int flips = 0; flips < 4; ++flips) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    bytes.resize(random() % (bytes.size() + 1));
    Reader in(bytes);
    const auto home = verbs::unpack_home(in);
    const auto port = verbs::Port::unpack(in);
    ASSERT_LE(home.kind, RailHome::Kind::gpu);
    ASSERT_LE(home.name.size(), verbs::max_name);
    ASSERT_LE(port.lmc, verbs::max_lmc);
    ASSERT_TRUE(port.members >= 1 && port.members <= verbs::max_members);
    ASSERT_LE(port.gids.size(), verbs::max_gids);
    for (const auto* text : {&home.name, &port.name, &port.interface, &port.bond})
      for (const char c : *text) ASSERT_TRUE(c >= ' ' && c <= '~');
    const auto mine = verbs::rail_side_of(1, {good, good}, {}),
               theirs = verbs::rail_side_of(2, {port, port}, home);
    const auto here = plan_rails(mine, theirs), there = plan_rails(theirs, mine);
    ASSERT_EQ(text_of(here, mine, theirs), text_of(there, theirs, mine));
  }
}

}  // namespace
}  // namespace cenote::transport::test
