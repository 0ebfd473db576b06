// What put, get, atomic_add and send promise.
#include <algorithm>
#include <random>

#include "tests/unit/transports/pair.h"

namespace cenote::transport::test {
namespace {

class Transfer : public Conformance {};
CENOTE_CONFORMANCE(Transfer);

TEST_P(Transfer, PutArrivesBeforeItsSignal) {
  const Pair pair(GetParam());
  const auto memory = region(*pair.right, 4096);
  const Bytes data = pattern(100, 1);
  ASSERT_TRUE(pair.to_right->put(data, {&memory->key(), 17}, 3, 42));
  ASSERT_TRUE(pair.until([&] { return pair.to_left->signal(3) == 1; }));
  EXPECT_TRUE(same(memory->bytes().subspan(17, 100), data));
  EXPECT_EQ(memory->bytes()[16], std::byte{0});
  EXPECT_EQ(memory->bytes()[117], std::byte{0});
  const auto done = pair.finished(*pair.to_right, 1);
  EXPECT_EQ(done[0].tag, 42U);
  EXPECT_FALSE(done[0].error);
}

TEST_P(Transfer, FreshMemoryIsZeroedAndPageAligned) {
  const auto transport = make(GetParam());
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4097}}) {
    const auto memory = region(*transport, size);
    EXPECT_EQ(memory->bytes().size(), size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->bytes().data()) % 4096, 0U);
    EXPECT_TRUE(same(memory->bytes(), Bytes(size)));
  }
}

TEST_P(Transfer, PutOfNothingIsAPureSignal) {
  const Pair pair(GetParam());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(pair.to_right->put({}, {}, 63, 0));
  EXPECT_TRUE(pair.until([&] { return pair.to_left->signal(63) == 5; }));
  EXPECT_EQ(pair.to_left->signal(62), 0U);
  EXPECT_EQ(pair.to_right->signal(63), 0U);
  EXPECT_EQ(pair.finished(*pair.to_right, 5).size(), 5U);
}

TEST_P(Transfer, PutsOfEverySizeArriveWhole) {
  const Pair pair(GetParam());
  const std::size_t sizes[] = {1,    7,    8,    9,     63,    64,      65,           1023,
                               1024, 1025, 4095, 16385, 65537, 1 << 20, (3 << 20) + 1};
  const auto memory = region(*pair.right, 4 << 20);
  std::uint64_t count = 0;
  for (const std::size_t size : sizes) {
    const Bytes data = pattern(size, size);
    ASSERT_TRUE(pair.to_right->put(data, {&memory->key(), size % 13}, 0, size));
    ++count;
    ASSERT_TRUE(pair.until([&] { return pair.to_left->signal(0) == count; })) << size;
    EXPECT_TRUE(same(memory->bytes().subspan(size % 13, size), data)) << size;
    EXPECT_EQ(pair.finished(*pair.to_right, 1)[0].tag, size);
  }
}

TEST_P(Transfer, SixtyFourMebibytesGoThereAndBack) {
  const Pair pair(GetParam());
  constexpr std::size_t size = std::size_t{64} << 20;
  const auto memory = region(*pair.right, size);
  const Bytes data = pattern(size, 5);
  ASSERT_TRUE(pair.to_right->put(data, {&memory->key(), 0}, 1, 1));
  ASSERT_TRUE(pair.until([&] { return pair.to_left->signal(1) == 1; }));
  EXPECT_TRUE(same(memory->bytes(), data));
  Bytes back(size);
  ASSERT_TRUE(pair.to_right->get(back, {&memory->key(), 0}, 2));
  EXPECT_EQ(pair.finished(*pair.to_right, 2).size(), 2U);
  EXPECT_TRUE(same(back, data));
}

TEST_P(Transfer, GetReadsThePeersMemory) {
  const Pair pair(GetParam());
  const auto memory = region(*pair.right, 5000);
  const Bytes data = pattern(5000, 2);
  std::memcpy(memory->bytes().data(), data.data(), data.size());
  Bytes some(33), all(5000), none;
  ASSERT_TRUE(pair.to_right->get(some, {&memory->key(), 11}, 1));
  ASSERT_TRUE(pair.to_right->get(all, {&memory->key(), 0}, 2));
  ASSERT_TRUE(pair.to_right->get(none, {&memory->key(), 5000}, 3));
  for (const auto& completion : pair.finished(*pair.to_right, 3)) EXPECT_FALSE(completion.error);
  EXPECT_TRUE(same(some, std::span(data).subspan(11, 33)));
  EXPECT_TRUE(same(all, data));
}

TEST_P(Transfer, AtomicAddReturnsTheOldValueAndCountsBothSides) {
  const Pair pair(GetParam());
  const auto memory = region(*pair.right, 64);
  const auto other = region(*pair.left, 64);
  std::uint64_t old[4] = {9, 9, 9, 9};
  for (std::uint64_t i = 0; i < 4; ++i)
    ASSERT_TRUE(pair.to_right->atomic_add({&memory->key(), 8}, 10 + i, &old[i], i));
  ASSERT_TRUE(pair.to_left->atomic_add({&other->key(), 56}, ~0ULL, nullptr, 7));
  EXPECT_EQ(pair.finished(*pair.to_right, 4).size(), 4U);
  EXPECT_EQ(pair.finished(*pair.to_left, 1)[0].tag, 7U);
  EXPECT_EQ(old[0], 0U);
  EXPECT_EQ(old[1], 10U);
  EXPECT_EQ(old[3], 33U);
  std::uint64_t sum = 0;
  std::memcpy(&sum, memory->bytes().data() + 8, 8);
  EXPECT_EQ(sum, 46U);
}

TEST_P(Transfer, MessagesArriveOnceInOrderAndWhole) {
  const Pair pair(GetParam());
  const std::size_t most = pair.left->limits().max_message;
  const std::size_t sizes[] = {0, 1, 51, 52, 53, 108, 109, 1000, 4096, most};
  Bytes buffer(most);
  std::uint64_t sent = 0, received = 0;
  const auto take = [&] {
    const auto got = pair.to_left->receive(buffer);
    ASSERT_TRUE(got) << got.error().message();
    if (!*got) return;
    EXPECT_TRUE(same(std::span(buffer).first(**got), pattern(sizes[received % std::size(sizes)], received)));
    ++received;
  };
  ASSERT_TRUE(pair.until([&] {
    while (sent < 3000) {
      const auto posted = pair.to_right->send(pattern(sizes[sent % std::size(sizes)], sent));
      if (!posted) {
        EXPECT_EQ(posted.error().code, ErrorCode::resource_exhausted) << posted.error().message();
        break;
      }
      ++sent;
    }
    take();
    return received == 3000;
  }));
  EXPECT_EQ(pair.to_left->stats().received_messages, 3000U);
}

TEST_P(Transfer, MessageLongerThanTheBufferStays) {
  const Pair pair(GetParam());
  ASSERT_TRUE(pair.to_right->send(pattern(100, 1)));
  ASSERT_TRUE(pair.to_right->send(pattern(5, 2)));
  Bytes small(99), fits(100);
  Result<std::optional<std::size_t>> got = std::nullopt;
  ASSERT_TRUE(pair.until([&] { return !(got = pair.to_left->receive(small)) || *got; }));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(pair.to_left->receive(fits).value(), 100U);
  ASSERT_TRUE(pair.until([&] { return (got = pair.to_left->receive(small)) && *got; }));
  EXPECT_EQ(**got, 5U);
  EXPECT_FALSE(pair.to_left->failure());
}

TEST_P(Transfer, MessageLongerThanTheLimitIsRefused) {
  const Pair pair(GetParam());
  const auto refused = pair.to_right->send(Bytes(pair.left->limits().max_message + 1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  EXPECT_FALSE(pair.to_right->failure());
}

TEST_P(Transfer, PutIsVisibleBeforeALaterMessage) {
  const Pair pair(GetParam());
  const auto memory = region(*pair.right, 1 << 20);
  Bytes buffer(64);
  for (std::uint64_t round = 0; round < 20; ++round) {
    const Bytes data = pattern(1 << 20, round);
    ASSERT_TRUE(pair.to_right->put(data, {&memory->key(), 0}, no_signal, round));
    ASSERT_TRUE(pair.to_right->send(pattern(10, round)));
    ASSERT_TRUE(pair.until([&] { return pair.to_left->receive(buffer).value().has_value(); }));
    ASSERT_TRUE(same(memory->bytes(), data)) << round;
    EXPECT_EQ(pair.finished(*pair.to_right, 1)[0].tag, round);
  }
}

TEST_P(Transfer, FullQueueRefusesAndTakesMoreAfterProgress) {
  const Pair pair(GetParam());
  const auto memory = region(*pair.right, 8);
  const Bytes data = pattern(8, 1);
  std::uint64_t posted = 0;
  Result<void> last;
  while (posted < 1'000'000 && (last = pair.to_right->put(data, {&memory->key(), 0}, 0, posted))) ++posted;
  ASSERT_FALSE(last) << "never full";
  EXPECT_EQ(last.error().code, ErrorCode::resource_exhausted);
  EXPECT_FALSE(pair.to_right->failure());
  auto done = pair.finished(*pair.to_right, posted);
  ASSERT_EQ(done.size(), posted);
  std::ranges::sort(done, {}, &Completion::tag);  // no order of theirs is promised
  for (std::uint64_t i = 0; i < posted; ++i) EXPECT_EQ(done[i].tag, i);
  EXPECT_TRUE(pair.to_right->put(data, {&memory->key(), 0}, 0, posted));
  EXPECT_TRUE(pair.until([&] { return pair.to_left->signal(0) == posted + 1; }));
}

TEST_P(Transfer, SendRefusesWhileThePeerTakesNothing) {
  const Pair pair(GetParam());
  const Bytes message = pattern(1000, 1);
  std::uint64_t sent = 0;
  ASSERT_TRUE(
      pair.until([&] { return sent == 100'000 || !pair.to_right->send(message) || (++sent, false); }));
  ASSERT_LT(sent, 100'000U) << "never full";
  EXPECT_FALSE(pair.to_right->failure());
  Bytes buffer(1000);
  std::uint64_t taken = 0;
  ASSERT_TRUE(pair.until([&] { return pair.to_left->receive(buffer).value() && ++taken == sent; }));
  EXPECT_TRUE(pair.until([&] { return pair.to_right->send(message).has_value(); }));
}

TEST_P(Transfer, OrdinaryMemoryIsRegisteredWhereTheLimitsSaySo) {
  const Pair pair(GetParam());
  Bytes memory(1000);
  auto registered = pair.right->register_memory(MemoryDescription::of_host(memory.data(), memory.size()));
  if (!pair.right->limits().registers_any_memory) {
    ASSERT_FALSE(registered);
    EXPECT_EQ(registered.error().code, ErrorCode::not_supported);
    EXPECT_FALSE(registered.error().remedy.empty());
    return;
  }
  ASSERT_TRUE(registered);
  const Bytes data = pattern(1000, 3);
  ASSERT_TRUE(pair.to_right->put(data, {&(*registered)->key(), 0}, 0, 0));
  ASSERT_TRUE(pair.until([&] { return pair.to_left->signal(0) == 1; }));
  EXPECT_TRUE(same(memory, data));
}

/// Random operations both ways, checked against a model: what the memory must hold when all is done.
TEST_P(Transfer, RandomOperationsLeaveExactlyWhatTheyWrote) {
  const Pair pair(GetParam());
  constexpr std::size_t cell = 3000, cells = 64;
  std::mt19937_64 random(20240);
  struct Half {
    Endpoint* endpoint;
    Endpoint* other;
    std::unique_ptr<Region> memory;  // at the other side
    Bytes model = Bytes(cell * cells);
    std::vector<std::pair<Bytes, Bytes>> gets;  // what came, what should have come
    std::vector<std::unique_ptr<Bytes>> sources;
    std::uint64_t posted = 0, done = 0, signals = 0, sum = 0, messages = 0, taken = 0;
  };
  Half halves[2];
  halves[0].endpoint = halves[1].other = pair.to_right.get();
  halves[1].endpoint = halves[0].other = pair.to_left.get();
  halves[0].memory = region(*pair.right, cell * cells + 8);
  halves[1].memory = region(*pair.left, cell * cells + 8);
  // Puts go to the first half of the cells and gets read the second: a get is not ordered with a later put.
  for (auto& half : halves) {
    half.gets.reserve(2000);
    half.model = pattern(cell * cells, 77);
    std::memcpy(half.memory->bytes().data(), half.model.data(), half.model.size());
  }
  const auto drain = [&] {
    for (Half& half : halves) {
      Completion some[32];
      for (std::size_t i = half.endpoint->poll(some); i > 0; --i) {
        EXPECT_FALSE(some[i - 1].error);
        ++half.done;
      }
      Bytes buffer(8192);
      const auto got = half.other->receive(buffer);
      ASSERT_TRUE(got);
      if (*got) {
        EXPECT_TRUE(same(std::span(buffer).first(**got), pattern(half.taken * 37 % 3000, half.taken)));
        ++half.taken;
      }
    }
  };
  for (int step = 0; step < 6000; ++step) {
    Half& half = halves[random() % 2];
    std::size_t at = random() % (cells / 2) * cell;
    const std::size_t skip = random() % 100, size = random() % (cell - 100);
    bool ok = true;
    switch (random() % 5) {
      case 0:
      case 1: {
        half.sources.push_back(std::make_unique<Bytes>(pattern(size, random())));
        const Bytes& source = *half.sources.back();
        ok = half.endpoint->put(source, {&half.memory->key(), at + skip}, 5, half.posted).has_value();
        if (!ok) break;
        if (size != 0) std::memcpy(half.model.data() + at + skip, source.data(), size);
        ++half.posted, ++half.signals;
        break;
      }
      case 2: {
        if (half.gets.size() == 2000) break;
        at += cells / 2 * cell;
        half.gets.emplace_back(Bytes(size), Bytes(half.model.begin() + static_cast<long>(at),
                                                  half.model.begin() + static_cast<long>(at + size)));
        ok = half.endpoint->get(half.gets.back().first, {&half.memory->key(), at}, half.posted).has_value();
        if (ok) ++half.posted;
        if (!ok) half.gets.pop_back();
        break;
      }
      case 3:
        ok = half.endpoint->atomic_add({&half.memory->key(), cell * cells}, skip, nullptr, half.posted)
                 .has_value();
        if (ok) ++half.posted, half.sum += skip;
        break;
      default:
        ok = half.endpoint->send(pattern(half.messages * 37 % 3000, half.messages)).has_value();
        if (ok) ++half.messages;
    }
    if (random() % 7 == 0 || !ok) {
      pair.left->progress(), pair.right->progress();
      drain();
    }
  }
  ASSERT_TRUE(pair.until([&] {
    drain();
    bool all = true;
    for (const Half& half : halves)
      all = all && half.done == half.posted && half.taken == half.messages &&
            half.other->signal(5) == half.signals;
    return all;
  }));
  for (Half& half : halves) {
    EXPECT_TRUE(same(half.memory->bytes().first(cell * cells), half.model));
    for (const auto& [came, should] : half.gets) EXPECT_TRUE(same(came, should));
    std::uint64_t sum = 0;
    std::memcpy(&sum, half.memory->bytes().data() + cell * cells, 8);
    EXPECT_EQ(sum, half.sum);
  }
}

}  // namespace
}  // namespace cenote::transport::test
