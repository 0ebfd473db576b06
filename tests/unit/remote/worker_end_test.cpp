// The end of a worker whose device does not come to the end of its work.
#include <gmock/gmock.h>

#include "tests/unit/remote/rig.h"

namespace cenote::pool::remote {
namespace {

using cuda::Status;
using test::Rig;

constexpr std::size_t MiB = std::size_t{1} << 20;

constexpr const char* forever_ptx = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry forever() { again: bra again; }
)";

cuda::EmulatorOptions small() {
  cuda::EmulatorOptions options;
  options.devices.front().memory_bytes = 128 * MiB;
  options.devices.front().context_bytes = MiB;
  return options;
}

/// What the card has left, seen from a context of its own; and what it would have with nothing but that.
std::pair<std::size_t, std::size_t> left_on(cuda::Driver& driver) {
  cuda::Context context = nullptr;
  std::size_t free = 0, total = 0;
  EXPECT_EQ(driver.ctx_create(&context, 0, 0), Status::success);
  EXPECT_EQ(driver.mem_get_info(&free, &total), Status::success);
  EXPECT_EQ(driver.ctx_destroy(context), Status::success);
  return {free, total - MiB};
}

void take_device(cuda::Driver& client, cuda::Stream& stream, cuda::DevicePtr& memory) {
  cuda::Context context = nullptr;
  ASSERT_EQ(client.init(0), Status::success);
  ASSERT_EQ(client.primary_ctx_retain(&context, 0), Status::success);
  ASSERT_EQ(client.ctx_set_current(context), Status::success);
  ASSERT_EQ(client.mem_alloc(&memory, 8 * MiB), Status::success);
  ASSERT_EQ(client.memset_d8(memory, 0, 8 * MiB), Status::success);
  ASSERT_EQ(client.ctx_synchronize(), Status::success);
  ASSERT_EQ(client.stream_create(&stream, cuda::stream_non_blocking), Status::success);
}

/// Comes back when the worker has executed every command so far, and not only received it.
void executed(cuda::Driver& client, cuda::DevicePtr memory) {
  std::uint32_t word = 0;
  ASSERT_EQ(client.memcpy_dtoh(&word, memory + 4 * MiB, sizeof word), Status::success)
      << client.last_error_detail();
}

TEST(WorkerEnd, AStreamThatWaitsForEverGoesWithTheWorkerAndAllMemoryComesBack) {
  Rig rig("shm", {1}, small());
  ASSERT_NE(rig.client, nullptr);
  cuda::Stream stream = nullptr;
  cuda::DevicePtr memory = 0;
  ASSERT_NO_FATAL_FAILURE(take_device(*rig.client, stream, memory));
  ASSERT_EQ(rig.client->stream_wait_value32(stream, memory, 1, cuda::wait_eq), Status::success);
  // Behind the wait: bytes that the device would read from the worker's memory.
  const std::vector<std::byte> bytes(MiB);
  ASSERT_EQ(rig.client->memcpy_htod_async(memory, bytes.data(), bytes.size(), stream), Status::success);
  ASSERT_NO_FATAL_FAILURE(executed(*rig.client, memory));
  rig.client.reset();
  const auto served = rig.workers[0]->join();
  ASSERT_FALSE(served);
  EXPECT_EQ(served.error().code, ErrorCode::driver_error) << served.error().message();
  EXPECT_FALSE(rig.workers[0]->worker().settled());
  rig.workers.clear();
  const auto [left, all] = left_on(*rig.drivers[0]);
  EXPECT_EQ(left, all);
}

TEST(WorkerEnd, AKernelThatRunsForEverGoesWithTheWorker) {
  Rig rig("shm", {1}, small());
  ASSERT_NE(rig.client, nullptr);
  cuda::Stream stream = nullptr;
  cuda::DevicePtr memory = 0;
  ASSERT_NO_FATAL_FAILURE(take_device(*rig.client, stream, memory));
  cuda::Module module = nullptr;
  cuda::Function function = nullptr;
  ASSERT_EQ(rig.client->module_load_data(&module, forever_ptx, 0), Status::success)
      << rig.client->last_error_detail();
  ASSERT_EQ(rig.client->module_get_function(&function, module, "forever"), Status::success);
  ASSERT_EQ(rig.client->launch_kernel(function, {}, stream, nullptr), Status::success);
  ASSERT_NO_FATAL_FAILURE(executed(*rig.client, memory));
  rig.workers[0]->stop();
  EXPECT_FALSE(rig.workers[0]->join());
  rig.workers.clear();
  const auto [left, all] = left_on(*rig.drivers[0]);
  EXPECT_EQ(left, all);
}

TEST(WorkerEnd, OneWhoseDeviceHasFinishedGivesEverythingBackAtOnce) {
  Rig rig("shm", {1}, small());
  ASSERT_NE(rig.client, nullptr);
  cuda::Stream stream = nullptr;
  cuda::DevicePtr memory = 0;
  ASSERT_NO_FATAL_FAILURE(take_device(*rig.client, stream, memory));
  rig.client.reset();
  EXPECT_TRUE(rig.workers[0]->join());
  EXPECT_TRUE(rig.workers[0]->worker().settled());
  const auto [left, all] = left_on(*rig.drivers[0]);
  EXPECT_EQ(left, all) << "while the worker still stands";
}

}  // namespace
}  // namespace cenote::pool::remote
