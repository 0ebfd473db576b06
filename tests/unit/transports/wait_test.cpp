// Sleeping and waking: nothing is lost, nothing is burnt.
#include <sys/resource.h>
#include <time.h>

#include <thread>

#include "runtime/settings.h"
#include "tests/unit/transports/pair.h"
#include "transports/fabric.h"

namespace cenote::transport::test {
namespace {

class Wait : public Conformance {};
CENOTE_CONFORMANCE(Wait);

double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

TEST_P(Wait, EndsAtItsDeadlineWithItsName) {
  const auto transport = make(GetParam());
  Transport* all[] = {transport.get()};
  const auto ended = wait(all, Deadline::in(30ms), nullptr, "wait for rank 3");
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::deadline_exceeded);
  EXPECT_EQ(ended.error().stage, "wait for rank 3");
}

TEST_P(Wait, EndsWhenCancelledFromAnotherThread) {
  const auto transport = make(GetParam());
  Transport* all[] = {transport.get()};
  CancelFlag cancel;
  std::thread other([&] { cancel.raise(); });
  const auto ended = wait(all, soon(), &cancel, "wait");
  other.join();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::cancelled);
}

TEST_P(Wait, InterruptEndsItEvenWhenItCameBefore) {
  const auto transport = make(GetParam());
  Transport* all[] = {transport.get()};
  transport->interrupt();
  EXPECT_TRUE(wait(all, soon(), nullptr, "wait"));
  std::thread other([&] { transport->interrupt(); });
  EXPECT_TRUE(wait(all, soon(), nullptr, "wait"));
  other.join();
}

TEST_P(Wait, SleepsWithoutUsingTheProcessor) {
  const Pair pair(GetParam());
  pair.settle();
  Transport* all[] = {pair.left.get(), pair.right.get()};
  while (wait(all, Deadline::in(20ms), nullptr, "calm down")) {
  }
  const double before = thread_seconds();
  (void)wait(all, Deadline::in(1s), nullptr, "sleep");
  EXPECT_LT(thread_seconds() - before, 0.2);
}

/// How often this thread gave up the processor to wait in the kernel.
std::int64_t sleeps() {
  rusage use{};
  ::getrusage(RUSAGE_THREAD, &use);
  return use.ru_nvcsw;
}

TEST_P(Wait, OfAFabricPollsAsLongAsTheSettingSaysBeforeItSleeps) {
  if (GetParam().contended) GTEST_SKIP() << "waits for the stand-in's lock cannot be told from sleep";
  std::vector<std::int64_t> slept;
  for (const auto* spin : {"1s", "0us"}) {
    const auto settings = Settings::load(
        {{}, Environment{}, {"transports=" + GetParam().transport(), std::string("wait.spin=") + spin}});
    ASSERT_TRUE(settings) << settings.error().message();
    FabricOptions options = fabric_options(*settings);
    if (GetParam().prepare) GetParam().prepare(options);
    const auto fabric = Fabric::create(options).value();
    (void)fabric->wait(Deadline::in(1ms), nullptr, "warm up");
    const auto before = sleeps();
    EXPECT_FALSE(fabric->wait(Deadline::in(1s), nullptr, "nothing"));
    slept.push_back(sleeps() - before);
  }
  EXPECT_LT(2 * slept[0], slept[1]);
}

/// Two threads that sleep at once when there is nothing to do (no spinning) hand a token to and fro. A lost
/// wake-up shows as a pause of the poll limit each time: hundreds of them are longer than the bound.
TEST_P(Wait, NoWakeUpIsLost) {
  const auto left = make(GetParam()), right = make(GetParam());
  const auto l = left->connect(right->address(), "right", 0, soon()).value();
  const auto r = right->connect(left->address(), "left", 0, soon()).value();
  constexpr std::uint64_t rounds = 2000;
  std::atomic<int> slow{0};
  const auto run = [&](Transport& transport, Endpoint& endpoint, bool begins) {
    Transport* all[] = {&transport};
    Completion done[4];
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      if (begins || round > 1) (void)endpoint.put({}, {}, static_cast<std::uint32_t>(round % 9), round);
      while (endpoint.poll(done) != 0) {
      }
      std::uint64_t sum = 0;
      while (true) {
        sum = 0;
        for (std::uint32_t slot = 0; slot < 9; ++slot) sum += endpoint.signal(slot);
        if (sum >= round || endpoint.failure()) break;
        const auto start = Clock::now();
        if (!wait(all, soon(), nullptr, "token", 0us)) return;
        if (Clock::now() - start >= 49ms) ++slow;
      }
    }
    if (!begins) (void)endpoint.put({}, {}, 0, 0);
    for (const Deadline deadline = soon(); !endpoint.drained() && !deadline.passed(); transport.progress()) {
      while (endpoint.poll(done) != 0) {
      }
    }
  };
  std::thread other([&] { run(*right, *r, false); });
  run(*left, *l, true);
  other.join();
  EXPECT_FALSE(l->failure());
  EXPECT_LT(slow.load(), 200) << "wake-ups were lost";
}

TEST_P(Wait, TwoTransportsOfDifferentKindsAreWaitedForAtOnce) {
  std::vector<std::unique_ptr<Transport>> others;
  for (const Kind& kind : kinds()) others.push_back(make(kind));
  const Pair pair(GetParam());
  pair.settle();
  ASSERT_TRUE(pair.to_right->put({}, {}, 0, 0));
  ASSERT_TRUE(drive({pair.left.get()}, [&] { return pair.to_right->drained(); }));
  std::vector<Transport*> all{pair.right.get()};
  for (const auto& other : others) all.push_back(other.get());
  while (pair.to_left->signal(0) == 0) ASSERT_TRUE(wait(all, soon(), nullptr, "signal"));
}

}  // namespace
}  // namespace cenote::transport::test
