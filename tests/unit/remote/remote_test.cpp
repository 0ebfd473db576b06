// The remote driver over workers on threads: what a program sees of leased GPUs.
#include <gmock/gmock.h>

#include "tests/unit/remote/rig.h"

namespace cenote::pool::remote {
namespace {

using cuda::Status;
using test::Rig;
using testing::HasSubstr;

constexpr std::size_t MiB = std::size_t{1} << 20;

// y[i] = a * x[i] + y[i], one thread each.
constexpr const char* saxpy_ptx = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry saxpy(.param .u64 y, .param .u64 x, .param .f32 a, .param .u32 n)
{
  .reg .pred %p<2>;
  .reg .f32 %f<5>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [y];
  ld.param.u64 %rd2, [x];
  ld.param.f32 %f1, [a];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  cvta.to.global.u64 %rd3, %rd1;
  cvta.to.global.u64 %rd4, %rd2;
  mul.wide.u32 %rd5, %r5, 4;
  add.s64 %rd6, %rd3, %rd5;
  add.s64 %rd7, %rd4, %rd5;
  ld.global.f32 %f2, [%rd7];
  ld.global.f32 %f3, [%rd6];
  fma.rn.f32 %f4, %f1, %f2, %f3;
  st.global.f32 [%rd6], %f4;
DONE:
  ret;
}
.visible .entry nothing()
{
  ret;
}
)";

cuda::EmulatorOptions small() {
  cuda::EmulatorOptions options;
  options.devices.front().model = "H200";
  options.devices.front().memory_bytes = 256 * MiB;
  options.devices.front().context_bytes = MiB;
  return options;
}

struct Use {
  explicit Use(cuda::Driver& d, int ordinal) : driver(d) {
    EXPECT_EQ(driver.init(0), Status::success);
    EXPECT_EQ(driver.primary_ctx_retain(&context, ordinal), Status::success);
    EXPECT_EQ(driver.ctx_set_current(context), Status::success);
  }
  void enter() const { EXPECT_EQ(driver.ctx_set_current(context), Status::success); }
  cuda::Function function(const char* name) {
    enter();
    if (module == nullptr) {
      EXPECT_EQ(driver.module_load_data(&module, saxpy_ptx, 0), Status::success)
          << driver.last_error_detail();
    }
    cuda::Function found = nullptr;
    EXPECT_EQ(driver.module_get_function(&found, module, name), Status::success)
        << driver.last_error_detail();
    return found;
  }
  cuda::DevicePtr floats(const std::vector<float>& values) {
    enter();
    cuda::DevicePtr pointer = 0;
    EXPECT_EQ(driver.mem_alloc(&pointer, values.size() * 4), Status::success) << driver.last_error_detail();
    EXPECT_EQ(driver.memcpy_htod(pointer, values.data(), values.size() * 4), Status::success);
    return pointer;
  }
  std::vector<float> read(cuda::DevicePtr pointer, std::size_t count) {
    enter();
    std::vector<float> values(count);
    EXPECT_EQ(driver.memcpy_dtoh(values.data(), pointer, count * 4), Status::success)
        << driver.last_error_detail();
    return values;
  }
  cuda::Driver& driver;
  cuda::Context context = nullptr;
  cuda::Module module = nullptr;
};

class Remote : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, Remote, testing::Values("shm", "tcp"));

TEST_P(Remote, ShowsTheDevicesOfAllWorkersInOrder) {
  Rig rig(GetParam(), {1, 2}, small());
  ASSERT_NE(rig.client, nullptr);
  ASSERT_EQ(rig.client->init(0), Status::success);
  int count = 0;
  EXPECT_EQ(rig.client->device_get_count(&count), Status::success);
  EXPECT_EQ(count, 3);
  for (int i = 0; i < count; ++i) {
    char name[64];
    EXPECT_EQ(rig.client->device_get_name(name, sizeof name, i), Status::success);
    EXPECT_THAT(name, HasSubstr("H200"));
  }
  EXPECT_EQ(rig.client->remote_stats().transports, (std::vector<std::string>{GetParam(), GetParam()}));
}

TEST_P(Remote, RunsSaxpyOnEveryDevice) {
  Rig rig(GetParam(), {1, 2}, small());
  ASSERT_NE(rig.client, nullptr);
  for (int ordinal = 0; ordinal < 3; ++ordinal) {
    Use use(*rig.client, ordinal);
    const std::size_t n = 1000;
    std::vector<float> x(n), y(n), expected(n);
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = static_cast<float>(i);
      y[i] = static_cast<float>(ordinal);
      expected[i] = 3.0F * x[i] + y[i];
    }
    auto dx = use.floats(x), dy = use.floats(y);
    auto a = 3.0F;
    auto count = static_cast<std::uint32_t>(n);
    void* params[] = {&dy, &dx, &a, &count};
    const auto saxpy = use.function("saxpy");
    ASSERT_EQ(rig.client->launch_kernel(saxpy, {{8, 1, 1}, {128, 1, 1}, 0}, nullptr, params),
              Status::success);
    EXPECT_EQ(use.read(dy, n), expected);
  }
}

TEST_P(Remote, CarriesLargeCopiesBothWays) {
  Rig rig(GetParam(), {1}, small());
  ASSERT_NE(rig.client, nullptr);
  Use use(*rig.client, 0);
  std::vector<float> values(3 * MiB + 5);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 8191);
  const auto pointer = use.floats(values);
  EXPECT_EQ(use.read(pointer, values.size()), values);
}

TEST_P(Remote, ReturnsOutOfMemoryWhenTheLeasesShareIsUsedUp) {
  Rig rig(GetParam(), {1}, small(), 64 * MiB);
  ASSERT_NE(rig.client, nullptr);
  Use use(*rig.client, 0);
  std::size_t total = 0;
  EXPECT_EQ(rig.client->device_total_mem(&total, 0), Status::success);
  EXPECT_EQ(total, 64 * MiB);
  cuda::DevicePtr first = 0, second = 0;
  EXPECT_EQ(rig.client->mem_alloc(&first, 40 * MiB), Status::success);
  EXPECT_EQ(rig.client->mem_alloc(&second, 40 * MiB), Status::out_of_memory);
  EXPECT_EQ(rig.client->mem_free(first), Status::success);
  EXPECT_EQ(rig.client->mem_alloc(&second, 40 * MiB), Status::success) << rig.client->last_error_detail();
}

TEST_P(Remote, AnAllocationLoopEndsInOutOfMemoryAndNeverInALaterError) {
  Rig rig(GetParam(), {1}, small(), 32 * MiB);
  ASSERT_NE(rig.client, nullptr);
  Use use(*rig.client, 0);
  auto status = Status::success;
  std::size_t got = 0;
  while (status == Status::success) {
    cuda::DevicePtr pointer = 0;
    status = rig.client->mem_alloc(&pointer, MiB);
    got += status == Status::success ? 1 : 0;
    ASSERT_LE(got, 32U);
  }
  EXPECT_EQ(status, Status::out_of_memory);
  EXPECT_GE(got, 16U);
  EXPECT_EQ(rig.client->ctx_synchronize(), Status::success) << rig.client->last_error_detail();
}

TEST_P(Remote, AnIllegalAccessSurfacesAtTheNextSynchronisationWithKernelAndDevice) {
  Rig rig(GetParam(), {1, 1}, small());
  ASSERT_NE(rig.client, nullptr);
  Use use(*rig.client, 0);
  cuda::DevicePtr nowhere = 0x10;
  auto a = 1.0F;
  std::uint32_t n = 32;
  void* params[] = {&nowhere, &nowhere, &a, &n};
  const auto saxpy = use.function("saxpy");
  EXPECT_EQ(rig.client->launch_kernel(saxpy, {{1, 1, 1}, {32, 1, 1}, 0}, nullptr, params), Status::success);
  EXPECT_EQ(rig.client->ctx_synchronize(), Status::illegal_address);
  EXPECT_THAT(rig.client->last_error_detail(), HasSubstr("lease 7f3a gpu 0 (H200 on agent-a)"));
  EXPECT_THAT(rig.client->last_error_detail(), HasSubstr("saxpy"));
  // The context is lost, as on a real card; other devices are not.
  cuda::DevicePtr pointer = 0;
  EXPECT_EQ(rig.client->mem_alloc(&pointer, 64), Status::illegal_address);
  Use other(*rig.client, 1);
  EXPECT_EQ(other.read(other.floats({1, 2}), 2), (std::vector<float>{1, 2}));
}

TEST_P(Remote, APrimaryContextThatWasReleasedComesBackAsNew) {
  Rig rig(GetParam(), {1}, small());
  ASSERT_NE(rig.client, nullptr);
  {
    Use use(*rig.client, 0);
    cuda::DevicePtr nowhere = 0x10;
    auto a = 1.0F;
    std::uint32_t n = 32;
    void* params[] = {&nowhere, &nowhere, &a, &n};
    use.floats(std::vector<float>(MiB));
    EXPECT_EQ(rig.client->launch_kernel(use.function("saxpy"), {{1, 1, 1}, {32, 1, 1}, 0}, nullptr, params),
              Status::success);
    EXPECT_EQ(rig.client->ctx_synchronize(), Status::illegal_address);
    EXPECT_EQ(rig.client->primary_ctx_release(0), Status::success);
  }
  Use again(*rig.client, 0);
  EXPECT_EQ(again.read(again.floats({4, 5}), 2), (std::vector<float>{4, 5}))
      << rig.client->last_error_detail();
  EXPECT_EQ(rig.workers[0]->worker().load().devices[0].memory_used, 2 * MiB);
}

TEST_P(Remote, ASynchronisationOfOneDeviceHoldsUpNoOther) {
  Rig rig(GetParam(), {2}, small());
  ASSERT_NE(rig.client, nullptr);
  Use first(*rig.client, 0);
  const auto gate = first.floats({0});
  cuda::Stream held = nullptr;
  ASSERT_EQ(rig.client->stream_create(&held, cuda::stream_non_blocking), Status::success);
  ASSERT_EQ(rig.client->ctx_synchronize(), Status::success);
  ASSERT_EQ(rig.client->stream_wait_value32(held, gate, 1, cuda::wait_eq), Status::success);
  std::thread waiter([&] {
    first.enter();
    EXPECT_EQ(rig.client->stream_synchronize(held), Status::success);
  });
  // While the other thread waits, a second device and a second stream of the first one work.
  Use second(*rig.client, 1);
  for (int i = 0; i < 20; ++i) {
    const std::vector<float> some(static_cast<std::size_t>(100 + i), static_cast<float>(i));
    EXPECT_EQ(second.read(second.floats(some), some.size()), some);
  }
  first.enter();
  cuda::Stream other = nullptr;
  ASSERT_EQ(rig.client->stream_create(&other, cuda::stream_non_blocking), Status::success);
  EXPECT_EQ(rig.client->stream_query(held), Status::not_ready);
  ASSERT_EQ(rig.client->stream_write_value32(other, gate, 1, 0), Status::success);
  ASSERT_EQ(rig.client->stream_synchronize(other), Status::success);
  waiter.join();
}

TEST_P(Remote, HostFunctionsRunInTheClientInStreamOrder) {
  Rig rig(GetParam(), {1}, small());
  ASSERT_NE(rig.client, nullptr);
  Use use(*rig.client, 0);
  cuda::Stream stream = nullptr;
  ASSERT_EQ(rig.client->stream_create(&stream, cuda::stream_non_blocking), Status::success);
  const auto word = use.floats({1});
  ASSERT_EQ(rig.client->ctx_synchronize(), Status::success);
  void* pinned = nullptr;
  ASSERT_EQ(rig.client->mem_host_alloc(&pinned, 8, 0), Status::success);
  auto* host = static_cast<float*>(pinned);
  host[0] = 0;
  host[1] = 0;
  ASSERT_EQ(rig.client->memcpy_dtoh_async(host, word, 4, stream), Status::success);
  ASSERT_EQ(
      rig.client->launch_host_func(
          stream, [](void* user) { static_cast<float*>(user)[1] = static_cast<float*>(user)[0] + 1; }, host),
      Status::success);
  ASSERT_EQ(rig.client->memcpy_htod_async(word, host + 1, 4, stream), Status::success);
  ASSERT_EQ(rig.client->stream_synchronize(stream), Status::success);
  EXPECT_EQ(use.read(word, 1), std::vector<float>{2});
}

TEST_P(Remote, CopiesBetweenDevicesOfTwoWorkers) {
  Rig rig(GetParam(), {1, 1}, small());
  ASSERT_NE(rig.client, nullptr);
  Use first(*rig.client, 0), second(*rig.client, 1);
  std::vector<float> values(700000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto from = first.floats(values);
  const auto to = second.floats(std::vector<float>(values.size()));
  EXPECT_EQ(rig.client->memcpy_dtod(to, from, values.size() * 4), Status::success)
      << rig.client->last_error_detail();
  EXPECT_EQ(second.read(to, values.size()), values);
}

TEST_P(Remote, ALostWorkerIsNamedAndTheOthersGoOn) {
  Rig rig(GetParam(), {1, 1}, small());
  ASSERT_NE(rig.client, nullptr);
  Use first(*rig.client, 0), second(*rig.client, 1);
  const auto kept = first.floats({7});
  const auto gone = second.floats({8});
  ASSERT_EQ(rig.client->ctx_synchronize(), Status::success);
  rig.workers[1]->stop();
  EXPECT_EQ(rig.workers[1]->join().error().code, ErrorCode::cancelled);
  float value = 0;
  EXPECT_EQ(rig.client->memcpy_dtoh(&value, gone, 4), Status::launch_failed);
  EXPECT_THAT(rig.client->last_error_detail(),
              HasSubstr("lease 7f3a gpu 1 (H200 on agent-b): worker lost: "));
  EXPECT_EQ(rig.client->memset_d8(gone, 0, 4), Status::launch_failed);
  EXPECT_EQ(first.read(kept, 1), std::vector<float>{7});
  ASSERT_TRUE(rig.client->failure());
  EXPECT_THAT(rig.client->failure()->message(), HasSubstr("gpu 1"));
}

TEST_P(Remote, AWorkerWhoseClientLeavesEndsInPeaceAndLeavesNoMemory) {
  Rig rig(GetParam(), {1}, small());
  ASSERT_NE(rig.client, nullptr);
  Use use(*rig.client, 0);
  use.floats(std::vector<float>(MiB));
  rig.client.reset();
  const auto ended = rig.workers[0]->join();
  EXPECT_TRUE(ended) << ended.error().message();
  cuda::Context context = nullptr;
  auto& driver = *rig.drivers[0];
  ASSERT_EQ(driver.primary_ctx_retain(&context, 0), Status::success);
  ASSERT_EQ(driver.ctx_set_current(context), Status::success);
  std::size_t free = 0, total = 0;
  ASSERT_EQ(driver.mem_get_info(&free, &total), Status::success);
  EXPECT_EQ(total - free, MiB) << "only the context's own memory may be in use";
}

TEST_P(Remote, LaunchesAreCountedAndTravelInBatches) {
  Rig rig(GetParam(), {1}, small());
  ASSERT_NE(rig.client, nullptr);
  Use use(*rig.client, 0);
  const auto nothing = use.function("nothing");
  for (int i = 0; i < 20000; ++i)
    ASSERT_EQ(rig.client->launch_kernel(nothing, {}, nullptr, nullptr), Status::success);
  ASSERT_EQ(rig.client->ctx_synchronize(), Status::success);
  const auto stats = rig.client->remote_stats();
  EXPECT_EQ(stats.launches, 20000U);
  EXPECT_EQ(rig.workers[0]->worker().load().devices[0].launches, 20000U);
  EXPECT_LT(stats.batches, 10000U);
}

}  // namespace
}  // namespace cenote::pool::remote
