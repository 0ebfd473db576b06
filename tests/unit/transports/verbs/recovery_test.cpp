// Rails that die in the midst of traffic: no byte is lost or doubled, the rest goes over the others, and the
// dead one is taken back. Over the scripted fabric, whose packets come late and in an order of their own.
#include <filesystem>
#include <random>

#include "runtime/log.h"
#include "tests/fault_row.h"
#include "tests/unit/transports/pair.h"
#include "tests/unit/transports/verbs/scripted_provider.h"
#include "tests/unit/transports/verbs/stream.h"
#include "transports/verbs/verbs.h"

namespace cenote::transport::test {
namespace {

using verbs::test::ScriptedFabric;

/// Two machines with two cards each.
struct TwoRails {
  explicit TwoRails(std::uint64_t seed) {
    for (const auto* name : {"a0", "a1", "b0", "b1"})
      fabric.add_device(verbs::test::roce_device(
          name, "10.0." + std::string(1, name[1]) + "." + std::to_string(name[0] - 'a' + 1)));
    fabric.lagging(seed);
    processes = {fabric.process("left", {"a0", "a1"}), fabric.process("right", {"b0", "b1"})};
    apis = {processes[0].api(), processes[1].api()};
    left = start(0);
    right = start(1);
    to_right = left->connect(right->address(), "right", 0, soon()).value();
    to_left = right->connect(left->address(), "left", 0, soon()).value();
  }
  std::unique_ptr<Transport> start(std::size_t which) {
    VerbsOptions options;
    options.api = apis[which].get();
    options.log = log.get();
    return make_verbs_transport(options).value();
  }
  bool until(const std::function<bool()>& done) const { return drive({left.get(), right.get()}, done); }
  /// How many queue pairs carry traffic or could.
  [[nodiscard]] std::size_t queue_pairs() const {
    std::size_t count = 0;
    for (const auto& view : fabric.queue_pairs()) count += view.state == IBV_QPS_RTS ? 1U : 0U;
    return count;
  }

  std::vector<std::string> warnings;
  std::unique_ptr<Logger> log =
      Logger::create(
          {.level = LogLevel::warn, .sink = [this](std::string_view line) { warnings.emplace_back(line); }})
          .value();
  ScriptedFabric fabric;
  std::vector<verbs::test::ScriptedProcess> processes;
  std::vector<std::shared_ptr<const verbs::VerbsApi>> apis;
  std::unique_ptr<Transport> left, right;
  std::unique_ptr<Endpoint> to_right, to_left;
};

/// What breaks a rail, and what mends it.
struct Fault {
  std::string name, what;
  std::function<void(ScriptedFabric&)> begin, end;
};

class RailFault : public testing::TestWithParam<Fault> {};

TEST_P(RailFault, LosesAndDoublesNothingAtAnyMoment) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    TwoRails world(seed);
    Stream there(*world.to_right, *world.to_left, *world.right, seed);
    Stream back(*world.to_left, *world.to_right, *world.left, seed + 100);
    std::mt19937_64 random(seed);
    const auto run = [&](std::uint64_t fault_at) {
      there.begin(20), back.begin(20);
      std::uint64_t turn = 0;
      ASSERT_TRUE(world.until([&] {
        if (turn++ == fault_at) GetParam().begin(world.fabric);
        there.step(), back.step();
        return testing::Test::HasFatalFailure() || (there.done() && back.done());
      })) << "seed "
          << seed;
      ASSERT_FALSE(world.to_right->failure()) << world.to_right->failure()->message();
      ASSERT_FALSE(world.to_left->failure()) << world.to_left->failure()->message();
      there.expect_wiped(), back.expect_wiped();
    };
    run(~0ULL);
    run(random() % 400);
    if (HasFatalFailure()) return;
    GetParam().end(world.fabric);
    // The rail comes back, and the traffic with it.
    ASSERT_TRUE(world.until([&] { return world.queue_pairs() == 4; })) << "seed " << seed;
    run(~0ULL);
    if (HasFatalFailure()) return;
    EXPECT_TRUE(world.fabric.violations().empty()) << world.fabric.violations().front();
  }
  cenote::test::tried(
      {"Rails of verbs, in mid-stream", GetParam().what, 8,
       "no byte is lost or doubled, the rest goes over the other rail, and the dead one comes back", "so"});
}

INSTANTIATE_TEST_SUITE_P(
    Faults, RailFault,
    testing::Values(Fault{"OwnPortDown", "the own port goes down", [](auto& f) { f.link_down("a1"); },
                          [](auto& f) { f.link_up("a1"); }},
                    Fault{"PeersPortDown", "the peer's port goes down", [](auto& f) { f.link_down("b1"); },
                          [](auto& f) { f.link_up("b1"); }},
                    Fault{"FirstRailDown", "the first rail goes down", [](auto& f) { f.link_down("b0"); },
                          [](auto& f) { f.link_up("b0"); }},
                    Fault{"RequestsAreLost", "requests are dropped", [](auto& f) { f.drop("a1", "b1"); },
                          [](auto& f) { f.deliver("a1", "b1"); }},
                    Fault{"ACardTakesARequestForInvalid", "a card refuses a request as invalid",
                          [](auto& f) { f.fail_next({"a1"}, IBV_WC_REM_INV_REQ_ERR); }, [](auto&) {}},
                    Fault{"AcknowledgementsAreLost", "acknowledgements are dropped",
                          [](auto& f) { f.drop("b0", "a0"); }, [](auto& f) { f.deliver("b0", "a0"); }}),
    [](const auto& fault) { return fault.param.name; });

// The call itself fails, once, at any of the requests: nothing was posted, and it is posted anew.
TEST(Rails, ARequestThatTheCardDoesNotTakeIsPostedAgain) {
  for (int nth = 1; nth <= 40; ++nth) {
    TwoRails world(static_cast<std::uint64_t>(nth));
    Stream there(*world.to_right, *world.to_left, *world.right, 5);
    there.begin(2);
    ASSERT_TRUE(world.until([&] { return there.step(), there.done(); }));
    world.processes[0].refuse(verbs::test::Call::post_send, ENOMEM, nth);
    there.begin(30);
    ASSERT_TRUE(world.until([&] { return there.step(), HasFatalFailure() || there.done(); })) << nth;
    ASSERT_FALSE(world.to_right->failure()) << world.to_right->failure()->message();
    there.expect_wiped();
    if (HasFatalFailure()) return;
  }
}

TEST(Rails, ASmallGetOrMessageThatTheCardDoesNotTakeIsPostedAgain) {
  for (const bool message : {false, true}) {
    TwoRails world(8);
    const auto there = region(*world.right, 64), here = region(*world.left, 64);
    const Bytes data = pattern(16, 8);
    std::memcpy(there->bytes().data(), data.data(), data.size());
    Completion done;
    const auto get = [&] {
      return world.to_right->get(here->bytes().first(16), {&there->key(), 0}, 7).has_value();
    };
    const auto got = [&] { return world.to_right->poll(std::span(&done, 1)) == 1; };
    ASSERT_TRUE(get());
    ASSERT_TRUE(world.until(got));
    std::memset(here->bytes().data(), 0, 16);
    world.processes[0].refuse(verbs::test::Call::post_send, ENOMEM);
    if (message) {
      Bytes came(16);
      ASSERT_TRUE(world.to_right->send(data));
      ASSERT_TRUE(world.until([&] { return world.to_left->receive(came).value().has_value(); }));
      EXPECT_EQ(came, data);
    } else {
      ASSERT_TRUE(get());
      ASSERT_TRUE(world.until(got));
      EXPECT_FALSE(done.error);
      EXPECT_TRUE(same(here->bytes().first(16), data));
    }
    EXPECT_FALSE(world.to_right->failure());
  }
}

TEST(Rails, OneThatFailsIsAWarningAndSoIsItsReturn) {
  TwoRails world(9);
  const auto warned = [&](const std::string& text) {
    return std::any_of(world.warnings.begin(), world.warnings.end(),
                       [&](const std::string& line) { return line.find(text) != std::string::npos; });
  };
  Stream there(*world.to_right, *world.to_left, *world.right, 5);
  there.begin(4);
  ASSERT_TRUE(world.until([&] { return there.step(), there.done(); }));
  EXPECT_TRUE(world.warnings.empty()) << world.warnings.front();
  world.fabric.link_down("a1");
  ASSERT_TRUE(world.until([&] { return warned("rail to right failed: "); }));
  EXPECT_TRUE(warned("PORT_ERR") && warned("others that carry on: 1")) << world.warnings.front();
  world.fabric.link_up("a1");
  ASSERT_TRUE(world.until([&] { return warned("rail to right is back: a1:1"); }));
}

TEST(Rails, CarryALargePutTogether) {
  const TwoRails world(3);
  const auto memory = region(*world.right, 8 << 20);
  const auto source = region(*world.left, 8 << 20);
  const Bytes data = pattern(8 << 20, 3);
  std::memcpy(source->bytes().data(), data.data(), data.size());
  ASSERT_TRUE(world.to_right->put(source->bytes(), {&memory->key(), 0}, 1, 1));
  ASSERT_TRUE(world.until([&] { return world.to_left->signal(1) == 1; }));
  EXPECT_TRUE(same(memory->bytes(), data));
}

TEST(Rails, TakeAListOfRequestsWithOneDoorbell) {
  const TwoRails world(4);
  const auto memory = region(*world.right, 4 << 20);
  const auto source = region(*world.left, 4 << 20);
  ASSERT_TRUE(world.to_right->put({}, {}, 1, 0));
  ASSERT_TRUE(world.until([&] { return world.to_left->signal(1) == 1; }));
  const auto before = world.processes[0].counters();
  ASSERT_TRUE(world.to_right->put(source->bytes(), {&memory->key(), 0}, 1, 1));
  const auto after = world.processes[0].counters();
  EXPECT_GE(after.work_requests - before.work_requests, 8U);  // as many as the lanes' windows take at once
  EXPECT_LE(after.doorbells - before.doorbells, 4U);          // lists of at most sixteen, on two lanes
  ASSERT_TRUE(world.until([&] { return world.to_left->signal(1) == 2; }));
}

void expect_names_both_rails(const Error& error, const std::string& peer, const std::string& why) {
  EXPECT_EQ(error.code, ErrorCode::peer_failed);
  EXPECT_EQ(error.peer, peer);
  for (const std::string& part : {std::string("10.0.0.1"), std::string("10.0.1.1"), std::string("10.0.0.2"),
                                  std::string("10.0.1.2"), why})
    EXPECT_NE(error.cause.find(part), std::string::npos) << part << ": " << error.message();
}

TEST(Rails, AllGoneIsAnErrorThatNamesThemAndWhyOnBothSides) {
  TwoRails world(4);
  ASSERT_TRUE(world.to_right->put({}, {}, 1, 1));
  ASSERT_TRUE(world.until([&] { return world.to_left->signal(1) == 1; }));
  world.fabric.link_down("b0");
  world.fabric.link_down("b1");
  ASSERT_TRUE(world.to_right->put({}, {}, 1, 2));
  ASSERT_TRUE(world.until([&] { return world.to_right->failure() && world.to_left->failure(); }));
  expect_names_both_rails(*world.to_left->failure(), "left", "PORT_ERR");
  EXPECT_FALSE(world.to_left->failure()->remedy.empty());
  // Whose own ports are up hears it from the other.
  expect_names_both_rails(*world.to_right->failure(), "right", "PORT_ERR");
}

TEST(Rails, SilenceOnAllIsAnErrorThatSaysWhatTheCardSaid) {
  TwoRails world(5);
  ASSERT_TRUE(world.to_right->put({}, {}, 1, 1));
  ASSERT_TRUE(world.until([&] { return world.to_left->signal(1) == 1; }));
  for (const auto* rail : {"0", "1"}) {
    world.fabric.drop(std::string("a") + rail, std::string("b") + rail);
    world.fabric.drop(std::string("b") + rail, std::string("a") + rail);
  }
  const auto memory = region(*world.right, 1 << 20);
  const Bytes data = pattern(1 << 20, 1);
  ASSERT_TRUE(world.to_right->put(data, {&memory->key(), 0}, 1, 1));
  ASSERT_TRUE(world.until([&] { return world.to_right->failure().has_value(); }));
  expect_names_both_rails(*world.to_right->failure(), "right", "RETRY_EXC_ERR");
  EXPECT_FALSE(world.to_right->failure()->remedy.empty());
}

TEST(Rails, AThousandConnectionsLeaveNothingBehind) {
  TwoRails world(6);
  world.fabric.at_once();
  ASSERT_TRUE(world.to_right->put({}, {}, 1, 1));
  ASSERT_TRUE(world.until([&] { return world.to_left->signal(1) == 1; }));
  const auto before = world.fabric.alive();
  const auto descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  const auto open_before = descriptors();
  for (int i = 0; i < 1000; ++i) {
    auto l = world.left->connect(world.right->address(), "right", 5, soon()).value();
    auto r = world.right->connect(world.left->address(), "left", 5, soon()).value();
    Bytes data(20'000);
    const auto memory = region(*world.right, data.size());
    ASSERT_TRUE(l->put(data, {&memory->key(), 0}, 1, 1));
    ASSERT_TRUE(world.until([&] { return r->signal(1) == 1; }));
    l.reset();
    ASSERT_TRUE(world.until([&] { return r->failure().has_value(); })) << i;
  }
  ASSERT_TRUE(world.until([&] { return world.fabric.alive() == before; }));
  EXPECT_EQ(descriptors(), open_before);
}

/// Every atomic that is complete counts once; one whose outcome is unknown may or may not.
TEST(Rails, AtomicsAreDoneOnceOrUnknown) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    TwoRails world(seed);
    const auto memory = region(*world.right, 64);
    std::mt19937_64 random(seed);
    const std::uint64_t fault_at = random() % 60;
    std::uint64_t posted = 0, turn = 0, done_count = 0, unknown = 0;
    ASSERT_TRUE(world.until([&] {
      if (turn++ == fault_at) world.fabric.drop("b0", "a0");
      if (posted < 50 && world.to_right->atomic_add({&memory->key(), 0}, 1, nullptr, posted)) ++posted;
      Completion done[16];
      for (std::size_t i = world.to_right->poll(done); i > 0; --i) {
        if (!done[i - 1].error) {
          ++done_count;
        } else {
          ++unknown;
          EXPECT_NE(done[i - 1].error->cause.find("outcome unknown"), std::string::npos);
        }
      }
      return done_count + unknown == 50;
    })) << seed;
    std::uint64_t sum = 0;
    std::memcpy(&sum, memory->bytes().data(), sizeof sum);
    EXPECT_GE(sum, done_count) << seed;
    EXPECT_LE(sum, done_count + unknown) << seed;
    EXPECT_FALSE(world.to_right->failure());
  }
}

}  // namespace
}  // namespace cenote::transport::test
