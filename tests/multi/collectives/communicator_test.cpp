// Communicators among others: groups side by side, the ledger, and what is refused.
#include <gmock/gmock.h>
#include <time.h>

#include <atomic>
#include <mutex>

#include "runtime/ledger.h"
#include "tests/multi/collectives/ranks.h"
#include "tests/unit/collectives/reference.h"

namespace cenote::collectives {
namespace {

using ::testing::HasSubstr;

TEST(Communicator, SeveralGroupsRunAtOnceInOneProcess) {
  std::vector<std::thread> groups;
  for (std::uint32_t g = 0; g < 3; ++g) {
    groups.emplace_back([g] {
      run(g == 1 ? Mode::tcp : Mode::shm, 3, "auto", [g](Communicator& communicator) {
        for (std::uint64_t i = 0; i < 40; ++i) {
          std::vector<Bytes> shards;
          for (std::uint32_t r = 0; r < 3; ++r) shards.push_back(shard(CENOTE_FLOAT64, 2000, r, 100 * g + i));
          auto buffer = shards[communicator.rank()];
          auto done = finish(communicator, communicator.allreduce(memory_of(buffer), memory_of(buffer), 2000,
                                                                  CENOTE_FLOAT64, CENOTE_SUM));
          ASSERT_TRUE(done.has_value()) << done.error().message();
          ASSERT_TRUE(buffer == reduced(CENOTE_FLOAT64, CENOTE_SUM, "auto", std::move(shards)));
        }
      });
    });
  }
  for (auto& group : groups) group.join();
}

double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

TEST(Communicator, FourRanksThatWaitForAFifthUseNoProcessor) {
  for (const auto mode : {Mode::shm, Mode::tcp}) {
    constexpr double pause = 2;
    run(mode, 5, "auto", [&](Communicator& communicator) {
      ASSERT_TRUE(finish(communicator, communicator.barrier()).has_value());
      if (communicator.rank() == 4) std::this_thread::sleep_for(std::chrono::duration<double>(pause));
      const auto before = thread_seconds();
      const auto done = finish(communicator, communicator.barrier());
      ASSERT_TRUE(done.has_value()) << done.error().message();
      EXPECT_LT(thread_seconds() - before, pause / 8) << name_of(mode) << " rank " << communicator.rank();
    });
  }
}

TEST(Communicator, ListsWhatIsInFlightInTheLedgerWithTheRankItWaitsFor) {
  Ledger ledger;
  auto all = std::vector{options_for(Mode::shm, 0, 2), options_for(Mode::shm, 1, 2)};
  all[0].ledger = &ledger;
  all[0].group = 7;
  std::atomic<bool> seen{false};
  on_threads(
      all,
      [&](Communicator& communicator) {
        if (communicator.rank() == 0) {
          auto done = finish(communicator, communicator.barrier());
          EXPECT_TRUE(done.has_value()) << done.error().message();
          EXPECT_TRUE(ledger.snapshot().empty());
          return;
        }
        // Rank 0 waits until this rank has seen it wait.
        const auto limit = Deadline::in(std::chrono::seconds(30));
        while (!seen && !limit.passed()) {
          for (const auto& row : ledger.snapshot()) {
            if (row.waits_for == 1 && row.operation == "barrier" && row.group == 7 && row.rank == 0)
              seen = true;
          }
        }
        EXPECT_TRUE(finish(communicator, communicator.barrier()).has_value());
      },
      [](std::uint32_t, const Error& error) { ADD_FAILURE() << error.message(); });
  EXPECT_TRUE(seen);
}

TEST(Communicator, RefusesRanksThatDisagreeAboutAnOption) {
  std::vector<CommunicatorOptions> all;
  for (std::uint32_t r = 0; r < 3; ++r) all.push_back(options_for(Mode::shm, r, 3));
  all[2].algorithm = "ring";
  std::mutex mutex;
  std::vector<Error> errors;
  on_threads(
      all, [](Communicator&) { ADD_FAILURE() << "a communicator was made"; },
      [&](std::uint32_t, const Error& error) {
        const std::lock_guard lock(mutex);
        errors.push_back(error);
      });
  ASSERT_EQ(errors.size(), 3U);
  for (const auto& error : errors) {
    EXPECT_EQ(error.code, ErrorCode::invalid_argument);
    EXPECT_EQ(error.peer, "rank 2");
    EXPECT_THAT(error.message(), HasSubstr("rank 0 has algorithm auto, rank 2 has algorithm ring"));
  }
}

TEST(Communicator, RefusesArgumentsThatMakeNoSenseAndStaysWell) {
  run(Mode::shm, 1, "auto", [](Communicator& communicator) {
    Bytes buffer(100);
    const auto code = [](const Result<Request>& request) {
      return request ? ErrorCode::internal : request.error().code;
    };
    const auto all = memory_of(buffer);
    const auto later = MemoryDescription::of_host(buffer.data() + 4, 96);
    EXPECT_EQ(code(communicator.allreduce(all, all, 26, CENOTE_FLOAT32, CENOTE_SUM)),
              ErrorCode::invalid_argument);
    EXPECT_EQ(code(communicator.allreduce(all, later, 10, CENOTE_FLOAT32, CENOTE_SUM)),
              ErrorCode::invalid_argument);
    EXPECT_EQ(code(communicator.allreduce(all, all, ~std::size_t{0}, CENOTE_FLOAT64, CENOTE_SUM)),
              ErrorCode::invalid_argument);
    EXPECT_EQ(code(communicator.allreduce(all, all, 1, static_cast<DataType>(99), CENOTE_SUM)),
              ErrorCode::invalid_argument);
    EXPECT_EQ(code(communicator.allreduce(all, all, 1, CENOTE_INT32, static_cast<ReduceOp>(99))),
              ErrorCode::invalid_argument);
    EXPECT_EQ(code(communicator.broadcast(all, 1, CENOTE_INT32, 1)), ErrorCode::invalid_argument);
    MemoryDescription leased = all;
    leased.kind = MemoryKind::remote;
    leased.home = "lease 7f3a/cuda:0";
    const auto refused = communicator.allreduce(leased, leased, 1, CENOTE_INT32, CENOTE_SUM);
    EXPECT_EQ(code(refused), ErrorCode::not_supported);
    EXPECT_THAT(refused.error().message(), HasSubstr("lease 7f3a/cuda:0"));
    Request never{77};
    EXPECT_EQ(communicator.wait(never, Deadline::never()).error().code, ErrorCode::invalid_argument);
    EXPECT_TRUE(
        finish(communicator, communicator.allreduce(all, all, 25, CENOTE_FLOAT32, CENOTE_AVG)).has_value());
  });
}

}  // namespace
}  // namespace cenote::collectives
