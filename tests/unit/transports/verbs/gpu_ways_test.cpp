// Everything that goes over a region of GPU memory, by each way of the cards to it.
#include <numeric>

#include "tests/unit/transports/verbs/gpu_world.h"

namespace cenote::transport::test {
namespace {

constexpr std::size_t sizes[] = {1, 8, 100, 4096, 9000, 300'000, gpu_megabyte + 3};

struct Way {
  std::string name;
  std::size_t rails;
  bool lagging;
};
std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

/// Everything that goes over a region of GPU memory, by each way.
class GpuWay : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    world.options.gpu_memory = {GetParam().name};
    world.connect();
    if (GetParam().lagging) world.fabric.lagging(11);
  }
  std::unique_ptr<Region> registered(Transport& transport, const MemoryDescription& memory) {
    auto made = transport.register_memory(memory);
    EXPECT_TRUE(made) << made.error().message();
    return made ? std::move(*made) : nullptr;
  }
  GpuWorld world{{}, GetParam().rails};
  WithPeerMemory module{world};
};
INSTANTIATE_TEST_SUITE_P(Ways, GpuWay,
                         testing::Values(Way{"dmabuf", 1, false}, Way{"dmabuf", 2, true},
                                         Way{"peermem", 1, true}, Way{"staged", 1, false},
                                         Way{"staged", 1, true}, Way{"staged", 2, true}),
                         [](const auto& way) {
                           return way.param.name + (way.param.rails == 1 ? "OneRail" : "TwoRails") +
                                  (way.param.lagging ? "Lagging" : "");
                         });

TEST_P(GpuWay, APeerPutsIntoGpuMemoryAndGetsFromIt) {
  const auto memory = world.gpu.allocate(2 * gpu_megabyte);
  const auto target = registered(*world.right, memory);
  EXPECT_EQ(target->bytes().size(), memory.size);
  for (const std::size_t bytes : sizes) expect_put_and_got(world, memory, *target, bytes);
}

TEST_P(GpuWay, PutsFromGpuMemoryAndGetsIntoIt) {
  const auto memory = world.gpu.allocate(2 * gpu_megabyte);
  const auto own = registered(*world.right, memory);
  const auto theirs = region(*world.left, 2 * gpu_megabyte);
  for (const std::size_t bytes : sizes) {
    const Bytes data = pattern(bytes, 7 + bytes), other = pattern(bytes, 9 + bytes);
    world.gpu.write(memory, 3, data);
    const auto before = world.to_right->signal(2);
    ASSERT_TRUE(world.to_left->put(span_of(memory, 3, bytes), {&theirs->key(), 0}, 2, 1));
    ASSERT_TRUE(world.until([&] { return world.to_right->signal(2) == before + 1; }));
    EXPECT_TRUE(same(theirs->bytes().first(bytes), data)) << bytes;
    std::memcpy(theirs->bytes().data(), other.data(), bytes);
    ASSERT_TRUE(world.to_left->get(span_of(memory, 3, bytes), {&theirs->key(), 0}, 2));
    (void)world.finished(*world.to_left, 2);
    EXPECT_EQ(world.gpu.read(memory, 3, bytes), other) << bytes;
  }
}

TEST_P(GpuWay, GpuToGpuInBothDirectionsAtOnce) {
  const auto here = world.gpu.allocate(4 * gpu_megabyte), there = world.gpu.allocate(4 * gpu_megabyte);
  const auto left = registered(*world.left, here), right = registered(*world.right, there);
  constexpr std::size_t bytes = gpu_megabyte + 17;
  const Bytes a = pattern(bytes, 1), b = pattern(bytes, 2);
  world.gpu.write(here, 0, a);
  world.gpu.write(there, 0, b);
  ASSERT_TRUE(world.to_right->put(span_of(here, 0, bytes), {&right->key(), 2 * gpu_megabyte}, 1, 1));
  ASSERT_TRUE(world.to_left->put(span_of(there, 0, bytes), {&left->key(), 2 * gpu_megabyte}, 1, 1));
  ASSERT_TRUE(world.until([&] { return world.to_left->signal(1) == 1 && world.to_right->signal(1) == 1; }));
  EXPECT_EQ(world.gpu.read(there, 2 * gpu_megabyte, bytes), a);
  EXPECT_EQ(world.gpu.read(here, 2 * gpu_megabyte, bytes), b);
  ASSERT_TRUE(world.to_right->get(span_of(here, 0, bytes), {&right->key(), 0}, 2));
  ASSERT_TRUE(world.to_left->get(span_of(there, 0, bytes), {&left->key(), 2 * gpu_megabyte}, 2));
  (void)world.finished(*world.to_right, 2);
  (void)world.finished(*world.to_left, 2);
  EXPECT_EQ(world.gpu.read(here, 0, bytes), b);
  EXPECT_EQ(world.gpu.read(there, 0, bytes), b);
}

TEST_P(GpuWay, APutAndAGetOfTheSameBytesKeepTheirOrderAndSoDoSignalsAndMessages) {
  const auto memory = world.gpu.allocate(gpu_megabyte);
  const auto target = registered(*world.right, memory);
  for (std::uint64_t i = 1; i <= 12; ++i) {
    const Bytes data = pattern(30'000, i);
    Bytes back(data.size());
    ASSERT_TRUE(world.to_right->put(data, {&target->key(), 8}, 1, 1));
    ASSERT_TRUE(world.to_right->send(std::as_bytes(std::span(&i, 1))));
    ASSERT_TRUE(world.to_right->get(back, {&target->key(), 8}, 2));
    std::uint64_t number = 0;
    ASSERT_TRUE(world.until([&] {
      return world.to_left->receive(std::as_writable_bytes(std::span(&number, 1))).value().has_value();
    }));
    EXPECT_EQ(number, i);
    EXPECT_EQ(world.to_left->signal(1), i);
    EXPECT_EQ(world.gpu.read(memory, 8, data.size()), data);
    (void)world.finished(*world.to_right, 2);
    EXPECT_EQ(back, data);
  }
}

TEST_P(GpuWay, ManySmallPutsCountOnceEach) {
  const auto memory = world.gpu.allocate(gpu_megabyte);
  const auto target = registered(*world.right, memory);
  std::uint64_t posted = 0;
  std::vector<std::uint64_t> values(500);
  std::iota(values.begin(), values.end(), 0);
  ASSERT_TRUE(world.until([&] {
    Completion some[16];
    (void)world.to_right->poll(some);
    if (posted < 500 && world.to_right->put(std::as_bytes(std::span(&values[posted], 1)),
                                            {&target->key(), posted * sizeof posted}, 1, posted))
      ++posted;
    return world.to_left->signal(1) == 500;
  }));
  const Bytes seen = world.gpu.read(memory, 0, 500 * sizeof posted);
  for (std::uint64_t i = 0; i < 500; ++i) {
    std::uint64_t value = 0;
    std::memcpy(&value, &seen[i * sizeof i], sizeof i);
    ASSERT_EQ(value, i);
  }
}

TEST_P(GpuWay, SomethingUnderWayWhenTheOtherSideGoesEndsWithAnError) {
  const auto memory = world.gpu.allocate(4 * gpu_megabyte);
  const auto own = registered(*world.right, memory);
  const auto theirs = registered(*world.left, world.gpu.allocate(4 * gpu_megabyte));
  ASSERT_TRUE(world.to_left->put(span_of(memory, 0, 4 * gpu_megabyte), {&theirs->key(), 0}, 1, 1));
  ASSERT_TRUE(world.to_left->get(span_of(memory, 0, gpu_megabyte), {&theirs->key(), 0}, 2));
  for (int i = 0; i < 5; ++i) world.left->progress(), world.right->progress();
  world.to_right.reset();
  const auto ended = world.finished(*world.to_left, 2);
  EXPECT_TRUE(world.until([&] { return world.to_left->failure().has_value(); }));
  EXPECT_EQ(ended.size(), 2U);
}

// A rail's fault in the midst of it, at moments that differ by seed.
TEST(GpuFaults, ARailThatDiesLosesAndDoublesNothing) {
  for (const auto* way : {"dmabuf", "staged"}) {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      GpuWorld world({}, 2);
      world.options.gpu_memory = {way};
      world.connect();
      world.fabric.lagging(seed);
      const auto memory = world.gpu.allocate(2 * gpu_megabyte), other = world.gpu.allocate(2 * gpu_megabyte);
      const auto target = world.right->register_memory(memory).value();
      const auto source = world.left->register_memory(other).value();
      std::uint64_t turn = 0;
      for (std::uint64_t i = 1; i <= 6; ++i) {
        const Bytes data = pattern(300'000, seed * 100 + i);
        world.gpu.write(other, 0, data);
        ASSERT_TRUE(world.to_right->put(span_of(other, 0, data.size()), {&target->key(), 64}, 1, 1));
        ASSERT_TRUE(world.until([&] {
          if (turn++ == seed * 37) world.fabric.link_down(seed % 2 == 0 ? "a0" : "b1");
          return world.to_left->signal(1) == i;
        })) << way
            << " seed " << seed;
        ASSERT_EQ(world.gpu.read(memory, 64, data.size()), data) << way << " seed " << seed;
        ASSERT_TRUE(world.to_right->get(span_of(other, 0, data.size()), {&target->key(), 64}, 2));
        ASSERT_EQ(world.finished(*world.to_right, 2).size(), 2U) << way << " seed " << seed;
        ASSERT_EQ(world.gpu.read(other, 0, data.size()), data);
        ASSERT_EQ(world.to_left->signal(1), i);
      }
      ASSERT_FALSE(world.to_right->failure()) << world.to_right->failure()->message();
    }
  }
}

}  // namespace
}  // namespace cenote::transport::test
