// What a fault does: to this endpoint, to operations in flight, to memory, to nobody else.
#include <poll.h>

#include <limits>

#include "tests/unit/transports/pair.h"

namespace cenote::transport::test {
namespace {

class Faults : public Conformance {};
CENOTE_CONFORMANCE(Faults);

/// Posts a put that must fail: at once, or by its completion.
void expect_put_fails(const Pair& pair, const RemoteKey& key, std::uint64_t offset, std::size_t size,
                      ErrorCode code) {
  const Bytes data = pattern(size, 9);
  const auto posted = pair.to_right->put(data, {&key, offset}, 0, 77);
  if (posted) {
    const auto done = pair.finished(*pair.to_right, 1);
    ASSERT_EQ(done.size(), 1U);
    ASSERT_TRUE(done[0].error);
  }
  ASSERT_TRUE(pair.to_right->failure());
  EXPECT_EQ(pair.to_right->failure()->code, code) << pair.to_right->failure()->message();
  EXPECT_EQ(pair.to_right->failure()->peer, "right");
  EXPECT_FALSE(pair.to_right->failure()->cause.empty());
  EXPECT_EQ(pair.to_left->signal(0), 0U);
  const auto later = pair.to_right->send({});
  ASSERT_FALSE(later);
  EXPECT_EQ(later.error().code, code);
}

TEST_P(Faults, PutBeyondTheEndFailsAndTouchesNothing) {
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  const std::pair<std::uint64_t, std::size_t> misfits[] = {{0, 4097}, {4096, 1},     {4090, 7},
                                                           {most, 1}, {most - 3, 8}, {most / 2, 100}};
  for (const auto& [offset, size] : misfits) {
    for (const bool mapped_before : {false, true}) {
      const Pair pair(GetParam());
      const auto memory = region(*pair.right, 4096);
      if (mapped_before) {
        Bytes some(8);
        ASSERT_TRUE(pair.to_right->get(some, {&memory->key(), 0}, 1));
        (void)pair.finished(*pair.to_right, 1);
      }
      expect_put_fails(pair, memory->key(), offset, size, ErrorCode::invalid_argument);
      EXPECT_TRUE(same(memory->bytes(), Bytes(4096)));
    }
  }
}

TEST_P(Faults, KeyOfADestroyedRegionIsWorthless) {
  for (const bool mapped_before : {false, true}) {
    const Pair pair(GetParam());
    auto memory = region(*pair.right, 4096);
    const RemoteKey key = memory->key();
    if (mapped_before) {
      Bytes some(8);
      ASSERT_TRUE(pair.to_right->get(some, {&key, 0}, 1));
      (void)pair.finished(*pair.to_right, 1);
    }
    memory.reset();
    const Bytes data = pattern(64, 1);
    (void)pair.to_right->put(data, {&key, 0}, 0, 1);
    ASSERT_TRUE(pair.until([&] { return pair.to_right->failure().has_value(); }));
    EXPECT_EQ(pair.to_left->signal(0), 0U);
  }
}

TEST_P(Faults, ForgedKeyIsWorthless) {
  const Pair pair(GetParam());
  const auto memory = region(*pair.right, 4096);
  RemoteKey forged = memory->key();
  forged.bytes[16] ^= std::byte{1};
  const Bytes data = pattern(64, 1);
  (void)pair.to_right->put(data, {&forged, 0}, 0, 1);
  ASSERT_TRUE(pair.until([&] { return pair.to_right->failure().has_value(); }));
  EXPECT_TRUE(same(memory->bytes(), Bytes(4096)));
  EXPECT_EQ(pair.to_left->signal(0), 0U);
}

TEST_P(Faults, KeyOfAThirdPartyIsRefused) {
  const Pair pair(GetParam());
  const auto third = make(GetParam());
  const auto memory = region(*third, 4096);
  expect_put_fails(pair, memory->key(), 0, 8, ErrorCode::permission_denied);
  EXPECT_TRUE(same(memory->bytes(), Bytes(4096)));
}

TEST_P(Faults, UnalignedAtomicFails) {
  const Pair pair(GetParam());
  const auto memory = region(*pair.right, 64);
  (void)pair.to_right->atomic_add({&memory->key(), 4}, 1, nullptr, 1);
  ASSERT_TRUE(pair.until([&] { return pair.to_right->failure().has_value(); }));
  EXPECT_EQ(pair.to_right->failure()->code, ErrorCode::invalid_argument);
}

TEST_P(Faults, UndefinedSignalIsRefusedAndHarmless) {
  const Pair pair(GetParam());
  const auto refused = pair.to_right->put({}, {}, signal_slots, 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  EXPECT_FALSE(pair.to_right->failure());
}

TEST_P(Faults, EveryOperationInFlightCompletesOnceWithTheError) {
  const auto left = make(GetParam()), right = make(GetParam());
  const auto memory = region(*right, 4096);
  const auto l = left->connect(right->address(), "right", 0, soon()).value();
  // The other side never connects: these wait.
  const Bytes data = pattern(2000, 1);
  Bytes dst(16);
  std::uint64_t old = 0;
  for (std::uint64_t tag = 0; tag < 30; tag += 3) {
    ASSERT_TRUE(l->put(data, {&memory->key(), 0}, 0, tag));
    ASSERT_TRUE(l->get(dst, {&memory->key(), 0}, tag + 1));
    ASSERT_TRUE(l->atomic_add({&memory->key(), 0}, 1, &old, tag + 2));
  }
  l->close("enough");
  std::vector<int> seen(30, 0);
  Completion done[64];
  const std::size_t count = l->poll(done);
  EXPECT_EQ(count, 30U);
  for (std::size_t i = 0; i < count; ++i) {
    ++seen.at(done[i].tag);
    ASSERT_TRUE(done[i].error);
    EXPECT_EQ(done[i].error->code, ErrorCode::cancelled);
  }
  for (const int times : seen) EXPECT_EQ(times, 1);
  EXPECT_EQ(l->poll(done), 0U);
}

TEST_P(Faults, CloseTellsThePeerTheReasonAfterTheLastMessage) {
  const Pair pair(GetParam());
  pair.settle();
  ASSERT_TRUE(pair.to_right->send(pattern(30, 4)));
  pair.to_right->close("lease 17 expired");
  ASSERT_TRUE(pair.until([&] { return pair.to_left->failure().has_value(); }));
  EXPECT_EQ(pair.to_left->failure()->code, ErrorCode::peer_failed);
  EXPECT_NE(pair.to_left->failure()->cause.find("lease 17 expired"), std::string::npos);
  Bytes buffer(30);
  EXPECT_EQ(pair.to_left->receive(buffer).value(), 30U);
  EXPECT_FALSE(pair.to_left->receive(buffer));
  EXPECT_EQ(pair.to_right->failure()->code, ErrorCode::cancelled);
}

TEST_P(Faults, DestroyedEndpointAndTransportAreNoticed) {
  for (const bool whole_transport : {false, true}) {
    Pair pair(GetParam());
    pair.settle();
    if (whole_transport) pair.left.reset();
    pair.to_right.reset();
    ASSERT_TRUE(drive({pair.right.get()}, [&] { return pair.to_left->failure().has_value(); }));
    EXPECT_EQ(pair.to_left->failure()->code, ErrorCode::peer_failed);
  }
}

TEST_P(Faults, OtherEndpointsAreNotTouched) {
  const Pair pair(GetParam());
  const auto l = pair.left->connect(pair.right->address(), "right", 1, soon()).value();
  const auto r = pair.right->connect(pair.left->address(), "left", 1, soon()).value();
  pair.settle();
  pair.to_right->close("gone");
  ASSERT_TRUE(pair.until([&] { return pair.to_left->failure().has_value(); }));
  ASSERT_TRUE(l->put({}, {}, 2, 0));
  EXPECT_TRUE(pair.until([&] { return r->signal(2) == 1; }));
  EXPECT_FALSE(l->failure());
}

TEST_P(Faults, TheSameChannelWorksAgainAfterAFailure) {
  Pair pair(GetParam());
  pair.settle();
  pair.to_right.reset();
  ASSERT_TRUE(pair.until([&] { return pair.to_left->failure().has_value(); }));
  pair.to_left.reset();
  pair.to_right = pair.left->connect(pair.right->address(), "right", 0, soon()).value();
  pair.to_left = pair.right->connect(pair.left->address(), "left", 0, soon()).value();
  pair.settle();
}

TEST_P(Faults, RegionsAndEndpointsMayOutliveTheTransport) {
  Pair pair(GetParam());
  auto memory = region(*pair.left, 100);
  pair.settle();
  pair.left.reset();
  EXPECT_TRUE(pair.to_right->failure());
  EXPECT_FALSE(pair.to_right->put({}, {}, 0, 0));
  memory->bytes()[99] = std::byte{1};
  memory.reset();
  pair.to_right.reset();
}

}  // namespace
}  // namespace cenote::transport::test
