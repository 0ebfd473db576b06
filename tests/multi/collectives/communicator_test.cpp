// Communicators over real transports, a thread a rank: every operation against the proved order, to the bit.
#include <gmock/gmock.h>
#include <time.h>

#include <atomic>
#include <cmath>
#include <latch>
#include <map>
#include <mutex>

#include "runtime/ledger.h"
#include "tests/multi/collectives/ranks.h"
#include "tests/unit/collectives/reference.h"

namespace cenote::collectives {
namespace {

using ::testing::HasSubstr;

MemoryDescription memory_of(Bytes& bytes) { return MemoryDescription::of_host(bytes.data(), bytes.size()); }

void run(Mode mode, std::uint32_t ranks, const std::string& algorithm,
         const std::function<void(Communicator&)>& body) {
  std::vector<CommunicatorOptions> all;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    all.push_back(options_for(mode, r, ranks));
    all.back().algorithm = algorithm;
  }
  on_threads(std::move(all), body, [](std::uint32_t rank, const Error& error) {
    ADD_FAILURE() << "rank " << rank << ": " << error.message();
  });
}

Result<void> finish(Communicator& communicator, Result<Request> request) {
  if (!request) return fail(std::move(request).error());
  return communicator.wait(*request, Deadline::never());
}

constexpr DataType all_types[] = {CENOTE_FLOAT32,  CENOTE_FLOAT64, CENOTE_FLOAT16,
                                  CENOTE_BFLOAT16, CENOTE_INT32,   CENOTE_INT64};
constexpr ReduceOp all_ops[] = {CENOTE_SUM, CENOTE_MIN, CENOTE_MAX, CENOTE_AVG};

struct Job {
  DataType type;
  ReduceOp op;
  std::uint64_t count;
  Bytes expected;
};

std::vector<Job> jobs_for(std::uint32_t ranks, const std::string& algorithm) {
  std::vector<Job> jobs;
  const auto add = [&](DataType type, ReduceOp op, std::uint64_t count) {
    std::vector<Bytes> shards;
    for (std::uint32_t r = 0; r < ranks; ++r) shards.push_back(shard(type, count, r));
    jobs.push_back({type, op, count, reduced(type, op, algorithm, std::move(shards))});
  };
  for (auto type : all_types) {
    for (auto op : all_ops) {
      for (std::uint64_t count : {0ULL, 1ULL, ranks - 1ULL, 37ULL, 4099ULL}) add(type, op, count);
    }
  }
  add(CENOTE_FLOAT32, CENOTE_SUM, 300'007);
  add(CENOTE_FLOAT16, CENOTE_AVG, 1'000'003);
  return jobs;
}

struct Case {
  Mode mode;
  std::uint32_t ranks;
};

class Ranks : public ::testing::TestWithParam<Case> {};

TEST_P(Ranks, AllreduceHasTheProvedBits) {
  const auto [mode, ranks] = GetParam();
  for (const auto* algorithm : {"auto", "ring", "recursive_doubling"}) {
    const auto jobs = jobs_for(ranks, algorithm);
    run(mode, ranks, algorithm, [&](Communicator& communicator) {
      bool in_place = false;
      for (const auto& job : jobs) {
        in_place = !in_place;
        auto send = shard(job.type, job.count, communicator.rank());
        Bytes recv = in_place ? send : Bytes(send.size());
        auto done =
            finish(communicator, communicator.allreduce(in_place ? memory_of(recv) : memory_of(send),
                                                        memory_of(recv), job.count, job.type, job.op));
        ASSERT_TRUE(done.has_value()) << done.error().message();
        ASSERT_TRUE(recv == job.expected)
            << to_string(job.type) << " " << to_string(job.op) << " x " << job.count << " by " << algorithm
            << " at rank " << communicator.rank();
      }
    });
  }
}

TEST_P(Ranks, AllgatherAndBroadcastBringEverythingEverywhere) {
  const auto [mode, ranks] = GetParam();
  for (const auto* algorithm : {"ring", "recursive_doubling"}) {
    run(mode, ranks, algorithm, [&, size = ranks](Communicator& communicator) {
      for (std::uint64_t count : {0ULL, 1ULL, 37ULL, 70'001ULL}) {
        for (auto type : {CENOTE_FLOAT16, CENOTE_INT64}) {
          const auto bytes = count * size_of(type);
          Bytes expected;
          for (std::uint32_t r = 0; r < size; ++r) {
            const auto part = shard(type, count, r);
            expected.insert(expected.end(), part.begin(), part.end());
          }
          auto send = shard(type, count, communicator.rank());
          Bytes recv(bytes * size);
          auto done =
              finish(communicator, communicator.allgather(memory_of(send), memory_of(recv), count, type));
          ASSERT_TRUE(done.has_value()) << done.error().message();
          ASSERT_TRUE(recv == expected) << "out of place, " << count;
          std::fill(recv.begin(), recv.end(), std::byte{0});
          auto* own = recv.data() + communicator.rank() * bytes;
          if (bytes > 0) std::memcpy(own, send.data(), bytes);
          done = finish(communicator, communicator.allgather(MemoryDescription::of_host(own, bytes),
                                                             memory_of(recv), count, type));
          ASSERT_TRUE(done.has_value()) << done.error().message();
          ASSERT_TRUE(recv == expected) << "in place, " << count;
          for (std::uint32_t root = 0; root < size; root += 2) {
            auto buffer = communicator.rank() == root ? shard(type, count, root, 5) : Bytes(bytes);
            done = finish(communicator, communicator.broadcast(memory_of(buffer), count, type, root));
            ASSERT_TRUE(done.has_value()) << done.error().message();
            ASSERT_TRUE(buffer == shard(type, count, root, 5)) << "from " << root;
          }
        }
      }
    });
  }
}

TEST_P(Ranks, NobodyLeavesABarrierBeforeEverybodyHasCome) {
  const auto [mode, ranks] = GetParam();
  std::atomic<std::uint32_t> came{0};
  run(mode, ranks, "auto", [&, size = ranks](Communicator& communicator) {
    for (std::uint32_t round = 1; round <= 50; ++round) {
      came.fetch_add(1);
      auto done = finish(communicator, communicator.barrier());
      ASSERT_TRUE(done.has_value()) << done.error().message();
      ASSERT_GE(came.load(), round * size);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, Ranks,
                         ::testing::Values(Case{Mode::shm, 1}, Case{Mode::shm, 2}, Case{Mode::shm, 3},
                                           Case{Mode::shm, 4}, Case{Mode::shm, 5}, Case{Mode::shm, 8},
                                           Case{Mode::tcp, 2}, Case{Mode::tcp, 3}, Case{Mode::tcp, 4},
                                           Case{Mode::tcp, 5}, Case{Mode::tcp, 8}, Case{Mode::mixed, 3},
                                           Case{Mode::mixed, 4}, Case{Mode::mixed, 8}),
                         [](const auto& tested) {
                           return name_of(tested.param.mode) + "_" + std::to_string(tested.param.ranks);
                         });

TEST(Communicator, ManyOperationsInFlightEndInAnyOrder) {
  run(Mode::mixed, 4, "auto", [](Communicator& communicator) {
    constexpr std::size_t operations = 24;
    std::vector<Bytes> buffers;
    std::vector<Request> requests;
    const auto count_of = [](std::size_t i) { return i * i * i * 7; };
    for (std::size_t i = 0; i < operations; ++i) {
      buffers.push_back(shard(CENOTE_FLOAT32, count_of(i), communicator.rank(), i));
      auto request = communicator.allreduce(memory_of(buffers[i]), memory_of(buffers[i]), count_of(i),
                                            CENOTE_FLOAT32, CENOTE_SUM);
      ASSERT_TRUE(request.has_value()) << request.error().message();
      requests.push_back(*request);
    }
    for (std::size_t i = operations; i-- > 0;) {
      for (bool done = false; !done;) {
        auto tested = communicator.test(requests[i]);
        ASSERT_TRUE(tested.has_value()) << tested.error().message();
        done = *tested;
      }
      EXPECT_EQ(requests[i].sequence, 0U);
      std::vector<Bytes> shards;
      for (std::uint32_t r = 0; r < 4; ++r) shards.push_back(shard(CENOTE_FLOAT32, count_of(i), r, i));
      ASSERT_TRUE(buffers[i] == reduced(CENOTE_FLOAT32, CENOTE_SUM, "auto", std::move(shards)));
    }
  });
}

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

TEST(Communicator, ARankThatStopsProgressingAfterItsOperationKeepsNobodyWaiting) {
  for (int round = 0; round < 20; ++round) {
    std::latch everybody_is_through(4);
    run(Mode::tcp, 4, "auto", [&](Communicator& communicator) {
      const auto done = finish(communicator, communicator.barrier());
      EXPECT_TRUE(done.has_value()) << done.error().message();
      // No call into the communicator from here on until all four have ended their barrier.
      everybody_is_through.arrive_and_wait();
    });
  }
}

TEST(Communicator, ARankThatLeavesOnceItIsThroughTakesNothingFromSlowerOnes) {
  for (const auto mode : {Mode::tcp, Mode::shm}) {
    for (int round = 0; round < 16; ++round) {
      // Several MiB are more than lies in staging slots and sockets; half a MiB all lies there at the end.
      const std::uint64_t count = round % 2 == 0 ? 400'000 : 70'001;
      const auto original = shard(CENOTE_INT64, count, 0);
      auto root = BootstrapRoot::create("127.0.0.1");
      ASSERT_TRUE(root.has_value());
      std::atomic<bool> through{false};
      std::latch gone(1);
      const auto member = [&, id = (*root)->id()](std::uint32_t rank) {
        auto options = options_for(mode, rank, 2);
        options.id = id;
        auto communicator = Communicator::create(options);
        EXPECT_TRUE(communicator.has_value());
        return communicator ? std::move(*communicator) : nullptr;
      };
      std::thread leaver([&] {
        auto buffer = original;
        if (auto communicator = member(0)) {
          EXPECT_TRUE(
              finish(*communicator, communicator->broadcast(memory_of(buffer), count, CENOTE_INT64, 0)));
        }
        through = true;
        gone.count_down();
      });
      Bytes buffer(original.size());
      if (auto communicator = member(1)) {
        auto request = communicator->broadcast(memory_of(buffer), count, CENOTE_INT64, 0);
        EXPECT_TRUE(request.has_value());
        // No step further than the other needs, until it is gone.
        while (!through) EXPECT_TRUE(communicator->test(*request).has_value());
        gone.wait();
        const auto done = communicator->wait(*request, Deadline::never());
        EXPECT_TRUE(done.has_value())
            << name_of(mode) << " round " << round << ": " << done.error().message();
        EXPECT_TRUE(buffer == original);
      }
      leaver.join();
    }
  }
}

TEST(Communicator, TellsHowEachPeerIsReachedAndHowMuchWentThere) {
  run(Mode::mixed, 4, "ring", [](Communicator& communicator) {
    auto buffer = shard(CENOTE_FLOAT32, 400'000, communicator.rank());
    const auto before = communicator.stats();
    ASSERT_TRUE(finish(communicator, communicator.allreduce(memory_of(buffer), memory_of(buffer), 400'000,
                                                            CENOTE_FLOAT32, CENOTE_SUM))
                    .has_value());
    const auto next = (communicator.rank() + 1) % 4;
    const auto previous = (communicator.rank() + 3) % 4;
    constexpr std::uint64_t expected = 2 * 3 * 400'000;  // 2 (N - 1) n / N
    const auto after = communicator.stats();
    ASSERT_EQ(after.size(), 3U);
    for (std::size_t i = 0; i < after.size(); ++i) {
      const auto& peer = after[i];
      EXPECT_EQ(peer.bytes_sent - before[i].bytes_sent, peer.rank == next ? expected : 0);
      EXPECT_EQ(peer.bytes_received - before[i].bytes_received, peer.rank == previous ? expected : 0);
      // Odd ranks have nothing but TCP.
      const bool both_even = (peer.rank + communicator.rank()) % 2 == 0 && peer.rank % 2 == 0;
      EXPECT_EQ(peer.transport, both_even ? "shm" : "tcp");
      EXPECT_FALSE(peer.reason.empty());
    }
    ASSERT_TRUE(finish(communicator, communicator.barrier()).has_value());
  });
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
