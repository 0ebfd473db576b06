// What arrived in GPU memory is made visible before anybody is told of it; the emulated GPU shows old bytes
// to whoever forgets.
#include "tests/unit/transports/verbs/gpu_world.h"

namespace cenote::transport::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using verbs::test::Call;

/// A world whose right side has GPU memory registered by a description that a test has bent.
struct Watched {
  explicit Watched(std::size_t rails = 1) : world({}, rails) {
    world.connect();
    memory = world.gpu.allocate(gpu_megabyte);
    access = std::make_shared<DeviceAccess>(*memory.device);
    memory.device = access;
  }
  void start() { target = world.right->register_memory(memory).value(); }
  [[nodiscard]] Bytes seen() { return world.gpu.read(memory, 0, data.size()); }
  void put() { ASSERT_TRUE(world.to_right->put(data, {&target->key(), 0}, 1, 1)); }
  bool told() {
    return world.until([&] { return world.to_left->signal(1) != 0; });
  }

  GpuWorld world;
  MemoryDescription memory;
  std::shared_ptr<DeviceAccess> access;
  std::unique_ptr<Region> target;
  Bytes data = pattern(5000, 11);
};

TEST(GpuVisibility, ASignalIsToldAfterTheFlushAndTheFlushComesAfterTheBytes) {
  Watched it;
  std::vector<std::string> order;
  it.access->flush = [&, real = it.access->flush] {
    order.emplace_back(it.world.to_left->signal(1) == 0 ? "not told" : "told too soon");
    order.emplace_back(it.seen() == it.data ? "seen too soon" : "stale");
    auto flushed = real();
    order.emplace_back(it.seen() == it.data ? "seen" : "still stale");
    return flushed;
  };
  it.start();
  it.put();
  ASSERT_TRUE(it.told());
  order.emplace_back("told");
  EXPECT_THAT(order, ElementsAre("not told", "stale", "seen", "told"));
  EXPECT_EQ(it.seen(), it.data);
}

TEST(GpuVisibility, WhoeverForgetsTheFlushReadsWhatWasThereBefore) {
  Watched it;
  it.access->flush = []() -> Result<void> { return {}; };
  it.start();
  it.put();
  ASSERT_TRUE(it.told());
  EXPECT_EQ(it.seen(), Bytes(it.data.size()));
}

TEST(GpuVisibility, AMessageSpeaksOfWhatCanBeSeen) {
  Watched it;
  it.start();
  ASSERT_TRUE(it.world.to_right->put(it.data, {&it.target->key(), 0}, no_signal, 1));
  ASSERT_TRUE(it.world.to_right->send(as_bytes("look")));
  Bytes message(16);
  ASSERT_TRUE(it.world.until([&] { return it.world.to_left->receive(message).value().has_value(); }));
  EXPECT_EQ(it.seen(), it.data);
}

TEST(GpuVisibility, AGetIsDoneWhenItCanBeSeen) {
  Watched it;
  it.start();
  const auto theirs = region(*it.world.left, it.data.size());
  std::memcpy(theirs->bytes().data(), it.data.data(), it.data.size());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(it.world.to_left->get(span_of(it.memory, 0, it.data.size()), {&theirs->key(), 0}, 5));
    const auto done = it.world.finished(*it.world.to_left, 1);
    EXPECT_FALSE(done[0].error);
    EXPECT_EQ(done[0].tag, 5U);
    EXPECT_EQ(it.seen(), it.data);
    it.world.gpu.write(it.memory, 0, Bytes(it.data.size()));
  }
  EXPECT_EQ(it.world.to_left->stats().bytes_got, 3 * it.data.size());
}

TEST(GpuVisibility, SignalsAndMessagesKeepTheirOrderAndNumberOverTwoRails) {
  Watched it(2);
  it.world.fabric.lagging(5);
  it.start();
  std::uint64_t told = 0;
  std::size_t messages = 0;
  for (std::uint64_t i = 1; i <= 60; ++i) {
    const Bytes large = pattern(200'000, i);
    ASSERT_TRUE(it.world.to_right->put(large, {&it.target->key(), 0}, 1, 1));
    ASSERT_TRUE(it.world.to_right->send(std::as_bytes(std::span(&i, 1))));
    std::uint64_t number = 0;
    ASSERT_TRUE(it.world.until([&] {
      told = it.world.to_left->signal(1);
      return it.world.to_left->receive(std::as_writable_bytes(std::span(&number, 1))).value().has_value();
    }));
    EXPECT_EQ(number, i);
    EXPECT_EQ(it.world.to_left->signal(1), i) << "the signal came before its message";
    EXPECT_EQ(it.world.gpu.read(it.memory, 0, large.size()), large);
    (void)it.world.finished(*it.world.to_right, 1);
    ++messages;
  }
  EXPECT_EQ(messages, 60U);
}

TEST(GpuVisibility, OneFlushServesAllThatCameBeforeIt) {
  Watched it;
  int flushes = 0;
  it.access->flush = [&, real = it.access->flush] { return ++flushes, real(); };
  it.start();
  for (int i = 0; i < 20; ++i) it.put();
  while (it.world.left->progress()) {
  }
  ASSERT_TRUE(it.world.until([&] { return it.world.to_left->signal(1) == 20; }));
  EXPECT_LT(flushes, 20);
  EXPECT_GE(flushes, 1);
  const int before = flushes;
  for (int i = 0; i < 100; ++i) it.world.right->progress();
  EXPECT_EQ(flushes, before) << "nothing came, nothing is flushed";
}

TEST(GpuVisibility, NothingIsFlushedForACardThatShowsWritesAtOnce) {
  Watched it;
  int flushes = 0;
  it.memory.flush_before_read = false;
  it.access->flush = [&, real = it.access->flush] { return ++flushes, real(); };
  it.start();
  it.put();
  ASSERT_TRUE(it.told());
  EXPECT_EQ(flushes, 0);
}

TEST(GpuVisibility, NothingWaitsWhenTheLastRegionIsGone) {
  Watched it;
  int flushes = 0;
  it.access->flush = [&, real = it.access->flush] { return ++flushes, real(); };
  it.start();
  it.put();
  ASSERT_TRUE(it.told());
  it.target.reset();
  const int before = flushes;
  ASSERT_TRUE(it.world.to_right->put({}, {}, 2, 1));
  ASSERT_TRUE(it.world.until([&] { return it.world.to_left->signal(2) == 1; }));
  EXPECT_EQ(flushes, before);
}

TEST(GpuVisibility, AFlushThatFailsEndsWhoeverWaitsForIt) {
  Watched it;
  it.access->flush = [] {
    return Result<void>(
        fail(Error{ErrorCode::driver_error, "flush", "CUDA_ERROR_LAUNCH_FAILED"}.on("cuda:0")));
  };
  it.start();
  it.put();
  ASSERT_TRUE(it.world.until([&] { return it.world.to_left->failure().has_value(); }));
  EXPECT_EQ(it.world.to_left->failure()->code, ErrorCode::driver_error);
  EXPECT_THAT(it.world.to_left->failure()->message(), HasSubstr("cuda:0"));
  EXPECT_EQ(it.world.to_left->signal(1), 0U) << "what cannot be seen is not told";
}

TEST(GpuVisibility, WhatCameBeforeThePeerWentIsStillTold) {
  Watched it;
  it.start();
  it.put();
  ASSERT_TRUE(it.world.to_right->send(as_bytes("last")));
  it.world.to_right->close("done");
  ASSERT_TRUE(it.world.until([&] { return it.world.to_left->failure().has_value(); }));
  EXPECT_EQ(it.world.to_left->signal(1), 1U);
  Bytes message(16);
  const auto last = it.world.to_left->receive(message);
  ASSERT_TRUE(last && *last);
  EXPECT_EQ(it.seen(), it.data);
}

/// A description of a card whose driver has no flush call.
struct ReadBack : Watched {
  explicit ReadBack(std::size_t rails = 1) : Watched(rails) { access->flush = nullptr; }
};

TEST(GpuReadBack, TheCardReadsItsOwnWritesBeforeTheSignalIsTold) {
  ReadBack it(2);
  it.start();
  for (const auto* card : {"b0", "b1"}) it.world.fabric.hold(card, card);
  const auto before = it.world.b.counters().work_requests;
  it.put();
  for (int i = 0; i < 200; ++i) it.world.left->progress(), it.world.right->progress();
  EXPECT_EQ(it.world.b.counters().work_requests, before + 2) << "each card reads";
  EXPECT_EQ(it.world.to_left->signal(1), 0U);
  it.world.fabric.deliver("b0", "b0");
  it.world.fabric.settle();
  for (int i = 0; i < 200; ++i) it.world.left->progress(), it.world.right->progress();
  EXPECT_EQ(it.world.to_left->signal(1), 0U) << "the other card has not";
  it.world.fabric.deliver("b1", "b1");
  it.world.fabric.settle();
  ASSERT_TRUE(it.told());
}

TEST(GpuReadBack, WhatComesMeanwhileWaitsForTheNextRead) {
  ReadBack it;
  it.world.fabric.lagging(3);
  it.start();
  for (int i = 0; i < 30; ++i) {
    it.put();
    ASSERT_TRUE(it.world.to_right->send(as_bytes("x")));
  }
  std::size_t messages = 0;
  Bytes message(16);
  ASSERT_TRUE(it.world.until([&] {
    while (it.world.to_left->receive(message).value()) ++messages;
    return messages == 30;
  }));
  EXPECT_EQ(it.world.to_left->signal(1), 30U);
}

TEST(GpuReadBack, AReadThatFailsEndsWhoeverWaitsForItAndTheNextIsTriedAnew) {
  ReadBack it;
  it.start();
  it.world.fabric.fail_next({"b0", 0, IBV_WR_RDMA_READ}, IBV_WC_RETRY_EXC_ERR);
  it.put();
  ASSERT_TRUE(it.world.until([&] { return it.world.to_left->failure().has_value(); }));
  EXPECT_THAT(it.world.to_left->failure()->message(), HasSubstr("read back"));
  EXPECT_EQ(it.world.to_left->signal(1), 0U);
  auto to_right = it.world.left->connect(it.world.right->address(), "right", 1, soon()).value();
  auto to_left = it.world.right->connect(it.world.left->address(), "left", 1, soon()).value();
  ASSERT_TRUE(to_right->put(it.data, {&it.target->key(), 0}, 1, 1));
  ASSERT_TRUE(it.world.until([&] { return to_left->signal(1) == 1; }));
}

TEST(GpuReadBack, ARegionThatGoesWhileItIsReadHoldsNobodyUp) {
  for (const bool last : {false, true}) {
    ReadBack it;
    it.start();
    std::unique_ptr<Region> other;
    if (!last) other = it.world.right->register_memory(it.memory).value();
    it.world.fabric.hold("b0", "b0");
    it.put();
    for (int i = 0; i < 50; ++i) it.world.left->progress(), it.world.right->progress();
    EXPECT_EQ(it.world.to_left->signal(1), 0U);
    it.target.reset();
    it.world.fabric.deliver("b0", "b0");
    it.world.fabric.settle();
    ASSERT_TRUE(it.told());
    EXPECT_FALSE(it.world.to_left->failure());
  }
}

TEST(GpuReadBack, ACardThatHasNoQueuePairLeftIsNamed) {
  ReadBack it;
  it.world.b.refuse(Call::create_qp, ENOMEM);
  const auto refused = it.world.right->register_memory(it.memory);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("b0:1"));
}

}  // namespace
}  // namespace cenote::transport::test
