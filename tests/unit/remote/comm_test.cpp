// Pooled communicators: four devices on three workers reduce among themselves.
#include <gmock/gmock.h>

#include "tests/unit/remote/rig.h"

namespace cenote::pool::remote {
namespace {

using cuda::Status;
using test::Rig;
using testing::HasSubstr;

constexpr std::size_t MiB = std::size_t{1} << 20;

cuda::EmulatorOptions small() {
  cuda::EmulatorOptions options;
  options.devices.front().model = "H200";
  options.devices.front().memory_bytes = 128 * MiB;
  options.devices.front().context_bytes = MiB;
  return options;
}

/// Buffers and a stream for each rank; contribution of rank r to element i is (i % 1000) * (r + 1), so that
/// the sum is exact in every order.
struct Group {
  Group(RemoteDriver& d, const std::vector<cuda::DeviceId>& devices, std::size_t n) : driver(d), count(n) {
    EXPECT_EQ(driver.init(0), Status::success);
    for (std::size_t r = 0; r < devices.size(); ++r) {
      cuda::Context context = nullptr;
      EXPECT_EQ(driver.primary_ctx_retain(&context, devices[r]), Status::success);
      contexts.push_back(context);
      EXPECT_EQ(driver.ctx_set_current(context), Status::success);
      cuda::DevicePtr pointer = 0;
      EXPECT_EQ(driver.mem_alloc(&pointer, n * 4), Status::success) << driver.last_error_detail();
      buffers.push_back(pointer);
      cuda::Stream stream = nullptr;
      EXPECT_EQ(driver.stream_create(&stream, cuda::stream_non_blocking), Status::success);
      streams.push_back(stream);
    }
  }
  void fill() {
    std::vector<float> values(count);
    for (std::size_t r = 0; r < buffers.size(); ++r) {
      for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>((i % 1000) * (r + 1));
      EXPECT_EQ(driver.memcpy_htod_async(buffers[r], values.data(), count * 4, streams[r]), Status::success);
    }
  }
  Status synchronise() {
    auto all = Status::success;
    for (auto* stream : streams) {
      const auto status = driver.stream_synchronize(stream);
      if (all == Status::success) all = status;
    }
    return all;
  }
  std::vector<float> read(std::size_t rank) {
    EXPECT_EQ(driver.ctx_set_current(contexts[rank]), Status::success);
    std::vector<float> values(count);
    EXPECT_EQ(driver.memcpy_dtoh(values.data(), buffers[rank], count * 4), Status::success)
        << driver.last_error_detail();
    return values;
  }
  [[nodiscard]] std::vector<float> expected() const {
    std::size_t factor = 0;
    for (std::size_t r = 0; r < buffers.size(); ++r) factor += r + 1;
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>((i % 1000) * factor);
    return values;
  }
  RemoteDriver& driver;
  std::size_t count;
  std::vector<cuda::Context> contexts;
  std::vector<cuda::DevicePtr> buffers;
  std::vector<cuda::Stream> streams;
};

class Pooled : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, Pooled, testing::Values("shm", "tcp"));

TEST_P(Pooled, AllreduceOverThreeWorkersEqualsTheReferenceAndBypassesTheClient) {
  Rig rig(GetParam(), {2, 1, 1}, small());
  ASSERT_NE(rig.client, nullptr);
  auto made = rig.client->communicator({0, 1, 2, 3}, Deadline::in(std::chrono::seconds(30)));
  ASSERT_TRUE(made) << made.error().message();
  auto& communicator = **made;
  std::vector<std::uint64_t> spent;
  for (const std::size_t count : {std::size_t{1000}, 4 * MiB}) {
    Group group(*rig.client, {0, 1, 2, 3}, count);
    group.fill();
    ASSERT_EQ(group.synchronise(), Status::success);
    const auto before = rig.client->remote_stats();
    const auto issued = communicator.allreduce(group.buffers, group.buffers, count, CENOTE_FLOAT32,
                                               CENOTE_SUM, group.streams);
    ASSERT_TRUE(issued) << issued.error().message();
    ASSERT_EQ(group.synchronise(), Status::success) << rig.client->last_error_detail();
    const auto after = rig.client->remote_stats();
    spent.push_back(after.bytes_sent + after.bytes_received - before.bytes_sent - before.bytes_received);
    for (std::size_t rank = 0; rank < 4; ++rank)
      ASSERT_EQ(group.read(rank), group.expected()) << "rank " << rank;
  }
  EXPECT_LT(spent[1], spent[0] + 4096) << "4 MiB and 4 KiB must cost the client the same";
  EXPECT_FALSE(communicator.failure());
  const auto stats = communicator.stats();
  ASSERT_TRUE(stats) << stats.error().message();
  std::uint64_t exchanged = 0;
  for (const auto& pair : *stats) exchanged += pair.bytes_sent;
  EXPECT_GT(exchanged, 4 * MiB * 4);
}

TEST_P(Pooled, TwoRanksOnOneDeviceAndManyRoundsInStreamOrder) {
  Rig rig(GetParam(), {1}, small());
  ASSERT_NE(rig.client, nullptr);
  auto made = rig.client->communicator({0, 0}, Deadline::in(std::chrono::seconds(30)));
  ASSERT_TRUE(made) << made.error().message();
  Group group(*rig.client, {0, 0}, 777);
  // No synchronisation between the rounds: uploads, sums and uploads again are ordered by the streams alone.
  for (int round = 0; round < 20; ++round) {
    group.fill();
    ASSERT_TRUE((*made)->allreduce(group.buffers, group.buffers, group.count, CENOTE_FLOAT32, CENOTE_SUM,
                                   group.streams));
  }
  ASSERT_EQ(group.synchronise(), Status::success) << rig.client->last_error_detail();
  EXPECT_EQ(group.read(0), group.expected());
  EXPECT_EQ(group.read(1), group.expected());
}

TEST_P(Pooled, BroadcastGivesEveryRankTheRootsElements) {
  Rig rig(GetParam(), {1, 1, 1}, small());
  ASSERT_NE(rig.client, nullptr);
  auto made = rig.client->communicator({0, 1, 2}, Deadline::in(std::chrono::seconds(30)));
  ASSERT_TRUE(made) << made.error().message();
  Group group(*rig.client, {0, 1, 2}, 5000);
  group.fill();
  ASSERT_EQ(group.synchronise(), Status::success);
  const auto root = group.read(2);
  ASSERT_TRUE((*made)->broadcast(group.buffers, group.count, CENOTE_FLOAT32, 2, group.streams));
  ASSERT_EQ(group.synchronise(), Status::success) << rig.client->last_error_detail();
  for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(group.read(rank), root);
}

TEST_P(Pooled, ALostWorkerEndsThePeersCollectiveWithItsRankNamed) {
  Rig rig(GetParam(), {1, 1, 1}, small());
  ASSERT_NE(rig.client, nullptr);
  auto made = rig.client->communicator({0, 1, 2}, Deadline::in(std::chrono::seconds(30)));
  ASSERT_TRUE(made) << made.error().message();
  Group group(*rig.client, {0, 1, 2}, MiB);
  group.fill();
  ASSERT_EQ(group.synchronise(), Status::success);
  // Rank 2 never comes to the sum: its stream is held, then its worker is gone.
  cuda::DevicePtr gate = 0;
  ASSERT_EQ(rig.client->ctx_set_current(group.contexts[2]), Status::success);
  ASSERT_EQ(rig.client->mem_alloc(&gate, 4), Status::success);
  ASSERT_EQ(rig.client->memset_d8(gate, 0, 4), Status::success);
  ASSERT_EQ(rig.client->ctx_synchronize(), Status::success);
  ASSERT_EQ(rig.client->stream_wait_value32(group.streams[2], gate, 1, cuda::wait_eq), Status::success);
  ASSERT_TRUE((*made)->allreduce(group.buffers, group.buffers, group.count, CENOTE_FLOAT32, CENOTE_SUM,
                                 group.streams));
  rig.workers[2]->stop();
  EXPECT_NE(rig.client->stream_synchronize(group.streams[0]), Status::success);
  EXPECT_THAT(rig.client->last_error_detail(), HasSubstr("rank 2"));
  EXPECT_NE(rig.client->stream_synchronize(group.streams[1]), Status::success);
  EXPECT_EQ(rig.client->stream_synchronize(group.streams[2]), Status::launch_failed);
  const auto failure = (*made)->failure();
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->message(), HasSubstr("rank 2 (lease 7f3a gpu 2 (H200 on agent-c))"));
}

Rig rig_with(const char* transport, const std::vector<CollectiveOptions>& of_workers) {
  return {transport,
          std::vector<std::size_t>(of_workers.size(), 1),
          small(),
          0,
          WorkerOptions{}.module_bytes,
          default_worker_timeout,
          of_workers};
}

TEST_P(Pooled, WorkersThatWereToldDifferentAlgorithmsFormNoGroupAndSayWhy) {
  auto rig = rig_with(GetParam(), {{.algorithm = "ring"}, {.algorithm = "recursive_doubling"}});
  ASSERT_NE(rig.client, nullptr);
  const auto made = rig.client->communicator({0, 1}, Deadline::in(std::chrono::seconds(30)));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(made.error().message(),
              HasSubstr("rank 0 has algorithm ring, rank 1 has algorithm recursive_doubling"));
}

TEST_P(Pooled, ACollectiveEndsAtTheTimeoutOfItsWorkers) {
  const CollectiveOptions hasty{.timeout = std::chrono::milliseconds(1500)};
  auto rig = rig_with(GetParam(), {hasty, hasty});
  ASSERT_NE(rig.client, nullptr);
  auto made = rig.client->communicator({0, 1}, Deadline::in(std::chrono::seconds(30)));
  ASSERT_TRUE(made) << made.error().message();
  Group group(*rig.client, {0, 1}, 100);
  group.fill();
  ASSERT_EQ(group.synchronise(), Status::success);
  // Rank 1 never comes to the sum: its stream is held.
  cuda::DevicePtr gate = 0;
  ASSERT_EQ(rig.client->ctx_set_current(group.contexts[1]), Status::success);
  ASSERT_EQ(rig.client->mem_alloc(&gate, 4), Status::success);
  ASSERT_EQ(rig.client->memset_d8(gate, 0, 4), Status::success);
  ASSERT_EQ(rig.client->ctx_synchronize(), Status::success);
  ASSERT_EQ(rig.client->stream_wait_value32(group.streams[1], gate, 1, cuda::wait_eq), Status::success);
  const auto began = Clock::now();
  ASSERT_TRUE((*made)->allreduce(group.buffers, group.buffers, group.count, CENOTE_FLOAT32, CENOTE_SUM,
                                 group.streams));
  EXPECT_NE(rig.client->stream_synchronize(group.streams[0]), Status::success);
  EXPECT_GE(Clock::now() - began, hasty.timeout);
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(25)) << "well below the default";
  const auto failure = (*made)->failure();
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->message(), HasSubstr("rank 1 (lease 7f3a gpu 1"));
  // Lets the stream go; the first calls may be told of the failure instead.
  const std::uint32_t open = 1;
  auto let_go = Status::unknown;
  for (int call = 0; call < 10 && let_go != Status::success; ++call)
    let_go = rig.client->memcpy_htod(gate, &open, sizeof open);
  EXPECT_EQ(let_go, Status::success) << rig.client->last_error_detail();
  (void)rig.client->stream_synchronize(group.streams[1]);
}

TEST_P(Pooled, ABufferThatIsTooShortIsRefusedBeforeAnythingIsSent) {
  Rig rig(GetParam(), {1, 1}, small());
  ASSERT_NE(rig.client, nullptr);
  auto made = rig.client->communicator({0, 1}, Deadline::in(std::chrono::seconds(30)));
  ASSERT_TRUE(made) << made.error().message();
  Group group(*rig.client, {0, 1}, 100);
  const auto refused =
      (*made)->allreduce(group.buffers, group.buffers, 101, CENOTE_FLOAT32, CENOTE_SUM, group.streams);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(refused.error().message(), HasSubstr("rank 0 (lease 7f3a gpu 0"));
}

}  // namespace
}  // namespace cenote::pool::remote
