// Puts of few bytes may take another way than large ones: what is promised for all of them.
#include <array>
#include <random>
#include <thread>

#include "tests/unit/transports/pair.h"

namespace cenote::transport::test {
namespace {

class SmallPuts : public Conformance {};
CENOTE_CONFORMANCE(SmallPuts);

TEST_P(SmallPuts, OfEverySizeArriveWholeBeforeTheirSignalAndTouchNothingElse) {
  const Pair pair(GetParam());
  const auto memory = region(*pair.right, 4096);
  Bytes model(4096);
  std::uint64_t count = 0;
  for (std::size_t size = 1; size <= 80; ++size) {
    for (const std::size_t offset : {size % 7, 1000 + size, 4096 - size}) {
      const Bytes data = pattern(size, size + offset);
      std::memcpy(model.data() + offset, data.data(), size);
      const auto slot = static_cast<std::uint32_t>(size % signal_slots);
      const std::uint64_t before = pair.to_left->signal(slot);
      ASSERT_TRUE(pair.to_right->put(data, {&memory->key(), offset}, slot, ++count));
      ASSERT_TRUE(pair.until([&] { return pair.to_left->signal(slot) == before + 1; }));
      ASSERT_TRUE(same(memory->bytes(), model)) << size << " bytes at " << offset;
      EXPECT_EQ(pair.finished(*pair.to_right, 1)[0].tag, count);
    }
  }
}

TEST_P(SmallPuts, SourceMayChangeOnceTheyAreComplete) {
  const Pair pair(GetParam());
  const auto memory = region(*pair.right, 8 * 50);
  for (std::uint64_t i = 0; i < 50; ++i) {
    std::uint64_t value = i + 1;
    ASSERT_TRUE(pair.to_right->put(std::as_bytes(std::span(&value, 1)), {&memory->key(), 8 * i}, 0, i));
    (void)pair.finished(*pair.to_right, 1);
    value = ~std::uint64_t{0};
  }
  ASSERT_TRUE(pair.until([&] { return pair.to_left->signal(0) == 50; }));
  for (std::uint64_t i = 0; i < 50; ++i) {
    std::uint64_t value = 0;
    std::memcpy(&value, memory->bytes().data() + 8 * i, sizeof value);
    EXPECT_EQ(value, i + 1);
  }
}

TEST_P(SmallPuts, ThousandsLeaveForAPeerThatDoesNotLook) {
  const Pair pair(GetParam());
  const std::uint64_t many = GetParam().unseen;
  const auto memory = region(*pair.right, 8 * many);
  pair.settle();
  std::uint64_t value = 1;
  ASSERT_TRUE(pair.to_right->put(std::as_bytes(std::span(&value, 1)), {&memory->key(), 0}, 1, 0));
  ASSERT_TRUE(pair.until([&] { return pair.to_left->signal(1) == 1; }));
  (void)pair.finished(*pair.to_right, 1);
  Completion done[64];
  for (std::uint64_t i = 1; i < many; ++i) {
    value = i + 1;
    const auto source = std::as_bytes(std::span(&value, 1));
    ASSERT_TRUE(pair.to_right->put(source, {&memory->key(), 8 * i}, i % 3 == 0 ? 60 : 1, i)) << i;
    ASSERT_TRUE(drive({pair.left.get()}, [&] { return pair.to_right->poll(done) != 0; }));
  }
  ASSERT_TRUE(drive({pair.left.get()}, [&] { return pair.to_right->drained(); }));
  ASSERT_TRUE(
      drive({pair.right.get()}, [&] { return pair.to_left->signal(1) + pair.to_left->signal(60) == many; }));
  for (std::uint64_t i = 0; i < many; ++i) {
    std::memcpy(&value, memory->bytes().data() + 8 * i, sizeof value);
    ASSERT_EQ(value, i + 1);
  }
}

TEST_P(SmallPuts, OverlappingOnesOfAllSizesEndAsTheLastWritten) {
  const Pair pair(GetParam());
  constexpr std::size_t size = 512;
  const auto memory = region(*pair.right, size);
  pair.settle();
  std::mt19937_64 random(7);
  Bytes model(size);
  std::vector<std::unique_ptr<Bytes>> sources;
  std::uint64_t signals = 0, posted = 0, finished = 0;
  Completion done[64];
  while (posted < 5000) {
    const std::size_t length = 1 + random() % (random() % 3 == 0 ? 200 : 48);
    const std::size_t offset = random() % (size - length);
    const bool signalled = random() % 4 != 0;
    sources.push_back(std::make_unique<Bytes>(pattern(length, random())));
    if (pair.to_right->put(*sources.back(), {&memory->key(), offset}, signalled ? 9 : no_signal, posted)) {
      std::memcpy(model.data() + offset, sources.back()->data(), length);
      signals += signalled;
      ++posted;
    } else {
      ASSERT_FALSE(pair.to_right->failure());
    }
    if (random() % 5 == 0) pair.left->progress();
    if (random() % 11 == 0) pair.right->progress();
    if (random() % 13 == 0) (void)pair.to_left->signal(9);
    finished += pair.to_right->poll(done);
  }
  ASSERT_TRUE(pair.until([&] {
    finished += pair.to_right->poll(done);
    return pair.to_right->put({}, {}, 10, posted).has_value();
  }));
  ASSERT_TRUE(pair.until([&] {
    finished += pair.to_right->poll(done);
    return pair.to_left->signal(10) == 1 && pair.to_left->signal(9) >= signals && finished == posted + 1;
  }));
  EXPECT_EQ(pair.to_left->signal(9), signals);
  EXPECT_TRUE(same(memory->bytes(), model));
}

TEST_P(SmallPuts, GetAndAtomicAddOfTheirBytesComeAfterThem) {
  const Pair pair(GetParam());
  const auto memory = region(*pair.right, 64);
  pair.settle();
  for (std::uint64_t round = 1; round <= 200; ++round) {
    const std::uint64_t value = round * 1000;
    std::uint64_t got = 0, old = 0;
    ASSERT_TRUE(pair.to_right->put(std::as_bytes(std::span(&value, 1)), {&memory->key(), 8}, 0, 1));
    ASSERT_TRUE(pair.to_right->get(std::as_writable_bytes(std::span(&got, 1)), {&memory->key(), 8}, 2));
    ASSERT_TRUE(pair.to_right->atomic_add({&memory->key(), 8}, 5, &old, 3));
    EXPECT_EQ(pair.finished(*pair.to_right, 3).size(), 3U);
    ASSERT_EQ(got, value);
    ASSERT_EQ(old, value);
    ASSERT_TRUE(pair.until([&] { return pair.to_left->signal(0) == round; }));
    std::uint64_t now = 0;
    std::memcpy(&now, memory->bytes().data() + 8, sizeof now);
    ASSERT_EQ(now, value + 5);
  }
}

TEST_P(SmallPuts, AreVisibleBeforeALaterMessage) {
  const Pair pair(GetParam());
  const auto memory = region(*pair.right, 64);
  std::byte buffer[8];
  for (std::uint64_t round = 1; round <= 300; ++round) {
    ASSERT_TRUE(pair.to_right->put(std::as_bytes(std::span(&round, 1)), {&memory->key(), 0}, 0, round));
    ASSERT_TRUE(pair.to_right->send(std::as_bytes(std::span(&round, 1))));
    ASSERT_TRUE(pair.until([&] { return pair.to_left->receive(buffer).value().has_value(); }));
    std::uint64_t came = 0;
    std::memcpy(&came, memory->bytes().data(), sizeof came);
    ASSERT_EQ(came, round);
    (void)pair.finished(*pair.to_right, 1);
  }
}

TEST_P(SmallPuts, ThatArrivedBeforeThePeerWentStillCount) {
  Pair pair(GetParam());
  const auto memory = region(*pair.right, 64);
  pair.settle();
  std::array<std::uint64_t, 20> values{};
  for (std::uint64_t i = 0; i < values.size(); ++i) {
    values.at(i) = i + 1;
    ASSERT_TRUE(pair.to_right->put(std::as_bytes(std::span(&values.at(i), 1)), {&memory->key(), 0}, 0, i));
  }
  ASSERT_TRUE(pair.until([&] { return pair.to_right->drained() && pair.to_left->signal(0) > 0; }));
  pair.to_right->close("done");
  ASSERT_TRUE(drive({pair.right.get()}, [&] { return pair.to_left->failure().has_value(); }));
  EXPECT_EQ(pair.to_left->signal(0), 20U);
  std::uint64_t last = 0;
  std::memcpy(&last, memory->bytes().data(), sizeof last);
  EXPECT_EQ(last, 20U);
}

/// Two threads that sleep at once when there is nothing to do. Each round a small put and a large one to the
/// same bytes: the large one may have to wait until the peer has taken the small one, and both may sleep
/// then.
TEST_P(SmallPuts, NobodySleepsThroughAPutThatWaitsForOne) {
  const auto left = make(GetParam()), right = make(GetParam());
  const auto l = left->connect(right->address(), "right", 0, soon()).value();
  const auto r = right->connect(left->address(), "left", 0, soon()).value();
  const auto memory = region(*right, 4096);
  constexpr std::uint64_t rounds = 1000;
  std::atomic<int> slow{0};
  const auto until = [&](Transport& transport, Endpoint& endpoint, const std::function<bool()>& done) {
    Transport* all[] = {&transport};
    while (!done() && !endpoint.failure()) {
      const auto start = Clock::now();
      if (!wait(all, soon(), nullptr, "signal", 0us)) return;
      if (Clock::now() - start >= 49ms) ++slow;
    }
  };
  std::thread other([&] {
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      until(*right, *r, [&] { return r->signal(0) >= round && r->signal(40) >= round; });
      (void)r->put({}, {}, 7, 0);
      Completion done[4];
      while (r->poll(done) != 0) {
      }
    }
    until(*right, *r, [&] { return r->drained(); });
  });
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    const Bytes some = pattern(8, round), more = pattern(1000, round);
    std::size_t finished = 0;
    Completion done[4];
    ASSERT_TRUE(l->put(some, {&memory->key(), 500}, 0, 1));
    ASSERT_TRUE(l->put(more, {&memory->key(), 0}, 40, 2));
    until(*left, *l, [&] {
      finished += l->poll(done);
      return finished == 2 && l->signal(7) >= round;
    });
    if (l->signal(7) < round) break;
  }
  other.join();
  EXPECT_FALSE(l->failure());
  EXPECT_EQ(l->signal(7), rounds);
  EXPECT_TRUE(same(memory->bytes().first(1000), pattern(1000, rounds)));
  EXPECT_LT(slow.load(), 400) << "wake-ups were lost";
}

}  // namespace
}  // namespace cenote::transport::test
