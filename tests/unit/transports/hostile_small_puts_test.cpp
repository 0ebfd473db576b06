// What a peer may write into the ring of small puts, and what becomes of it.
#include <atomic>
#include <random>
#include <thread>

#include "tests/unit/transports/mallory.h"

namespace cenote::transport::test {
namespace {

using shm::PacketType;
using shm::SmallPut;

const Kind& shm_kind() {
  static const Kind kind{"shm", [] { return make_shm_transport(); }};
  return kind;
}

/// A peer to which the victim has given its region.
struct PutWriter {
  explicit PutWriter(Victim& victim) : mallory(victim), region(victim.key().region) {
    mallory.finish(victim);
    Writer body;
    body.put(victim.key().region).put(victim.key().token);
    EXPECT_TRUE(mallory.control.send(PacketType::want_region, body.bytes()));
    EXPECT_EQ(mallory.read(victim, PacketType::region).fds.size(), 1U);
  }
  [[nodiscard]] SmallPut good() const {
    SmallPut put;
    put.region = static_cast<std::uint32_t>(region);
    put.offset = 16;
    put.length = 8;
    put.signal = 2;
    return put;
  }
  void write(std::uint64_t number, const SmallPut& put, std::uint64_t sequence) const {
    shm::PutLine& line = mallory.inbox().puts[number % shm::put_lines];
    const auto words = std::bit_cast<shm::SmallPutWords>(put);
    for (std::size_t i = 0; i < words.size(); ++i) line.put[i] = words[i];
    for (auto& word : line.payload) word = 0x0102030405060708;
    line.sequence = sequence;
  }
  void write(std::uint64_t number, const SmallPut& put) const { write(number, put, number + 1); }

  ShmMallory mallory;
  std::uint64_t region;
};

TEST(HostileSmallPuts, AGoodOneIsTaken) {
  Victim victim(shm_kind());
  const PutWriter writer(victim);
  writer.write(0, writer.good());
  ASSERT_TRUE(victim.until([&] { return victim.endpoint->signal(2) == 1; }));
  std::uint64_t word = 0;
  std::memcpy(&word, victim.memory->bytes().data() + 16, sizeof word);
  EXPECT_EQ(word, 0x0102030405060708U);
  EXPECT_FALSE(victim.endpoint->failure());
}

TEST(HostileSmallPuts, WhatDoesNotFitFailsTheEndpointAndTouchesNothing) {
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  struct Case {
    std::string what;
    std::function<void(SmallPut&)> spoil;
    ErrorCode code = ErrorCode::protocol_error;
  };
  const Case cases[] = {
      {"no region", [](SmallPut& p) { p.region = 0; }, ErrorCode::permission_denied},
      {"an unknown region", [](SmallPut& p) { p.region = ~0U; }, ErrorCode::permission_denied},
      {"41 bytes", [](SmallPut& p) { p.length = 41; }},
      {"255 bytes", [](SmallPut& p) { p.length = 255; }},
      {"an offset at the end", [](SmallPut& p) { p.offset = 4096; }},
      {"one byte too many", [](SmallPut& p) { p.offset = 4089; }},
      {"an offset beyond", [](SmallPut& p) { p.offset = 1U << 20; }},
      {"offset and length that overflow", [](SmallPut& p) { p.offset = most - 3; }},
      {"the greatest offset", [](SmallPut& p) { p.offset = most; }},
      {"signal 64", [](SmallPut& p) { p.signal = 64; }},
      {"signal 255", [](SmallPut& p) { p.signal = 255; }},
      {"a count of what was never sent", [](SmallPut& p) { p.taken = 1; }},
      {"another count of what was never sent", [](SmallPut& p) { p.taken = 30'000; }},
  };
  Victim victim(shm_kind());
  for (const Case& spoilt : cases) {
    const PutWriter writer(victim);
    SmallPut put = writer.good();
    spoilt.spoil(put);
    const Bytes before(victim.memory->bytes().begin(), victim.memory->bytes().end());
    writer.write(0, put);
    EXPECT_EQ(victim.endpoint->signal(2), 0U) << spoilt.what;
    victim.expect_failed(spoilt.code, spoilt.what);
    EXPECT_EQ(victim.endpoint->signal(2), 0U) << spoilt.what;
    EXPECT_TRUE(same(victim.memory->bytes(), before)) << spoilt.what;
    victim.endpoint.reset();
  }
  victim.expect_others_well();
}

TEST(HostileSmallPuts, NothingAfterABadOneIsTaken) {
  Victim victim(shm_kind());
  const PutWriter writer(victim);
  SmallPut bad = writer.good();
  bad.signal = 200;
  writer.write(1, writer.good());
  writer.write(0, bad);
  victim.expect_failed(ErrorCode::protocol_error, "signal 200");
  EXPECT_EQ(victim.endpoint->signal(2), 0U);
}

TEST(HostileSmallPuts, ARegionThatWasNotGivenToThePeerIsNotReached) {
  Victim victim(shm_kind());
  const auto secret = region(victim.transport(), 4096);
  const PutWriter writer(victim);
  SmallPut put = writer.good();
  put.region = static_cast<std::uint32_t>(RegionKey::unpack(secret->key())->region);
  writer.write(0, put);
  victim.expect_failed(ErrorCode::permission_denied, "guessed region");
  EXPECT_TRUE(same(secret->bytes(), Bytes(4096)));
  victim.expect_others_well();
}

TEST(HostileSmallPuts, OneForARegionThatIsGoneIsDroppedAndItsSignalCounts) {
  Victim victim(shm_kind());
  const PutWriter writer(victim);
  writer.write(0, writer.good());
  ASSERT_TRUE(victim.until([&] { return victim.endpoint->signal(2) == 1; }));
  victim.memory.reset();
  SmallPut put = writer.good();
  put.offset = 1U << 30;
  writer.write(1, put);
  ASSERT_TRUE(victim.until([&] { return victim.endpoint->signal(2) == 2; }));
  EXPECT_FALSE(victim.endpoint->failure());
}

TEST(HostileSmallPuts, SequencesThatAreNotTheNextAreNotLookedAt) {
  Victim victim(shm_kind());
  const PutWriter writer(victim);
  SmallPut bad = writer.good();
  bad.length = 99;
  for (const std::uint64_t sequence :
       {std::uint64_t{0}, std::uint64_t{2}, shm::put_lines + 1, std::numeric_limits<std::uint64_t>::max()}) {
    writer.write(0, bad, sequence);
    for (int i = 0; i < 10; ++i) victim.transport().progress();
    EXPECT_EQ(victim.endpoint->signal(2), 0U);
    ASSERT_FALSE(victim.endpoint->failure()) << sequence;
  }
  writer.write(0, writer.good());
  EXPECT_TRUE(victim.until([&] { return victim.endpoint->signal(2) == 1; }));
}

TEST(HostileSmallPuts, AFloodDoesNotKeepTheVictimAtIt) {
  Victim victim(shm_kind());
  const PutWriter writer(victim);
  std::atomic<bool> over{false};
  std::thread flood([&] {
    for (std::uint64_t number = 0; !over; ++number) writer.write(number, writer.good());
  });
  // The friend of the victim is served all the while.
  for (int i = 0; i < 20; ++i) {
    (void)victim.endpoint->signal(2);
    victim.expect_others_well();
  }
  over = true;
  flood.join();
}

TEST(HostileSmallPuts, ACountOfWhatWasNeverSentFailsWhenItIsNeeded) {
  Victim victim(shm_kind());
  ShmMallory mallory(victim);
  mallory.finish(victim);
  const RemoteKey key = mallory.key();
  const Bytes data = pattern(64, 1);
  // Its own region, so that the victim may put into it.
  const auto memory = shm::create("test-region", 2 * shm::page_size, shm::PeerAccess::read_write).value();
  ASSERT_TRUE(victim.endpoint->put(std::span(data).first(8), {&key, 0}, 0, 1));
  (void)mallory.read(victim, PacketType::want_region);
  Writer body;
  body.put(std::uint64_t{1});
  const int fds[] = {memory.fd.get()};
  ASSERT_TRUE(mallory.control.send(PacketType::region, body.bytes(), fds));
  Completion done;
  ASSERT_TRUE(victim.until([&] { return victim.endpoint->poll(std::span(&done, 1)) == 1; }));
  ASSERT_FALSE(done.error);
  mallory.inbox().puts_taken = 2;
  (void)victim.endpoint->put(data, {&key, 0}, 0, 2);  // over the bytes of the first one
  victim.expect_failed(ErrorCode::protocol_error, "taken 2 of 1");
  victim.expect_others_well();
}

TEST(HostileSmallPuts, LinesChangedWhileTheyAreReadHarmNobody) {
  Victim victim(shm_kind());
  const auto untouched = region(victim.transport(), 4096);
  int failed = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const PutWriter writer(victim);
    std::atomic<bool> over{false};
    std::atomic<std::uint64_t> rounds{0};
    std::thread changer([&] {
      std::mt19937_64 random(seed);
      SmallPut good = writer.good(), bad = good;
      bad.length = static_cast<std::uint8_t>(random());
      bad.signal = static_cast<std::uint8_t>(random());
      bad.offset = random() % 2 == 0 ? 4090 : random();
      // It stays within what the victim says it has taken. Words change to and fro behind each line; now and
      // then one is bad from the beginning, so that the end is sure to come.
      for (std::uint64_t number = 0; !over;) {
        if (number - writer.mallory.own_inbox().puts_taken >= shm::put_lines) {
          std::this_thread::yield();
          continue;
        }
        writer.write(number, random() % 200 == 0 ? bad : good);
        for (int change = 0; change < 8; ++change) {
          const auto words = std::bit_cast<shm::SmallPutWords>(random() % 64 == 0 ? bad : good);
          const std::size_t word = random() % words.size();
          writer.mallory.inbox().puts[number % shm::put_lines].put.at(word) = words.at(word);
        }
        ++number;
        rounds.fetch_add(1, std::memory_order_relaxed);
      }
    });
    for (int i = 0; (i < 500 || rounds < 3000) && !victim.endpoint->failure(); ++i) {
      (void)victim.endpoint->signal(2);
      (void)victim.transport().progress();
      if (i % 64 == 63) std::this_thread::yield();
    }
    over = true;
    changer.join();
    if (const auto failure = victim.endpoint->failure()) {
      ++failed;
      EXPECT_TRUE(failure->code == ErrorCode::protocol_error || failure->code == ErrorCode::permission_denied)
          << failure->message();
    }
    victim.endpoint.reset();
  }
  EXPECT_GT(failed, 0);
  EXPECT_TRUE(same(untouched->bytes(), Bytes(4096)));
  victim.expect_others_well();
}

}  // namespace
}  // namespace cenote::transport::test
