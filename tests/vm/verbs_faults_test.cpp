// The verbs transport when the network breaks under it, over the kernel's own verbs: one side has rxe0 and
// rxe1, the other rxe2 and rxe3, so that two rails cross the VM's bridge.
#include <array>
#include <fstream>
#include <random>

#include "tests/unit/transports/pair.h"
#include "tests/unit/transports/verbs/stream.h"
#include "tests/vm/environment.h"
#include "tests/vm/faults.h"
#include "tests/vm/seed.h"
#include "transports/verbs/verbs.h"

namespace cenote::transport::test {
namespace {

using cenote::test::vm::environment;
using cenote::test::vm::LinkDown;
using cenote::test::vm::MemlockLimit;
using cenote::test::vm::PacketLoss;

class VerbsFaults : public cenote::test::vm::VmTest {
 protected:
  void SetUp() override {
    VmTest::SetUp();
    if (IsSkipped()) return;
    seed = cenote::test::vm::drawn_seed();
    if (environment().devices.size() < 4) GTEST_SKIP() << "needs four devices: cenote-vm run --devices 4";
    left = start({"rxe0", "rxe1"});
    right = start({"rxe2", "rxe3"});
    to_right = left->connect(right->address(), "right", 0, soon()).value();
    to_left = right->connect(left->address(), "left", 0, soon()).value();
  }
  static std::unique_ptr<Transport> start(std::vector<std::string> devices) {
    VerbsOptions options;
    options.devices = std::move(devices);
    options.retries = 3;
    options.timeout = 16;  // a second of silence in all: a busy machine may take half of it
    return make_verbs_transport(options).value();
  }
  bool until(const std::function<bool()>& done) const {
    const Deadline deadline = Deadline::in(120s);  // emulated, and shared
    while (!done()) {
      if (deadline.passed()) return false;
      left->progress(), right->progress();
    }
    return true;
  }
  /// Streams both ways; the fault begins at some moment, lasts for the rest, and is over at the end.
  template <class Begin>
  void stream_through(const Begin& begin_fault) {
    ++seed;
    SCOPED_TRACE("moment drawn from " + std::to_string(seed));
    Stream there(*to_right, *to_left, *right, seed), back(*to_left, *to_right, *left, seed + 100);
    std::mt19937_64 random(seed);
    for (const std::uint64_t fault_at : {random() % 60, std::uint64_t{~0ULL}}) {
      decltype(begin_fault()) fault;
      std::uint64_t turn = 0;
      there.begin(12), back.begin(12);
      ASSERT_TRUE(until([&] {
        if (turn++ == fault_at) fault = begin_fault();
        there.step(), back.step();
        return HasFatalFailure() || to_right->failure() || to_left->failure() ||
               (there.done() && back.done());
      }));
      ASSERT_FALSE(to_right->failure()) << to_right->failure()->message();
      ASSERT_FALSE(to_left->failure()) << to_left->failure()->message();
      there.expect_wiped(), back.expect_wiped();
      if (HasFatalFailure()) return;
    }
    // The rail is taken back within a second or two: the next fault shall meet both alive.
    ASSERT_TRUE(until([&, since = Clock::now()] { return Clock::now() - since > 1500ms; }));
  }
  std::uint64_t seed = 0;
  std::unique_ptr<Transport> left, right;
  std::unique_ptr<Endpoint> to_right, to_left;
};

TEST_F(VerbsFaults, OwnPortDownLosesAndDoublesNothing) {
  for (int moment = 0; moment < 3; ++moment)
    stream_through([] { return std::make_unique<LinkDown>("rnet1"); });
}

TEST_F(VerbsFaults, PeersCableDownLosesAndDoublesNothing) {
  for (int moment = 0; moment < 3; ++moment)
    stream_through([] { return std::make_unique<LinkDown>("rnet3p"); });
}

TEST_F(VerbsFaults, TheFirstRailsSilenceLosesAndDoublesNothing) {
  for (int moment = 0; moment < 2; ++moment)
    stream_through([] { return std::make_unique<PacketLoss>("rnet0", 100); });
}

std::uint64_t counter(const std::string& device, const std::string& name) {
  std::ifstream in("/sys/class/infiniband/" + device + "/ports/1/hw_counters/" + name);
  std::uint64_t value = 0;
  in >> value;
  return value;
}

TEST_F(VerbsFaults, ARailThatIsBackCarriesItsShareAgainAndTheRateRecovers) {
  const auto memory = region(*right, 1 << 20);
  const Bytes data = pattern(1 << 20, 1);
  struct Measured {
    double seconds = 0;
    std::array<std::uint64_t, 2> packets{};  ///< that left rxe0 and rxe1
  };
  const auto measure = [&] {
    Measured measured;
    for (std::size_t i = 0; i < 2; ++i) measured.packets[i] = counter(environment().devices[i], "sent_pkts");
    const auto begun = Clock::now();
    const std::uint64_t before = to_left->signal(2);
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(to_right->put(data, {&memory->key(), 0}, 2, 0));
    EXPECT_TRUE(until([&] {
      Completion done[16];
      (void)to_right->poll(done);
      return to_left->signal(2) == before + 8 || to_right->failure();
    }));
    EXPECT_FALSE(to_right->failure()) << to_right->failure()->message();
    measured.seconds = std::chrono::duration<double>(Clock::now() - begun).count();
    for (std::size_t i = 0; i < 2; ++i)
      measured.packets[i] = counter(environment().devices[i], "sent_pkts") - measured.packets[i];
    return measured;
  };
  (void)measure();  // what each rail can do is not known before
  const Measured before = measure();
  {
    const LinkDown down("rnet1");
    (void)measure();
    const Measured during = measure();
    EXPECT_LT(during.packets[1], during.packets[0] / 20) << "nothing goes over it";
  }
  // It is tried again at once when its port is up; the other end's may take a second.
  std::uint64_t share = 0;
  ASSERT_TRUE(until([&] {
    const Measured after = measure();
    share = after.packets[1];
    return HasFailure() || (share > before.packets[1] / 2 && after.seconds < 2 * before.seconds + 1);
  })) << share
      << " packets, " << before.packets[1] << " before";
}

TEST_F(VerbsFaults, TwoPercentLossIsRepeatedByTheCardsAndNobodyNotices) {
  const auto repeated = [] {
    std::uint64_t sum = 0;
    for (const std::string& device : environment().devices)
      sum += counter(device, "rcvd_seq_err") + counter(device, "completer_retry_err");
    return sum;
  };
  const std::uint64_t before = repeated();
  {
    const PacketLoss here("rnet0", 2), there("rnet2", 2);
    stream_through([] { return std::unique_ptr<int>(); });
  }
  EXPECT_GT(repeated(), before);
}

TEST_F(VerbsFaults, SilenceOnAllRailsIsAnErrorThatNamesThem) {
  ASSERT_TRUE(to_right->put({}, {}, 1, 1));
  ASSERT_TRUE(until([&] { return to_left->signal(1) == 1; }));
  const PacketLoss first("rnet0", 100), second("rnet1", 100);
  const Bytes data = pattern(1 << 20, 1);
  const auto memory = region(*right, 1 << 20);
  ASSERT_TRUE(to_right->put(data, {&memory->key(), 0}, 1, 2));
  ASSERT_TRUE(until([&] { return to_right->failure().has_value(); }));
  const std::string said = to_right->failure()->message();
  for (const auto* part : {"rxe0:1", "rxe1:1", "rxe2:1", "rxe3:1", "RETRY_EXC_ERR"})
    EXPECT_NE(said.find(part), std::string::npos) << part << ": " << said;
  EXPECT_FALSE(to_right->failure()->remedy.empty());
}

TEST_F(VerbsFaults, WithoutLockedMemoryTheErrorSaysHowToGetIt) {
  const MemlockLimit limit(std::uint64_t{64} * 1024);
  VerbsOptions options;
  options.devices = {"rxe0"};
  const auto refused = make_verbs_transport(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::resource_exhausted) << refused.error().message();
  EXPECT_NE(refused.error().remedy.find("ulimit -l"), std::string::npos) << refused.error().message();
}

TEST_F(VerbsFaults, APortThatIsDownAndAGidThatIsNotThereAreNamed) {
  VerbsOptions options;
  options.devices = {"rxe0"};
  options.gid_index = 200;
  const auto no_gid = make_verbs_transport(options);
  ASSERT_FALSE(no_gid);
  EXPECT_NE(no_gid.error().message().find("no entry 200"), std::string::npos) << no_gid.error().message();
  options.gid_index = -1;
  const LinkDown down("rnet0");
  const auto no_port = make_verbs_transport(options);
  ASSERT_FALSE(no_port);
  EXPECT_NE(no_port.error().message().find("rxe0:1: it is DOWN"), std::string::npos)
      << no_port.error().message();
  options.devices = {"rxe77"};
  const auto no_device = make_verbs_transport(options);
  ASSERT_FALSE(no_device);
  EXPECT_EQ(no_device.error().code, ErrorCode::not_found);
  EXPECT_NE(no_device.error().remedy.find("rxe0"), std::string::npos) << no_device.error().message();
}

}  // namespace
}  // namespace cenote::transport::test
