// Communicators among others: groups side by side, the ledger, and what is refused.
#include <gmock/gmock.h>
#include <time.h>

#include <atomic>
#include <functional>
#include <mutex>

#include "collectives/window.h"
#include "collectives/wire.h"
#include "runtime/ledger_reader.h"
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

/// What this process's ranks have in flight, of groups of `size`.
std::vector<LedgerCopy> own_ledgers(std::uint32_t size) {
  std::vector<LedgerCopy> own;
  auto search = find_ledgers();
  EXPECT_TRUE(search.has_value()) << search.error().message();
  for (auto& one : search->found)
    if (one.pid == ::getpid() && one.ledger.size == size) own.push_back(std::move(one.ledger));
  return own;
}

bool any_row(std::uint32_t size, const std::function<bool(const LedgerCopy&, const LedgerRow&)>& is) {
  const auto limit = Deadline::in(std::chrono::seconds(30));
  while (!limit.passed()) {
    for (const auto& ledger : own_ledgers(size))
      for (const auto& row : ledger.rows)
        if (is(ledger, row)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(Communicator, ListsWhatIsInFlightInTheLedgerWithTheRankItWaitsFor) {
  run(Mode::shm, 2, "auto", [](Communicator& communicator) {
    Bytes buffer(4000);
    const auto reduce = [&] {
      return finish(communicator, communicator.allreduce(memory_of(buffer), memory_of(buffer), 1000,
                                                         CENOTE_FLOAT32, CENOTE_SUM));
    };
    if (communicator.rank() == 1) {
      // Rank 0 waits until this rank has seen it wait.
      EXPECT_TRUE(any_row(2, [](const auto& ledger, const auto& row) {
        return ledger.rank == 0 && row.operation == "allreduce" && row.bytes == 4000 && row.sequence == 2 &&
               ledger.begun == 2 && row.stage == "reduce" && row.wait.on == 1 && row.wait.at_the_end == 1 &&
               wire::text(wire::unpacked(row.detail, row.count)) == "allreduce of 1000 float32 by sum";
      }));
    }
    EXPECT_TRUE(reduce().has_value());
    if (communicator.rank() == 0) {
      for (const auto& ledger : own_ledgers(2)) EXPECT_TRUE(ledger.rank != 0 || ledger.rows.empty());
    }
    EXPECT_TRUE(finish(communicator, communicator.barrier()).has_value());
  });
  EXPECT_TRUE(own_ledgers(2).empty());
}

TEST(Communicator, ListsWhoIsAloneInAGroupThatForms) {
  auto root = BootstrapRoot::create("127.0.0.1");
  ASSERT_TRUE(root.has_value());
  CancelFlag cancel;
  std::thread waits([&] {
    auto options = options_for(Mode::shm, 1, 7);
    options.id = (*root)->id();
    options.cancel = &cancel;
    EXPECT_FALSE(Communicator::create(options).has_value());
  });
  EXPECT_TRUE(any_row(7, [](const auto& ledger, const auto& row) {
    return ledger.rank == 1 && row.operation == "create" && row.sequence == 0;
  }));
  cancel.raise();
  waits.join();
}

TEST(Communicator, ListsAWaitForASignal) {
  run(Mode::shm, 3, "auto", [](Communicator& communicator) {
    auto window = communicator.create_window({});
    ASSERT_TRUE(window.has_value()) << window.error().message();
    if (communicator.rank() == 0) {
      const auto came = communicator.wait_signal(2, 5, 1, Deadline::in(std::chrono::seconds(30)));
      EXPECT_TRUE(came.has_value()) << came.error().message();
    } else if (communicator.rank() == 2) {
      EXPECT_TRUE(any_row(3, [](const auto& ledger, const auto& row) {
        return ledger.rank == 0 && row.operation == "wait for signal" && row.sequence == 5 &&
               row.wait.on == 2;
      }));
      EXPECT_TRUE(finish(communicator, communicator.signal(0, 5)).has_value());
    }
    EXPECT_TRUE(finish(communicator, communicator.barrier()).has_value());
  });
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
