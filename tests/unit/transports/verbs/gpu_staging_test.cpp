// GPU memory that no card comes to: what is refused, and what waits for a copy.
#include "tests/unit/transports/verbs/gpu_world.h"

namespace cenote::transport::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(GpuStaging, AtomicsAreRefusedAndTheEndpointGoesOn) {
  GpuWorld world;
  world.options.gpu_memory = {"staged"};
  world.connect();
  const auto memory = world.gpu.allocate(gpu_page);
  const auto target = world.right->register_memory(memory).value();
  const auto refused = world.to_right->atomic_add({&target->key(), 8}, 1, nullptr, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::not_supported);
  EXPECT_THAT(refused.error().message(), AllOf(HasSubstr("staging"), HasSubstr("right")));
  expect_put_and_got(world, memory, *target, 100);
}

TEST(GpuStaging, AKeyOfARegionThatIsGoneOrIsForgedEndsTheEndpointAndWritesNothing) {
  for (const bool forged : {false, true}) {
    GpuWorld world;
    world.options.gpu_memory = {"staged"};
    world.connect();
    const auto memory = world.gpu.allocate(gpu_page);
    auto target = world.right->register_memory(memory).value();
    RemoteKey key = target->key();
    if (forged) {
      key.bytes[20] ^= std::byte{1};
    } else {
      target.reset();
    }
    const Bytes data = pattern(100, 1);
    ASSERT_TRUE(world.to_right->put(data, {&key, 0}, 1, 1));
    ASSERT_TRUE(world.until([&] { return world.to_right->failure() && world.to_left->failure(); }));
    EXPECT_EQ(world.to_left->failure()->code, ErrorCode::permission_denied);
    EXPECT_THAT(world.to_right->failure()->message(), HasSubstr("the key's region was destroyed"));
    EXPECT_EQ(world.to_left->signal(1), 0U);
    EXPECT_EQ(world.gpu.read(memory, 0, 100), Bytes(100));
  }
}

TEST(GpuStaging, WhatDoesNotFitItsRegionIsRefusedBeforeItLeaves) {
  GpuWorld world;
  world.options.gpu_memory = {"staged"};
  world.connect();
  const auto target = world.right->register_memory(world.gpu.allocate(gpu_page)).value();
  EXPECT_FALSE(world.to_right->put(Bytes(gpu_page), {&target->key(), 1}, 1, 1));
  EXPECT_EQ(world.to_right->failure()->code, ErrorCode::invalid_argument);
}

/// Copies that are done when the test says so.
struct Gate {
  std::uint64_t open = 0;
  std::vector<DeviceCopies*> alive;
};
struct Gated final : DeviceCopies {
  Gated(std::unique_ptr<DeviceCopies> inner, Gate& by) : copies(std::move(inner)), gate(by) {
    gate.alive.push_back(this);
  }
  ~Gated() override { std::erase(gate.alive, this); }
  Gated(const Gated&) = delete;
  Gated& operator=(const Gated&) = delete;
  [[nodiscard]] std::span<std::byte> pinned() const override { return copies->pinned(); }
  [[nodiscard]] const std::string& home() const override { return copies->home(); }
  Result<std::uint64_t> to_device(std::uint64_t device, const std::byte* host, std::size_t bytes) override {
    return copies->to_device(device, host, bytes);
  }
  Result<std::uint64_t> from_device(std::byte* host, std::uint64_t device, std::size_t bytes) override {
    return copies->from_device(host, device, bytes);
  }
  Result<std::uint64_t> finished() override {
    CENOTE_ASSIGN(const auto really, copies->finished());
    return std::min(really, gate.open);
  }
  std::unique_ptr<DeviceCopies> copies;
  Gate& gate;
};
MemoryDescription gated_by(Gate& gate, const MemoryDescription& memory) {
  auto access = std::make_shared<DeviceAccess>(*memory.device);
  access->open_copies =
      [&, real = memory.device->open_copies](std::size_t bytes) -> Result<std::unique_ptr<DeviceCopies>> {
    CENOTE_ASSIGN(auto inner, real(bytes));
    return std::make_unique<Gated>(std::move(inner), gate);
  };
  auto gated = memory;
  gated.device = access;
  return gated;
}

TEST(GpuStaging, NoSignalOvertakesTheCopyOfWhatWasPutBeforeIt) {
  GpuWorld world;
  world.options.gpu_memory = {"staged"};
  world.connect();
  const auto memory = world.gpu.allocate(gpu_page);
  Gate gate;
  const auto gated = gated_by(gate, memory);
  auto target = world.right->register_memory(gated).value();
  const auto plain = region(*world.right, 64);
  const Bytes data = pattern(100, 3);
  ASSERT_TRUE(world.to_right->put(data, {&target->key(), 0}, no_signal, 1));
  ASSERT_TRUE(world.to_right->put({}, {}, 2, 2));
  ASSERT_TRUE(world.to_right->send(as_bytes("after")));
  Bytes message(16);
  for (int i = 0; i < 200; ++i) world.left->progress(), world.right->progress();
  EXPECT_EQ(world.to_left->signal(2), 0U);
  EXPECT_FALSE(world.to_left->receive(message).value());
  EXPECT_FALSE(world.right->arm()) << "nothing would wake a sleeper when the copy is done";
  gate.open = ~0ULL;
  ASSERT_TRUE(world.until([&] { return world.to_left->signal(2) == 1; }));
  ASSERT_TRUE(world.until([&] { return world.to_left->receive(message).value().has_value(); }));
  EXPECT_EQ(world.gpu.read(memory, 0, 100), pattern(100, 3));
  target.reset();
}

// More puts than there are slots to land in, so that one has to wait for the device where it lands.
TEST(GpuStaging, ADeviceThatNeverFinishesIsAnErrorThatNamesIt) {
  for (const int puts : {1, 40}) {
    Gate gate;
    GpuWorld world;
    world.options.gpu_memory = {"staged"};
    world.options.device_patience = std::chrono::milliseconds(50);
    world.connect();
    const auto memory = world.gpu.allocate(gpu_page);
    auto target = world.right->register_memory(gated_by(gate, memory)).value();
    const Bytes data = pattern(100, 1);
    for (int i = 0; i < puts; ++i)
      ASSERT_TRUE(world.to_right->put(data, {&target->key(), 0}, 1, static_cast<std::uint64_t>(i)));
    ASSERT_TRUE(world.until([&] { return world.to_left->failure() && world.to_right->failure(); }));
    EXPECT_EQ(world.to_left->failure()->code, ErrorCode::deadline_exceeded);
    EXPECT_THAT(world.to_left->failure()->message(),
                AllOf(HasSubstr("cuda:0"), HasSubstr("copy between GPU memory and pinned memory"),
                      HasSubstr("finished no copy for")));
    EXPECT_EQ(world.to_left->signal(1), 0U);
    target.reset();
    EXPECT_THAT(world.log, HasSubstr("finished no copy for"));
    world.to_left.reset(), world.to_right.reset(), world.left.reset(), world.right.reset();
    // The device may still write into the memory: it is left, and the transport did not wait for it.
    ASSERT_EQ(gate.alive.size(), 1U);
    gate.open = ~0ULL;
    const std::unique_ptr<DeviceCopies> left_behind(gate.alive.front());
  }
}

TEST(GpuStaging, ACopyThatFailsEndsTheEndpointWithTheDriversWords) {
  GpuWorld world;
  world.options.gpu_memory = {"staged"};
  world.connect();
  auto memory = world.gpu.allocate(gpu_page);
  memory.address += 128 * gpu_megabyte;  // no memory of the card
  const auto target = world.right->register_memory(memory).value();
  const Bytes data = pattern(100, 1);
  ASSERT_TRUE(world.to_right->put(data, {&target->key(), 0}, 1, 1));
  ASSERT_TRUE(world.until([&] { return world.to_left->failure().has_value(); }));
  EXPECT_EQ(world.to_left->failure()->code, ErrorCode::driver_error);
  EXPECT_THAT(world.to_left->failure()->message(), HasSubstr("cuda:0"));
  EXPECT_EQ(world.to_left->signal(1), 0U);
}

}  // namespace
}  // namespace cenote::transport::test
