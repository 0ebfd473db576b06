// Running past the end of an allocation: what a remote device notices. The worker protects granules, as a
// card protects its pages; docs/remote-cuda.md says why it is not stricter.
#include <gmock/gmock.h>

#include "tests/unit/remote/rig.h"

namespace cenote::pool::remote {
namespace {

using cuda::Status;
using test::Rig;

constexpr std::size_t MiB = std::size_t{1} << 20;

constexpr const char* store_ptx = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 at)
{
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [at];
  mov.u32 %r1, 1;
  st.global.u32 [%rd1], %r1;
  ret;
}
)";

cuda::EmulatorOptions small() {
  cuda::EmulatorOptions options;
  options.devices.front().memory_bytes = 128 * MiB;
  options.devices.front().context_bytes = MiB;
  return options;
}

class Overrun : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(rig.client, nullptr);
    ASSERT_EQ(driver.init(0), Status::success);
    ASSERT_EQ(driver.mem_get_allocation_granularity(&granule, 0), Status::success);
    enter(0);
  }
  void enter(int device) {
    cuda::Context context = nullptr;
    ASSERT_EQ(driver.primary_ctx_retain(&context, device), Status::success);
    ASSERT_EQ(driver.ctx_set_current(context), Status::success);
    cuda::Module module = nullptr;
    ASSERT_EQ(driver.module_load_data(&module, store_ptx, 0), Status::success) << driver.last_error_detail();
    ASSERT_EQ(driver.module_get_function(&function, module, "store"), Status::success);
  }
  cuda::DevicePtr allocate(std::size_t bytes) {
    cuda::DevicePtr pointer = 0;
    EXPECT_EQ(driver.mem_alloc(&pointer, bytes), Status::success) << driver.last_error_detail();
    return pointer;
  }
  /// What the context says after a store there.
  Status store(cuda::DevicePtr at) {
    void* params[] = {&at};
    EXPECT_EQ(driver.launch_kernel(function, {}, nullptr, params), Status::success);
    return driver.ctx_synchronize();
  }

  Rig rig{"shm", {2}, small()};
  RemoteDriver& driver = *rig.client;
  std::size_t granule = 0;
  cuda::Function function = nullptr;
};

TEST_F(Overrun, TheWordBehindAnAllocationOfWholeGranulesIsAnIllegalAddressThatSticks) {
  const auto block = allocate(2 * granule);
  const auto neighbour = allocate(granule);
  EXPECT_NE(neighbour, block + 2 * granule);
  EXPECT_EQ(store(block + 2 * granule - 4), Status::success) << driver.last_error_detail();
  EXPECT_EQ(store(block + 2 * granule), Status::illegal_address);
  std::uint32_t word = 0;
  cuda::DevicePtr more = 0;
  cuda::Stream stream = nullptr;
  EXPECT_EQ(driver.memcpy_dtoh(&word, block, 4), Status::illegal_address);
  EXPECT_EQ(driver.mem_alloc(&more, 4), Status::illegal_address);
  EXPECT_EQ(driver.stream_create(&stream, 0), Status::illegal_address);
  EXPECT_EQ(driver.stream_synchronize(nullptr), Status::illegal_address);
}

TEST_F(Overrun, OfASmallAllocationIsNoticedAtItsGranulesEnd) {
  const auto pointer = allocate(4);
  const auto end = (pointer / granule + 1) * granule;
  EXPECT_EQ(store(end - 4), Status::success) << "as on a card: " << driver.last_error_detail();
  EXPECT_EQ(store(end), Status::illegal_address);
}

TEST_F(Overrun, ReachesNoOtherContextAndAResetOneIsNew) {
  const auto first = allocate(granule);
  enter(1);
  const auto there = allocate(4);
  enter(0);
  EXPECT_EQ(store(first + granule), Status::illegal_address);
  cuda::Context other = nullptr;
  ASSERT_EQ(driver.primary_ctx_retain(&other, 1), Status::success);
  ASSERT_EQ(driver.ctx_set_current(other), Status::success);
  std::uint32_t word = 5;
  EXPECT_EQ(driver.memcpy_htod(there, &word, 4), Status::success) << driver.last_error_detail();
  EXPECT_EQ(driver.ctx_synchronize(), Status::success);
  // Everybody lets go of the lost one.
  while (driver.primary_ctx_release(0) == Status::success) {
  }
  enter(0);
  EXPECT_EQ(store(allocate(4)), Status::success) << driver.last_error_detail();
}

}  // namespace
}  // namespace cenote::pool::remote
