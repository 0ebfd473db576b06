// The executor on memory that the CPU cannot touch, and on buffers that are not ready yet.
#include <gmock/gmock.h>

#include <cstring>

#include "collectives/reduce/reduce.h"
#include "tests/unit/collectives/executor_group.h"

namespace cenote::collectives {
namespace {

using ::testing::HasSubstr;

TEST(Executor, ReducesDeviceMemoryThroughItsAccessor) {
  constexpr std::uint32_t ranks = 3;
  constexpr std::uint64_t count = 100;
  constexpr std::uint64_t base = 0x7000'0000'0000ULL;  // a device address: a load there would crash
  Group group(ranks, 21);
  std::vector<Bytes> devices;
  std::vector<Bytes> shards;
  std::vector<Result<std::uint64_t>> sequences;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    shards.push_back(shard(CENOTE_BFLOAT16, count, r));
    devices.push_back(shards.back());
  }
  for (std::uint32_t r = 0; r < ranks; ++r) {
    auto access = std::make_shared<DeviceAccess>();
    access->read = [&heap = devices[r]](std::byte* host, std::uint64_t device,
                                        std::size_t bytes) -> Result<void> {
      std::memcpy(host, std::span(heap).subspan(device - base, bytes).data(), bytes);
      return {};
    };
    access->write = [&heap = devices[r]](std::uint64_t device, const std::byte* host,
                                         std::size_t bytes) -> Result<void> {
      std::memcpy(std::span(heap).subspan(device - base, bytes).data(), host, bytes);
      return {};
    };
    MemoryDescription memory{MemoryKind::device, base,  count * 2, false, false, false, false,
                             "cuda:0",           access};
    sequences.push_back(group.executors[r]->start(
        {Operation::allreduce, count, CENOTE_BFLOAT16, CENOTE_AVG, 0, memory, memory, true}));
  }
  for (const auto& done : group.finish(sequences)) ASSERT_TRUE(done.has_value()) << done.error().message();
  const auto expected = reduced(CENOTE_BFLOAT16, CENOTE_AVG, "auto", shards);
  for (const auto& heap : devices) EXPECT_EQ(heap, expected);
}

TEST(Executor, ADeviceThatReducesIsGivenWhatComesFromItsPeers) {
  constexpr std::uint64_t count = 100;
  auto options = small_chunks();
  options.algorithm = "ring";
  Group group(2, 4, options);
  std::vector<Bytes> shards{shard(CENOTE_FLOAT64, count, 0), shard(CENOTE_FLOAT64, count, 1)};
  std::vector<Bytes> heaps;
  for (const auto& one : shards) heaps.push_back(one);
  for (auto& heap : heaps) heap.resize(2 * count * 8);  // the input, then the output
  std::vector<Result<std::uint64_t>> sequences;
  std::size_t reduced_there = 0, divided_there = 0;
  for (std::uint32_t r = 0; r < 2; ++r) {
    auto access = std::make_shared<DeviceAccess>();
    auto& heap = heaps[r];
    access->read = [&heap](std::byte* host, std::uint64_t at, std::size_t bytes) -> Result<void> {
      std::memcpy(host, heap.data() + at - 0x1000, bytes);
      return {};
    };
    access->write = [&heap](std::uint64_t at, const std::byte* host, std::size_t bytes) -> Result<void> {
      std::memcpy(heap.data() + at - 0x1000, host, bytes);
      return {};
    };
    access->reduce = [&](std::uint64_t dst, std::uint64_t own, const std::byte* incoming,
                         std::size_t elements, int type, int op) -> Result<void> {
      reduce_kernel(static_cast<DataType>(type), static_cast<ReduceOp>(op))(
          heap.data() + dst - 0x1000, heap.data() + own - 0x1000, incoming, elements);
      reduced_there += elements;
      return {};
    };
    access->divide = [&](std::uint64_t x, std::size_t elements, int type, unsigned by) -> Result<void> {
      divide_kernel(static_cast<DataType>(type))(heap.data() + x - 0x1000, elements, by);
      divided_there += elements;
      return {};
    };
    MemoryDescription in{MemoryKind::device, 0x1000, count * 8, false, false, false, false, "cuda:0", access};
    auto out = in;
    out.address += count * 8;
    sequences.push_back(group.executors[r]->start(
        {Operation::allreduce, count, CENOTE_FLOAT64, CENOTE_AVG, 0, in, out, false}));
  }
  for (const auto& done : group.finish(sequences)) ASSERT_TRUE(done.has_value()) << done.error().message();
  const auto expected = reduced(CENOTE_FLOAT64, CENOTE_AVG, "ring", shards);
  for (const auto& heap : heaps)
    EXPECT_EQ(Bytes(heap.begin() + static_cast<std::ptrdiff_t>(count * 8), heap.end()), expected);
  // In a ring of two each rank reduces one half of the vector.
  EXPECT_EQ(reduced_there, count);
  EXPECT_EQ(divided_there, count);
}

TEST(Executor, AFailingDeviceEndsTheGroupWithItsOwnError) {
  Group group(2, 1);
  std::vector<Buffers> buffers(2);
  auto access = std::make_shared<DeviceAccess>();
  access->read = [](std::byte*, std::uint64_t, std::size_t) -> Result<void> {
    return fail(Error{ErrorCode::driver_error, "copy from device", "CUDA_ERROR_ILLEGAL_ADDRESS", "cuda:0", "",
                      "", 700});
  };
  access->write = [](std::uint64_t, const std::byte*, std::size_t) -> Result<void> { return {}; };
  buffers[1] = {shard(CENOTE_FLOAT32, 50, 1), Bytes(200)};
  MemoryDescription memory{MemoryKind::device, 0x7000, 200, false, false, false, false, "cuda:0", access};
  std::vector<Result<std::uint64_t>> sequences;
  sequences.push_back(group.executors[0]->start(
      {Operation::allreduce, 50, CENOTE_FLOAT32, CENOTE_SUM, 0, memory, memory, true}));
  sequences.push_back(
      group.executors[1]->start(allreduce_call(buffers[1], 50, CENOTE_FLOAT32, CENOTE_SUM, false)));
  const auto results = group.finish(sequences);
  ASSERT_FALSE(results[0].has_value());
  EXPECT_EQ(results[0].error().native, 700);
  ASSERT_FALSE(results[1].has_value());
  EXPECT_EQ(results[1].error().peer, "rank 0");
  EXPECT_THAT(results[1].error().message(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST(Executor, AnOperationTouchesNothingBeforeItsGateOpensAndHoldsUpOnlyWhatComesAfter) {
  Group group(2, 8);
  std::vector<Bytes> buffers(2);
  buffers[0] = shard(CENOTE_INT64, 40, 0);
  const auto original = buffers[0];
  std::vector<Result<std::uint64_t>> sequences;
  bool open = false;
  for (std::uint32_t r = 0; r < 2; ++r) {
    buffers[r].resize(320);
    const auto memory = MemoryDescription::of_host(buffers[r].data(), buffers[r].size());
    Call call{Operation::broadcast, 40, CENOTE_INT64, CENOTE_SUM, 0, memory, memory, true, {}, {}};
    if (r == 1) call.gate = [&open]() -> Result<bool> { return open; };
    sequences.push_back(group.executors[r]->start(call));
  }
  for (int turn = 0; turn < 200; ++turn) {
    for (std::uint32_t r = 0; r < 2; ++r) ASSERT_FALSE(group.executors[r]->test(*sequences[r]).value());
  }
  EXPECT_EQ(buffers[1], Bytes(320)) << "nothing was written";
  open = true;
  for (const auto& done : group.finish(sequences)) ASSERT_TRUE(done.has_value()) << done.error().message();
  EXPECT_EQ(buffers[1], original);
}

TEST(Executor, AGateThatFailsEndsTheGroupAndOneThatStaysShutIsSaidToBe) {
  auto options = small_chunks();
  options.timeout = std::chrono::seconds(3);  // long enough for all notes to go round before
  for (const bool fails : {true, false}) {
    Group group(2, 8, options);
    std::vector<Result<std::uint64_t>> sequences;
    for (std::uint32_t r = 0; r < 2; ++r) {
      Call call{Operation::barrier, 1, CENOTE_INT32, CENOTE_MAX, 0, {}, {}, false, {}, {}};
      if (r == 1) {
        call.gate = [fails]() -> Result<bool> {
          if (!fails) return false;
          return fail(ErrorCode::driver_error, "wait for the stream's earlier work", "launch failed");
        };
      }
      sequences.push_back(group.executors[r]->start(call));
    }
    const auto results = group.finish(sequences);
    ASSERT_FALSE(results[1].has_value());
    EXPECT_EQ(results[1].error().code, fails ? ErrorCode::driver_error : ErrorCode::deadline_exceeded);
    EXPECT_THAT(results[1].error().message(), HasSubstr(fails ? "launch failed" : "its stream has not done"));
    ASSERT_FALSE(results[0].has_value());
    EXPECT_EQ(results[0].error().peer, "rank 1") << results[0].error().message();
  }
}

}  // namespace
}  // namespace cenote::collectives
