// What a worker and a client session share among devices, threads and contexts: nobody's waiting costs or
// changes what the others do.
#include <time.h>

#include <future>

#include "tests/unit/remote/rig.h"

namespace cenote::pool::remote {
namespace {

using cuda::Status;
using test::Rig;

constexpr std::size_t MiB = std::size_t{1} << 20;

constexpr const char* nothing_ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

cuda::EmulatorOptions small() {
  cuda::EmulatorOptions options;
  options.devices.front().memory_bytes = 256 * MiB;
  options.devices.front().context_bytes = MiB;
  return options;
}

/// A device of the client with one stream that stands until its gate is opened.
struct Held {
  Held(cuda::Driver& d, int ordinal) : driver(d), device(ordinal) {
    EXPECT_EQ(driver.init(0), Status::success);
    EXPECT_EQ(driver.primary_ctx_retain(&context, device), Status::success);
    enter();
    EXPECT_EQ(driver.mem_alloc(&gate, 4), Status::success) << driver.last_error_detail();
    EXPECT_EQ(driver.memset_d8(gate, 0, 4), Status::success);
    EXPECT_EQ(driver.ctx_synchronize(), Status::success);
    stream = make_stream();
    EXPECT_EQ(driver.stream_wait_value32(stream, gate, 1, cuda::wait_eq), Status::success);
  }
  void enter() const { EXPECT_EQ(driver.ctx_set_current(context), Status::success); }
  cuda::Stream make_stream() const {
    cuda::Stream made = nullptr;
    EXPECT_EQ(driver.stream_create(&made, cuda::stream_non_blocking), Status::success);
    return made;
  }
  void open() const {
    enter();
    EXPECT_EQ(driver.stream_write_value32(make_stream(), gate, 1, 0), Status::success);
    (void)driver.stream_query(nullptr);  // sends it
  }
  cuda::Driver& driver;
  int device;
  cuda::Context context = nullptr;
  cuda::DevicePtr gate = 0;
  cuda::Stream stream = nullptr;
};

/// A host function that does not return before it is told to. A thread of its own puts it in the stream and
/// waits for it: whoever is in a call of the driver may be the one that runs it.
class SlowFunction {
 public:
  SlowFunction(const Held& held, cuda::Stream stream)
      : thread_([this, &held, stream] {
          held.enter();
          EXPECT_EQ(held.driver.launch_host_func(
                        stream,
                        [](void* user) {
                          auto* self = static_cast<SlowFunction*>(user);
                          self->started_.set_value();
                          self->finish_.get_future().wait();
                        },
                        this),
                    Status::success);
          result_ = held.driver.stream_synchronize(stream);
        }) {
    started_.get_future().wait();
  }
  /// Lets it return; how its stream ended.
  Status end() {
    finish_.set_value();
    thread_.join();
    return result_;
  }

 private:
  std::promise<void> started_, finish_;
  Status result_ = Status::unknown;
  std::thread thread_;
};

std::chrono::nanoseconds cpu_time_of_this_thread() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

class SharedWorker : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, SharedWorker, testing::Values("shm", "tcp"));

TEST_P(SharedWorker, ThreadsThatWaitForTwoDevicesSleep) {
  Rig rig(GetParam(), {2}, small());
  ASSERT_NE(rig.client, nullptr);
  const Held first(*rig.client, 0), second(*rig.client, 1);
  const auto wait = [&](const Held& held) {
    held.enter();
    const auto before = cpu_time_of_this_thread();
    EXPECT_EQ(rig.client->stream_synchronize(held.stream), Status::success);
    return cpu_time_of_this_thread() - before;
  };
  auto one = std::async(std::launch::async, [&] { return wait(first); });
  auto two = std::async(std::launch::async, [&] { return wait(second); });
  const auto measured = std::chrono::milliseconds(1500);
  std::this_thread::sleep_for(measured);  // what is measured, nobody waits for it
  first.open();
  second.open();
  EXPECT_LT(one.get() + two.get(), measured / 10);
}

TEST_P(SharedWorker, ADeviceFloodedWithLaunchesHoldsUpNoOther) {
  Rig rig(GetParam(), {2}, small());
  ASSERT_NE(rig.client, nullptr);
  const Held busy(*rig.client, 0), other(*rig.client, 1);
  const auto quick = other.make_stream();
  std::atomic<std::uint64_t> issued{0};
  constexpr std::uint64_t launches = 40000;  // more than the emulator's streams take
  auto flood = std::async(std::launch::async, [&] {
    busy.enter();
    cuda::Module module = nullptr;
    cuda::Function nothing = nullptr;
    EXPECT_EQ(rig.client->module_load_data(&module, nothing_ptx, 0), Status::success);
    EXPECT_EQ(rig.client->module_get_function(&nothing, module, "nothing"), Status::success);
    while (issued < launches &&
           rig.client->launch_kernel(nothing, {}, busy.stream, nullptr) == Status::success)
      ++issued;
    return rig.client->stream_synchronize(busy.stream);
  });
  // Round trips of the other device until the flood has come to a stand for a long row of them.
  auto trips = std::async(std::launch::async, [&] {
    other.enter();
    auto status = Status::success;
    std::uint64_t seen = 0;
    for (int still = 0; still < 500 && status == Status::success; ++still) {
      if (issued == 0 || issued != std::exchange(seen, issued.load())) still = 0;
      status = rig.client->stream_synchronize(quick);
    }
    return status;
  });
  EXPECT_EQ(trips.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_LT(issued, launches) << "the flood was never held back";
  // The gate is opened past the client, whose commands for this device stand behind the flood.
  auto& driver = *rig.drivers[0];
  cuda::Context context = nullptr;
  cuda::Stream stream = nullptr;
  ASSERT_EQ(driver.primary_ctx_retain(&context, 0), Status::success);
  ASSERT_EQ(driver.ctx_set_current(context), Status::success);
  ASSERT_EQ(driver.stream_create(&stream, cuda::stream_non_blocking), Status::success);
  ASSERT_EQ(driver.stream_write_value32(stream, busy.gate, 1, 0), Status::success);
  EXPECT_EQ(flood.get(), Status::success);
  EXPECT_EQ(trips.get(), Status::success);
  EXPECT_EQ(issued, launches);
  EXPECT_EQ(driver.stream_destroy(stream), Status::success);
  EXPECT_EQ(driver.primary_ctx_release(0), Status::success);
  other.open();
}

TEST_P(SharedWorker, HostFunctionsEndThoughTheCommandsBehindThemFillTheRing) {
  Rig rig(GetParam(), {1}, small());
  ASSERT_NE(rig.client, nullptr);
  const Held held(*rig.client, 0);
  std::atomic<int> ran{0};
  const auto count = [](void* user) { ++*static_cast<std::atomic<int>*>(user); };
  held.open();
  const auto stream = held.make_stream();
  cuda::Module module = nullptr;
  cuda::Function nothing = nullptr;
  ASSERT_EQ(rig.client->module_load_data(&module, nothing_ptx, 0), Status::success);
  ASSERT_EQ(rig.client->module_get_function(&nothing, module, "nothing"), Status::success);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 5; ++i) ASSERT_EQ(rig.client->launch_host_func(stream, count, &ran), Status::success);
    for (int i = 0; i < 3000; ++i)
      ASSERT_EQ(rig.client->launch_kernel(nothing, {}, stream, nullptr), Status::success);
    // Freed memory waits for all that is in flight, and holds up the commands behind it.
    cuda::DevicePtr memory = 0;
    ASSERT_EQ(rig.client->mem_alloc(&memory, 4 * MiB), Status::success);
    ASSERT_EQ(rig.client->launch_host_func(stream, count, &ran), Status::success);
    ASSERT_EQ(rig.client->mem_free(memory), Status::success);
    ASSERT_EQ(rig.client->stream_synchronize(stream), Status::success);
  }
  EXPECT_EQ(ran, 60);
}

TEST_P(SharedWorker, AResetContextsWordsAreNotGivenOutTwice) {
  Rig rig(GetParam(), {1}, small());
  ASSERT_NE(rig.client, nullptr);
  std::atomic<int> ran{0};
  const auto count = [](void* user) { ++*static_cast<std::atomic<int>*>(user); };
  {
    const Held held(*rig.client, 0);
    for (int i = 0; i < 3; ++i)
      ASSERT_EQ(rig.client->launch_host_func(held.stream, count, &ran), Status::success);
    ASSERT_EQ(rig.client->primary_ctx_release(0), Status::success);
  }
  // Two functions in flight, the second one ends first: the first one's stream must go on standing.
  const Held again(*rig.client, 0);
  const auto slow = again.make_stream(), fast = again.make_stream();
  SlowFunction function(again, slow);
  for (int i = 0; i < 8; ++i) {
    ASSERT_EQ(rig.client->launch_host_func(fast, count, &ran), Status::success);
    ASSERT_EQ(rig.client->stream_synchronize(fast), Status::success);
    EXPECT_EQ(rig.client->stream_query(slow), Status::not_ready);
  }
  EXPECT_EQ(function.end(), Status::success);
  EXPECT_EQ(ran, 8);
  again.open();
}

TEST_P(SharedWorker, AHostFunctionThatOutlivesItsContextEndsNothing) {
  Rig rig(GetParam(), {1}, small());
  ASSERT_NE(rig.client, nullptr);
  const Held held(*rig.client, 0);
  const auto stream = held.make_stream();
  SlowFunction function(held, stream);
  ASSERT_EQ(rig.client->primary_ctx_release(0), Status::success);
  (void)function.end();  // its context is gone
  const Held again(*rig.client, 0);
  std::uint32_t value = 7;
  EXPECT_EQ(rig.client->memcpy_dtoh(&value, again.gate, 4), Status::success)
      << rig.client->last_error_detail();
  EXPECT_EQ(value, 0U);
  EXPECT_FALSE(rig.client->failure());
  again.open();
}

TEST(BusyDevice, DoesNotCountAsAHungWorkerHoweverLongItTakes) {
  constexpr auto timeout = std::chrono::seconds(6);
  Rig rig("shm", {1}, small(), 0, WorkerOptions{}.module_bytes, timeout);
  ASSERT_NE(rig.client, nullptr);
  const Held held(*rig.client, 0);
  auto waiting = std::async(std::launch::async, [&] {
    held.enter();
    return rig.client->stream_synchronize(held.stream);
  });
  // A sign of life is asked for after a quarter of the timeout: five take longer than the timeout.
  const auto patience = Deadline::in(std::chrono::seconds(60));
  while (rig.client->remote_stats().signs_of_life < 5 && !patience.passed() && !rig.client->failure())
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_GE(rig.client->remote_stats().signs_of_life, 5U);
  held.open();
  EXPECT_EQ(waiting.get(), Status::success) << rig.client->last_error_detail();
}

}  // namespace
}  // namespace cenote::pool::remote
