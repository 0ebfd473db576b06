// The bound on connections that keep queue pairs: who is not used gives them up, and has them again when it
// is used; nothing is lost, doubled or reordered by it, whoever does what at the same moment.
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <map>
#include <random>

#include "tests/unit/transports/pair.h"
#include "tests/unit/transports/verbs/scripted_provider.h"
#include "tests/unit/transports/verbs/stream.h"
#include "transports/verbs/verbs.h"

namespace cenote::transport::test {
namespace {

using verbs::test::ScriptedFabric;

constexpr std::size_t cards = 2;

struct Wish {
  std::size_t machines = 4;
  std::uint32_t connections = 2;
  std::uint64_t seed = 0;                     ///< of a lagging fabric; 0: at once
  std::chrono::milliseconds rest{0};          ///< unused for this long before it is parked
  std::uint32_t channels = 1;                 ///< endpoints between any two
  std::size_t first_links = ~std::size_t{0};  ///< machines that the others connect to
};

/// Machines with two cards each, every one connected to every other.
struct Mesh {
  struct Link {
    std::size_t from = 0, to = 0;
    std::unique_ptr<Endpoint> near{}, far{};
  };

  explicit Mesh(const Wish& wish) : connections(wish.connections) {
    for (std::size_t machine = 0; machine < wish.machines; ++machine) {
      std::vector<std::string> devices;
      for (std::size_t card = 0; card < cards; ++card) {
        devices.push_back(name(machine) + std::to_string(card));
        fabric.add_device(verbs::test::roce_device(
            devices.back(), "10.0." + std::to_string(card) + "." + std::to_string(machine + 1)));
      }
      processes.push_back(fabric.process(name(machine), devices));
      apis.push_back(processes.back().api());
    }
    if (wish.seed != 0) fabric.lagging(wish.seed);
    for (const auto& api : apis) {
      VerbsOptions options;
      options.api = api.get();
      options.connections = wish.connections;
      options.rest = wish.rest;
      transports.push_back(make_verbs_transport(options).value());
    }
    for (std::size_t from = 0; from < std::min(wish.machines, wish.first_links); ++from) {
      for (std::size_t to = from + 1; to < wish.machines; ++to) {
        for (std::uint32_t channel = 0; channel < wish.channels; ++channel) connect(from, to, channel);
      }
    }
  }
  static std::string name(std::size_t machine) { return {static_cast<char>('a' + machine)}; }
  void connect(std::size_t from, std::size_t to, std::uint32_t channel) {
    links.push_back({from, to});
    links.back().near =
        transports[from]->connect(transports[to]->address(), name(to), channel, soon()).value();
    links.back().far =
        transports[to]->connect(transports[from]->address(), name(from), channel, soon()).value();
  }
  bool until(const std::function<bool()>& done) const {
    std::vector<Transport*> all;
    for (const auto& transport : transports) {
      if (transport) all.push_back(transport.get());
    }
    return drive(all, done);
  }
  /// Connections of a machine that have queue pairs.
  [[nodiscard]] std::size_t live(std::size_t machine) const {
    std::size_t count = 0;
    for (const auto& view : fabric.queue_pairs())
      count += view.process == name(machine) && view.state != IBV_QPS_RESET ? 1U : 0U;
    return (count + cards - 1) / cards;
  }
  [[nodiscard]] bool within_bound() const {
    for (std::size_t machine = 0; machine < processes.size(); ++machine) {
      if (live(machine) > connections) return false;
    }
    return true;
  }
  /// A signal each way over the link.
  void use(Link& link) {
    const auto near = link.near->signal(1), far = link.far->signal(1);
    ASSERT_TRUE(link.near->put({}, {}, 1, 0));
    ASSERT_TRUE(link.far->put({}, {}, 1, 0));
    ASSERT_TRUE(until([&] { return link.near->signal(1) == near + 1 && link.far->signal(1) == far + 1; }));
    Completion taken[4];
    ASSERT_TRUE(until([&] { return link.near->poll(taken) == 1; }));
    ASSERT_TRUE(until([&] { return link.far->poll(taken) == 1; }));
  }
  /// Parks the link, which has been used, by the use of the others.
  void park(std::size_t which) {
    Link& link = links[which];
    const auto before = link.near->stats().parked;
    ASSERT_TRUE(until([&] {
      for (std::size_t other = 0; other < links.size(); ++other) {
        if (other == which) continue;
        use(links[other]);
        if (testing::Test::HasFatalFailure()) return true;
      }
      return link.near->stats().parked != before;
    }));
    ASSERT_TRUE(until([&] { return is_parked(link); }));
  }
  static bool is_parked(const Link& link) {
    return link.near->stats().parked > link.near->stats().revived &&
           link.far->stats().parked > link.far->stats().revived;
  }
  void expect_well() const {
    for (const Link& link : links) {
      EXPECT_FALSE(link.near->failure()) << link.near->failure()->message();
      EXPECT_FALSE(link.far->failure()) << link.far->failure()->message();
    }
    EXPECT_TRUE(fabric.violations().empty()) << fabric.violations().front();
  }

  ScriptedFabric fabric;
  std::uint32_t connections;
  std::vector<verbs::test::ScriptedProcess> processes;
  std::vector<std::shared_ptr<const verbs::VerbsApi>> apis;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<Link> links;
};

/// The first of `count` seeds: others by --gtest_random_seed.
std::uint64_t first_seed(std::uint64_t count) {
  const auto given = static_cast<std::uint64_t>(testing::FLAGS_gtest_random_seed);
  return given * count + 1;
}

std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

/// Streams both ways over every link.
struct Traffic {
  explicit Traffic(Mesh& mesh, std::uint64_t seed) {
    for (auto& link : mesh.links) {
      ways.push_back(std::make_unique<Stream>(*link.near, *link.far, *mesh.transports[link.to], ++seed));
      ways.push_back(std::make_unique<Stream>(*link.far, *link.near, *mesh.transports[link.from], ++seed));
    }
  }
  void step() {
    for (const auto& way : ways) way->step();
  }
  [[nodiscard]] bool done() const {
    return std::ranges::all_of(ways, [](const auto& way) { return way->done(); });
  }
  std::vector<std::unique_ptr<Stream>> ways;
};

TEST(Parking, TrafficOverManyConnectionsLosesAndDoublesNothing) {
  for (std::uint64_t first = first_seed(4), seed = first; seed < first + 4; ++seed) {
    Mesh mesh({.seed = seed});
    Traffic traffic(mesh, seed * 100);
    std::mt19937_64 random(seed);
    for (int round = 0; round < 12; ++round) {
      for (const auto& way : traffic.ways) way->begin(random() % 4 == 0 ? random() % 4 : 0);
      // Some begin while others are being parked.
      const std::uint64_t late_at = random() % 300;
      std::uint64_t turn = 0;
      ASSERT_TRUE(mesh.until([&] {
        if (turn++ == late_at) traffic.ways[random() % traffic.ways.size()]->begin(1);
        traffic.step();
        return testing::Test::HasFatalFailure() || (turn > late_at && traffic.done());
      })) << "seed "
          << seed << " round " << round;
      if (HasFatalFailure()) return;
      ASSERT_TRUE(mesh.until([&] { return mesh.within_bound(); })) << "seed " << seed << " round " << round;
    }
    for (const auto& way : traffic.ways) way->expect_wiped();
    std::uint64_t parked = 0, revived = 0;
    for (const auto& link : mesh.links) {
      parked += link.near->stats().parked;
      revived += link.near->stats().revived;
    }
    EXPECT_GE(parked, 4U);
    EXPECT_GE(revived, 4U);
    mesh.expect_well();
    if (HasFailure()) return;
  }
}

// Both ends of every connection are over their bound at once, and ask at once.
TEST(Parking, BothSidesParkAndUseAtTheSameMoment) {
  for (std::uint64_t first = first_seed(6), seed = first; seed < first + 6; ++seed) {
    Mesh mesh({.machines = 2, .connections = 1, .seed = seed, .channels = 3});
    Traffic traffic(mesh, seed * 100);
    std::mt19937_64 random(seed);
    std::uint64_t begun = 0;
    ASSERT_TRUE(mesh.until([&] {
      if (random() % 40 == 0 && begun < 60) {
        traffic.ways[random() % traffic.ways.size()]->begin(1);
        ++begun;
      }
      traffic.step();
      return testing::Test::HasFatalFailure() || (begun == 60 && traffic.done());
    })) << "seed "
        << seed;
    if (HasFatalFailure()) return;
    ASSERT_TRUE(mesh.until([&] { return mesh.within_bound(); })) << "seed " << seed;
    for (const auto& way : traffic.ways) way->expect_wiped();
    mesh.expect_well();
    if (HasFailure()) return;
  }
}

TEST(Parking, TheOneThatWasUsedLongestAgoGoes) {
  Mesh mesh({.machines = 4, .connections = 2, .rest = 30ms, .first_links = 1});  // a to b, c and d
  const auto parked = [&](std::size_t link) { return mesh.links[link].near->stats().parked; };
  ASSERT_TRUE(mesh.until([&] { return mesh.within_bound(); }));
  for (auto& link : mesh.links) mesh.use(link);  // b, c, d: c is next after b
  ASSERT_TRUE(mesh.until([&] { return mesh.within_bound(); }));
  const std::array before{parked(0), parked(1), parked(2)};
  EXPECT_TRUE(Mesh::is_parked(mesh.links[0]));
  mesh.use(mesh.links[0]);
  ASSERT_TRUE(mesh.until([&] { return mesh.within_bound(); }));
  EXPECT_EQ(parked(0), before[0]);
  EXPECT_EQ(parked(1), before[1] + 1);
  EXPECT_EQ(parked(2), before[2]);
  mesh.expect_well();
}

TEST(Parking, WhatIsUsedKeepsItsQueuePairsAndTheBoundIsExceeded) {
  Mesh mesh({.machines = 4, .connections = 1, .rest = 60s, .first_links = 1});
  for (auto& link : mesh.links) mesh.use(link);
  const auto until = Clock::now() + 50ms;
  ASSERT_TRUE(mesh.until([&] { return Clock::now() > until; }));
  EXPECT_EQ(mesh.live(0), 3U);
  mesh.expect_well();
}

TEST(Parking, WithoutABoundNobodyIsParked) {
  Mesh mesh({.machines = 4, .connections = 0});
  for (auto& link : mesh.links) mesh.use(link);
  const auto until = Clock::now() + 50ms;
  ASSERT_TRUE(mesh.until([&] { return Clock::now() > until; }));
  EXPECT_EQ(mesh.live(0), 3U);
  for (const auto& link : mesh.links) EXPECT_EQ(link.near->stats().parked, 0U);
}

// One at a time is used, the others are idle: then it is the bound, and one more while places are changed.
TEST(Parking, OneMoreThanTheBoundWhilePlacesAreChanged) {
  Mesh mesh({.machines = 6, .connections = 2, .first_links = 1});
  for (auto& link : mesh.links) mesh.use(link);
  ASSERT_TRUE(mesh.until([&] { return mesh.within_bound(); }));
  std::mt19937_64 random(5);
  for (int i = 0; i < 30; ++i) {
    auto& link = mesh.links[random() % mesh.links.size()];
    const auto before = link.near->signal(1);
    ASSERT_TRUE(link.far->put({}, {}, 1, 0));
    ASSERT_TRUE(mesh.until([&] {
      EXPECT_LE(mesh.live(0), 3U);
      return link.near->signal(1) == before + 1;
    }));
    ASSERT_TRUE(mesh.until([&] { return mesh.within_bound(); }));
  }
  mesh.expect_well();
}

/// Either end, so that it is once the side that dialed and once the other.
class ParkingUse : public testing::TestWithParam<bool> {
 protected:
  Mesh mesh_{{.machines = 3, .connections = 1, .first_links = 1}};
  void SetUp() override {
    mesh_.use(mesh_.links[0]);
    mesh_.park(0);
  }
  Mesh::Link& link() { return mesh_.links[0]; }
  Endpoint& user() { return GetParam() ? *link().near : *link().far; }
  Endpoint& other() { return GetParam() ? *link().far : *link().near; }
  Transport& there() { return *mesh_.transports[GetParam() ? link().to : link().from]; }
  Completion finished() {
    Completion taken[1];
    EXPECT_TRUE(mesh_.until([&] { return user().poll(taken) == 1; }));
    return taken[0];
  }
};

TEST_P(ParkingUse, EveryOperationRevivesIt) {
  const auto memory = region(there(), 100'000);
  const Bytes data = pattern(100'000, 1);
  ASSERT_TRUE(user().put(data, {&memory->key(), 0}, 3, 1));
  EXPECT_FALSE(user().drained());
  ASSERT_TRUE(mesh_.until([&] { return other().signal(3) == 1; }));
  EXPECT_FALSE(finished().error);
  EXPECT_TRUE(same(memory->bytes(), data));

  mesh_.park(0);
  Bytes got(data.size());
  ASSERT_TRUE(user().get(got, {&memory->key(), 0}, 2));
  EXPECT_FALSE(finished().error);
  EXPECT_EQ(got, data);

  mesh_.park(0);
  std::uint64_t old = 0;
  std::memset(memory->bytes().data(), 0, 8);
  ASSERT_TRUE(user().atomic_add({&memory->key(), 0}, 5, &old, 3));
  EXPECT_FALSE(finished().error);
  EXPECT_EQ(memory->bytes()[0], std::byte{5});

  mesh_.park(0);
  std::byte buffer[16];
  ASSERT_TRUE(user().send(pattern(16, 4)));
  ASSERT_TRUE(mesh_.until([&] {
    const auto taken = other().receive(buffer);
    return taken && *taken;
  }));
  EXPECT_TRUE(same(buffer, pattern(16, 4)));
  mesh_.expect_well();
}

TEST_P(ParkingUse, AFarewellIsHeardWhileParked) {
  user().close("enough");
  ASSERT_TRUE(mesh_.until([&] { return other().failure().has_value(); }));
  EXPECT_EQ(other().failure()->code, ErrorCode::peer_failed);
  EXPECT_NE(other().failure()->cause.find("enough"), std::string::npos) << other().failure()->message();
}

/// Ends the sockets of this process that belong to connections, as its death would: without a word.
void cut_sockets() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && peer.sin_family == AF_INET)
      (void)::shutdown(fd, SHUT_RDWR);
  }
}

TEST_P(ParkingUse, ADeathIsNoticedWhileParked) {
  cut_sockets();
  ASSERT_TRUE(mesh_.until([&] { return user().failure().has_value(); }));
  EXPECT_EQ(user().failure()->code, ErrorCode::peer_failed);
  EXPECT_NE(user().failure()->cause.find("process ended"), std::string::npos) << user().failure()->message();
}

TEST_P(ParkingUse, APortThatIsDownOnlyForAWhileIsNoError) {
  for (const auto* device : {"a0", "a1"}) mesh_.fabric.link_down(device);
  ASSERT_TRUE(user().put({}, {}, 3, 1));
  const auto back = Clock::now() + 300ms;
  ASSERT_TRUE(mesh_.until([&] { return Clock::now() > back; }));
  EXPECT_EQ(other().signal(3), 0U);
  for (const auto* device : {"a0", "a1"}) mesh_.fabric.link_up(device);
  ASSERT_TRUE(mesh_.until([&] { return other().signal(3) == 1; }));
  EXPECT_FALSE(user().failure());
  EXPECT_FALSE(other().failure());
}

TEST_P(ParkingUse, APeerThatCannotBeReachedAnyMoreIsAnErrorThatSaysWhy) {
  for (const auto* device : {"a0", "a1"}) mesh_.fabric.link_down(device);
  ASSERT_TRUE(user().put({}, {}, 3, 1));
  ASSERT_TRUE(mesh_.until([&] { return user().failure() && other().failure(); }));
  EXPECT_EQ(user().failure()->code, ErrorCode::peer_failed);
  EXPECT_NE(user().failure()->cause.find("every rail is gone"), std::string::npos)
      << user().failure()->message();
  EXPECT_TRUE(finished().error);
}

INSTANTIATE_TEST_SUITE_P(Parking, ParkingUse, testing::Bool(),
                         [](const auto& by) { return by.param ? "ByTheOne" : "ByTheOther"; });

TEST(Parking, LeavesNothingBehind) {
  Mesh mesh({.machines = 4, .connections = 1, .first_links = 1});
  const auto rounds = [&](int count) {
    for (int i = 0; i < count; ++i) {
      for (auto& link : mesh.links) mesh.use(link);
    }
    // All but one, so that what is there can be counted.
    mesh.use(mesh.links[0]);
    ASSERT_TRUE(mesh.until([&] { return mesh.live(0) == 1; }));
  };
  rounds(3);
  const auto before = mesh.fabric.alive();
  const auto open_before = open_descriptors();
  rounds(100);
  EXPECT_EQ(mesh.fabric.alive(), before);
  EXPECT_EQ(open_descriptors(), open_before);
  EXPECT_GE(mesh.links[1].near->stats().parked, 90U);
  mesh.expect_well();
}

// A card is lost while a connection is parked or about to be: that is no business of the parked ones, until
// they are used, and then the other card carries.
TEST(Parking, ARailThatDiesAtAnyMomentOfItIsRepaired) {
  for (std::uint64_t first = first_seed(10), seed = first; seed < first + 10; ++seed) {
    Mesh mesh({.machines = 3, .connections = 1, .seed = seed});
    Traffic traffic(mesh, seed * 100);
    std::mt19937_64 random(seed);
    std::uint64_t begun = 0;
    std::map<std::uint64_t, bool> faults;  // by turn: down
    for (std::uint64_t turn = 100; turn < 2000; turn += 200) {
      faults[turn + random() % 100] = true;
      faults[turn + 100 + random() % 100] = false;
    }
    std::uint64_t turn = 0;
    ASSERT_TRUE(mesh.until([&] {
      if (const auto fault = faults.find(turn++); fault != faults.end())
        fault->second ? mesh.fabric.link_down("a1") : mesh.fabric.link_up("a1");
      if (random() % 40 == 0 && begun < 40) {
        traffic.ways[random() % traffic.ways.size()]->begin(1);
        ++begun;
      }
      traffic.step();
      return testing::Test::HasFatalFailure() || (turn > 2200 && begun == 40 && traffic.done());
    })) << "seed "
        << seed;
    if (HasFatalFailure()) return;
    for (const auto& way : traffic.ways) way->expect_wiped();
    mesh.expect_well();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace cenote::transport::test
