// Streams, events, waits for values and host functions, over every driver.
#include <unistd.h>

#include "tests/unit/cuda/conformance.h"

namespace cenote::cuda::test {
namespace {

using testing::Each;
using testing::ElementsAre;

class Streams : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    gate = upload(std::vector<std::uint32_t>{0, 0, 0, 0});
    opener = new_stream();
  }
  /// Lets a stream that is held go on.
  void open(std::uint32_t value = 1) { ASSERT_OK(driver->stream_write_value32(opener, gate, value, 0)); }

  DevicePtr gate = 0;
  Stream opener = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Drivers, Streams, testing::ValuesIn(makers()),
                         [](const auto& at) { return at.param.name; });

TEST_P(Streams, RunInOrder) {
  auto stream = new_stream();
  const auto word = upload(std::vector<std::uint32_t>{0});
  for (std::uint32_t i = 1; i <= 100; ++i) ASSERT_OK(driver->memset_d32_async(word, i, 1, stream));
  ASSERT_OK(driver->stream_synchronize(stream));
  EXPECT_THAT(download<std::uint32_t>(word, 1), ElementsAre(100));
}

TEST_P(Streams, AreAsynchronous) {
  auto stream = new_stream();
  hold(stream, gate);
  ASSERT_OK(driver->memset_d8_async(gate + 8, 1, 4, stream));
  EXPECT_EQ(driver->stream_query(stream), Status::not_ready);
  open();
  EXPECT_TRUE(eventually([&] { return driver->stream_query(stream) == Status::success; }));
}

TEST_P(Streams, DoNotWaitForEachOther) {
  auto held = new_stream(), free = new_stream();
  const auto word = upload(std::vector<int>{0});
  hold(held, gate);
  ASSERT_OK(driver->memset_d32_async(word, 5, 1, free));
  ASSERT_OK(driver->stream_synchronize(free));
  EXPECT_EQ(driver->stream_query(held), Status::not_ready);
  open();
  ASSERT_OK(driver->ctx_synchronize());
}

TEST_P(Streams, TheLegacyStreamWaitsForBlockingStreams) {
  auto blocking = new_stream(stream_default);
  const auto word = upload(std::vector<int>{0});
  auto* seen = pinned<int>(1);
  hold(blocking, gate);
  ASSERT_OK(driver->memset_d32_async(word, 5, 1, blocking));
  ASSERT_OK(driver->memcpy_dtoh_async(seen, word, 4, nullptr));
  EXPECT_EQ(driver->stream_query(nullptr), Status::not_ready);
  open();
  ASSERT_OK(driver->stream_synchronize(nullptr));
  EXPECT_EQ(*seen, 5);
}

TEST_P(Streams, BlockingStreamsWaitForTheLegacyStream) {
  auto blocking = new_stream(stream_default);
  const auto word = upload(std::vector<int>{0});
  auto* seen = pinned<int>(1);
  hold(nullptr, gate);
  ASSERT_OK(driver->memset_d32_async(word, 5, 1, reinterpret_cast<Stream>(1)));  // legacy by its other name
  ASSERT_OK(driver->memcpy_dtoh_async(seen, word, 4, blocking));
  EXPECT_EQ(driver->stream_query(blocking), Status::not_ready);
  open();
  ASSERT_OK(driver->stream_synchronize(blocking));
  EXPECT_EQ(*seen, 5);
}

TEST_P(Streams, NonBlockingStreamsDoNotWaitForTheLegacyStream) {
  auto stream = new_stream();
  const auto word = upload(std::vector<int>{0});
  hold(nullptr, gate);
  ASSERT_OK(driver->memset_d32_async(word, 5, 1, stream));
  ASSERT_OK(driver->stream_synchronize(stream));
  EXPECT_EQ(driver->stream_query(nullptr), Status::not_ready);
  open();
  ASSERT_OK(driver->ctx_synchronize());
}

TEST_P(Streams, EachThreadHasADefaultStreamOfItsOwn) {
  const auto per_thread = reinterpret_cast<Stream>(2);
  hold(per_thread, gate);
  Status other = Status::unknown;
  std::thread([&] {
    driver->ctx_set_current(context);
    other = driver->stream_query(per_thread);
  }).join();
  EXPECT_EQ(other, Status::success);
  EXPECT_EQ(driver->stream_query(per_thread), Status::not_ready);
  open();
  ASSERT_OK(driver->stream_synchronize(per_thread));
}

TEST_P(Streams, EventsCarryAnOrderFromOneStreamToAnother) {
  auto first = new_stream(), second = new_stream();
  auto event = new_event(event_disable_timing);
  const auto word = upload(std::vector<int>{0});
  auto* seen = pinned<int>(1);
  hold(first, gate);
  ASSERT_OK(driver->memset_d32_async(word, 5, 1, first));
  ASSERT_OK(driver->event_record(event, first));
  ASSERT_OK(driver->stream_wait_event(second, event, 0));
  ASSERT_OK(driver->memcpy_dtoh_async(seen, word, 4, second));
  EXPECT_EQ(driver->event_query(event), Status::not_ready);
  EXPECT_EQ(driver->stream_query(second), Status::not_ready);
  open();
  ASSERT_OK(driver->stream_synchronize(second));
  EXPECT_EQ(*seen, 5);
  EXPECT_OK(driver->event_query(event));
}

TEST_P(Streams, AWaitSeesTheRecordThatWasLastWhenItWasIssued) {
  auto first = new_stream(), second = new_stream();
  auto event = new_event();
  ASSERT_OK(driver->event_record(event, first));
  ASSERT_OK(driver->stream_wait_event(second, event, 0));
  hold(first, gate);
  ASSERT_OK(driver->event_record(event, first));  // later: does not concern the wait above
  ASSERT_OK(driver->stream_synchronize(second));
  EXPECT_EQ(driver->event_query(event), Status::not_ready);
  open();
  ASSERT_OK(driver->event_synchronize(event));
}

TEST_P(Streams, AnEventNeverRecordedIsDone) {
  auto event = new_event();
  EXPECT_OK(driver->event_query(event));
  EXPECT_OK(driver->event_synchronize(event));
  EXPECT_OK(driver->stream_wait_event(opener, event, 0));
}

TEST_P(Streams, EventsMeasureTimeBetweenThem) {
  auto stream = new_stream();
  auto start = new_event(), end = new_event(), untimed = new_event(event_disable_timing), never = new_event();
  float ms = -1;
  ASSERT_OK(driver->event_record(start, stream));
  hold(stream, gate);
  ASSERT_OK(driver->event_record(end, stream));
  EXPECT_EQ(driver->event_elapsed_time(&ms, start, end), Status::not_ready);
  const auto before = std::chrono::steady_clock::now();
  ASSERT_OK(driver->event_synchronize(start));
  const auto held_from = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - held_from < std::chrono::milliseconds(2))
    std::this_thread::yield();
  open();
  ASSERT_OK(driver->event_synchronize(end));
  ASSERT_OK(driver->event_elapsed_time(&ms, start, end));
  EXPECT_GE(ms, 2.0f);
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(2));
  ASSERT_OK(driver->event_record(untimed, stream));
  ASSERT_OK(driver->event_synchronize(untimed));
  EXPECT_EQ(driver->event_elapsed_time(&ms, start, untimed), Status::invalid_handle);
  EXPECT_EQ(driver->event_elapsed_time(&ms, start, never), Status::invalid_handle);
}

TEST_P(Streams, WaitsForValuesComparesAsAsked) {
  const auto words = upload(std::vector<std::uint32_t>{0xfffffff0u, 6, 0, 0xffffffffu});
  auto geq = new_stream(), bits = new_stream(), nor = new_stream();
  // Cyclic: 0xfffffff0 is 0x10 behind 0.
  ASSERT_OK(driver->stream_wait_value32(geq, words, 0, wait_geq));
  ASSERT_OK(driver->stream_wait_value32(bits, words + 4, 9, wait_and));
  ASSERT_OK(driver->stream_wait_value32(nor, words + 12, 0, wait_nor));
  for (auto stream : {geq, bits, nor}) EXPECT_EQ(driver->stream_query(stream), Status::not_ready);
  ASSERT_OK(driver->stream_write_value32(opener, words, 3, 0));
  ASSERT_OK(driver->stream_write_value32(opener, words + 4, 8, 0));
  ASSERT_OK(driver->stream_write_value32(opener, words + 12, 7, 0));
  for (auto stream : {geq, bits, nor}) EXPECT_OK(driver->stream_synchronize(stream));
  EXPECT_EQ(driver->stream_wait_value32(geq, words, 0, 4), Status::invalid_value);
  EXPECT_EQ(driver->stream_wait_value32(geq, words + 2, 0, 0), Status::invalid_value) << "not aligned";
  EXPECT_EQ(driver->stream_wait_value32(geq, 0x1000, 0, 0), Status::invalid_value) << "no memory";
}

TEST_P(Streams, WaitForValuesThatTheHostWritesToPinnedMemory) {
  auto* flag = pinned<std::uint32_t>(1);
  *flag = 0;
  auto stream = new_stream();
  ASSERT_OK(driver->stream_wait_value32(stream, reinterpret_cast<DevicePtr>(flag), 3, wait_geq));
  EXPECT_EQ(driver->stream_query(stream), Status::not_ready);
  std::atomic_ref<std::uint32_t>(*flag).store(4, std::memory_order_release);
  EXPECT_OK(driver->stream_synchronize(stream));
  std::uint32_t local = 0;
  EXPECT_EQ(driver->stream_wait_value32(stream, reinterpret_cast<DevicePtr>(&local), 3, 0),
            Status::invalid_value)
      << "host memory has to be registered";
}

TEST_P(Streams, TheHostSeesWhatStreamsWriteToPinnedMemory) {
  auto* flag = pinned<std::uint32_t>(1);
  *flag = 0;
  ASSERT_OK(driver->stream_write_value32(opener, reinterpret_cast<DevicePtr>(flag), 9, 0));
  EXPECT_TRUE(eventually([&] { return std::atomic_ref(*flag).load(std::memory_order_acquire) == 9; }));
}

struct Call {
  Driver* driver;
  Context context;
  std::atomic<int> runs{0};
  std::atomic<Status> status{Status::unknown};
};

TEST_P(Streams, HostFunctionsRunInOrderAndMayNotCallTheDriver) {
  auto stream = new_stream();
  Call call{driver.get(), context};
  hold(stream, gate);
  ASSERT_OK(driver->launch_host_func(
      stream,
      [](void* user) {
        auto& mine = *static_cast<Call*>(user);
        int count = 0;
        mine.status = mine.driver->device_get_count(&count);
        ++mine.runs;
      },
      &call));
  EXPECT_EQ(call.runs, 0);
  open();
  ASSERT_OK(driver->stream_synchronize(stream));
  EXPECT_EQ(call.runs, 1);
  EXPECT_EQ(call.status, Status::not_permitted);
}

TEST_P(Streams, DestroyedHandlesAreRefused) {
  auto stream = new_stream();
  auto event = new_event();
  ASSERT_OK(driver->stream_destroy(stream));
  ASSERT_OK(driver->event_destroy(event));
  EXPECT_EQ(driver->stream_synchronize(stream), Status::invalid_handle);
  EXPECT_EQ(driver->stream_destroy(stream), Status::invalid_handle);
  EXPECT_EQ(driver->event_record(event, nullptr), Status::invalid_handle);
  EXPECT_EQ(driver->event_destroy(event), Status::invalid_handle);
  EXPECT_EQ(driver->stream_query(reinterpret_cast<Stream>(std::uintptr_t{0x12345600})),
            Status::invalid_handle);
  EXPECT_NE(new_stream(), stream) << "a handle means one stream for ever";
}

TEST_P(Streams, ADestroyedStreamStillRunsWhatIsInIt) {
  auto stream = new_stream();
  auto* flag = pinned<std::uint32_t>(1);
  *flag = 0;
  hold(stream, gate);
  ASSERT_OK(driver->stream_write_value32(stream, reinterpret_cast<DevicePtr>(flag), 9, 0));
  ASSERT_OK(driver->stream_destroy(stream));
  open();
  EXPECT_TRUE(eventually([&] { return std::atomic_ref(*flag).load(std::memory_order_acquire) == 9; }));
}

TEST_P(Streams, DestroyingAContextEndsItsWaits) {
  Context mine = nullptr;
  ASSERT_OK(driver->ctx_create(&mine, 0, 0));
  const auto never = upload(std::vector<std::uint32_t>{0});
  auto stream = new_stream();
  hold(stream, never);
  EXPECT_EQ(driver->stream_query(stream), Status::not_ready);
  EXPECT_OK(driver->ctx_destroy(mine));
}

TEST_P(Streams, AnEventAndItsStreamBelongToOneContext) {
  auto event = new_event();
  Context mine = nullptr;
  ASSERT_OK(driver->ctx_create(&mine, 0, 0));
  auto stream = new_stream();
  EXPECT_EQ(driver->event_record(event, stream), Status::invalid_handle);
  EXPECT_OK(driver->ctx_destroy(mine));
}

TEST_P(Streams, FreeingWaitsForWorkInFlight) {
  auto stream = new_stream();
  const auto block = upload(std::vector<int>(1 << 16, 1));
  auto* seen = pinned<int>(1 << 16);
  ASSERT_OK(driver->memcpy_dtoh_async(seen, block, 4 << 16, stream));
  ASSERT_OK(driver->mem_free(block));
  EXPECT_EQ(seen[(1 << 16) - 1], 1);
  EXPECT_OK(driver->stream_query(stream));
}

TEST_P(Streams, ManyThreadsUseOneDriver) {
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      driver->ctx_set_current(context);
      Stream stream = nullptr;
      DevicePtr memory = 0;
      if (driver->stream_create(&stream, stream_non_blocking) != Status::success) return;
      for (int round = 0; round < 20; ++round) {
        std::vector<int> seen(256);
        if (driver->mem_alloc(&memory, 1024) != Status::success) return;
        if (driver->memset_d32_async(memory, static_cast<unsigned>(t * 100 + round), 256, stream) !=
            Status::success)
          return;
        if (driver->memcpy_dtoh_async(seen.data(), memory, 1024, stream) != Status::success) return;
        if (seen[255] != t * 100 + round || driver->mem_free(memory) != Status::success) return;
      }
      driver->stream_destroy(stream);
      ++good;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 4);
}

}  // namespace
}  // namespace cenote::cuda::test
