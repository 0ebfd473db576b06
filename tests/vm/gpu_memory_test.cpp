// Memory of an emulated GPU over the kernel's own verbs: Soft-RoCE takes no dma-bufs and the kernel has no
// peer-memory module, so that it is staged; and a read back over a queue pair that is connected to itself.
#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>

#include "cuda/device_memory.h"
#include "cuda/emulator/emulated_driver.h"
#include "runtime/process.h"
#include "tests/unit/transports/pair.h"
#include "tests/vm/environment.h"
#include "transports/verbs/verbs.h"

namespace cenote::transport::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class GpuMemoryVm : public cenote::test::vm::VmTest {
 protected:
  void SetUp() override {
    VmTest::SetUp();
    if (IsSkipped()) return;
    cuda::EmulatorOptions emulator;
    emulator.devices = {{.model = "A100", .memory_bytes = 64 << 20, .context_bytes = 1 << 20}};
    driver = cuda::make_emulated_driver(emulator);
    cuda::Context context = nullptr;
    ASSERT_EQ(driver->init(0), cuda::Status::success);
    ASSERT_EQ(driver->primary_ctx_retain(&context, 0), cuda::Status::success);
    ASSERT_EQ(driver->ctx_set_current(context), cuda::Status::success);
    memory = cuda::DeviceMemory::create(*driver).value();
  }
  MemoryDescription allocate(std::size_t bytes) {
    cuda::DevicePtr pointer = 0;
    EXPECT_EQ(driver->mem_alloc(&pointer, bytes), cuda::Status::success);
    return memory->describe(pointer, bytes).value();
  }
  Pair pair_with(const VerbsOptions& options) {
    return Pair({"verbs", [options] { return make_verbs_transport(options); }});
  }
  std::unique_ptr<cuda::Driver> driver;
  std::unique_ptr<cuda::DeviceMemory> memory;
};

TEST_F(GpuMemoryVm, SoftRoceTakesNoDmaBufsAndSaysSo) {
  const auto ways = gpu_memory_ways({});
  ASSERT_EQ(ways.size(), 3U);
  EXPECT_FALSE(ways[0].usable);
  EXPECT_THAT(ways[0].reason,
              AllOf(HasSubstr("rxe0: card or kernel take no dma-bufs (EOPNOTSUPP)"), HasSubstr("rxe1: ")));
  EXPECT_FALSE(ways[1].usable);
  EXPECT_TRUE(ways[2].usable);
}

TEST_F(GpuMemoryVm, SoItIsStagedAndTheBytesArrive) {
  VerbsOptions options;
  Pair pair = pair_with(options);
  pair.settle();
  constexpr std::size_t bytes = 300'000;
  const auto here = allocate(1 << 20), there = allocate(1 << 20);
  const auto left = pair.left->register_memory(here), right = pair.right->register_memory(there);
  ASSERT_TRUE(left && right) << left.error().message();
  const Bytes data = pattern(bytes, 5);
  ASSERT_TRUE(here.device->write(here.address, data.data(), bytes));
  ASSERT_TRUE(pair.to_right->put((*left)->bytes().first(bytes), {&(*right)->key(), 7}, 1, 1));
  ASSERT_TRUE(pair.until([&] { return pair.to_left->signal(1) == 1; }));
  Bytes seen(bytes);
  ASSERT_TRUE(there.device->read(seen.data(), there.address + 7, bytes));
  EXPECT_EQ(seen, data);
  Bytes back(bytes);
  ASSERT_TRUE(pair.to_right->get(back, {&(*right)->key(), 7}, 2));
  (void)pair.finished(*pair.to_right, 2);
  EXPECT_EQ(back, data);
}

TEST_F(GpuMemoryVm, OnlyDmaBufsIsARefusalThatNamesTheCard) {
  VerbsOptions options;
  options.gpu_memory = {"dmabuf"};
  auto transport = make_verbs_transport(options).value();
  const auto refused = transport->register_memory(allocate(1 << 20));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), AllOf(HasSubstr("rxe"), HasSubstr("EOPNOTSUPP")));
}

// Memory of the host plays the GPU's here, which a real module would let the card into.
TEST_F(GpuMemoryVm, ACardReadsItsWritesBackOverItself) {
  auto folder = TemporaryFolder::create("sysfs").value();
  std::filesystem::create_directories(folder.file("module/nvidia_peermem"));
  VerbsOptions options;
  options.sysfs = folder.path();
  options.gpu_memory = {"peermem"};
  Pair pair = pair_with(options);
  pair.settle();
  Bytes bytes(1 << 20);
  auto description = MemoryDescription::of_host(bytes.data(), bytes.size());
  description.kind = MemoryKind::device;
  description.home = "pretended:0";
  description.peer_direct = description.flush_before_read = true;
  description.device = std::make_shared<DeviceAccess>();
  const auto target = pair.right->register_memory(description);
  ASSERT_TRUE(target) << target.error().message();
  for (std::uint64_t i = 1; i <= 20; ++i) {
    const Bytes data = pattern(10'000, i);
    ASSERT_TRUE(pair.to_right->put(data, {&(*target)->key(), 0}, 1, 1));
    ASSERT_TRUE(pair.until([&] { return pair.to_left->signal(1) == i; }));
    EXPECT_TRUE(same(std::span(bytes).first(data.size()), data));
    (void)pair.finished(*pair.to_right, 1);
  }
}

}  // namespace
}  // namespace cenote::transport::test
