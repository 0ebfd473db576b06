// Communicators over real transports, a thread a rank: every operation against the proved order, to the bit.
#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <latch>

#include "tests/multi/collectives/ranks.h"
#include "tests/unit/collectives/reference.h"

namespace cenote::collectives {
namespace {

constexpr DataType all_types[] = {CENOTE_FLOAT32,  CENOTE_FLOAT64, CENOTE_FLOAT16,
                                  CENOTE_BFLOAT16, CENOTE_INT32,   CENOTE_INT64};
constexpr ReduceOp all_ops[] = {CENOTE_SUM, CENOTE_MIN, CENOTE_MAX, CENOTE_AVG};

struct Job {
  DataType type;
  ReduceOp op;
  std::uint64_t count;
  Bytes expected;
};

std::vector<Job> jobs_for(Mode mode, std::uint32_t ranks, const std::string& algorithm) {
  std::vector<Job> jobs;
  const auto add = [&](DataType type, ReduceOp op, std::uint64_t count) {
    std::vector<Bytes> shards;
    for (std::uint32_t r = 0; r < ranks; ++r) shards.push_back(shard(type, count, r));
    jobs.push_back({type, op, count, reduced(type, op, algorithm, std::move(shards))});
  };
  // What reduces is the same over every transport; in the VM it is only slower.
  const auto ops = std::span(all_ops).first(mode == Mode::verbs ? 1 : std::size(all_ops));
  for (auto type : all_types) {
    for (auto op : ops) {
      for (std::uint64_t count : {0ULL, 1ULL, ranks - 1ULL, 37ULL, 4099ULL}) add(type, op, count);
    }
  }
  add(CENOTE_FLOAT32, CENOTE_SUM, 300'007);
  add(CENOTE_FLOAT16, CENOTE_AVG, 1'000'003);
  return jobs;
}

class Ranks : public ::testing::TestWithParam<GroupOf> {};
INSTANTIATE_TEST_SUITE_P(Modes, Ranks, ::testing::ValuesIn(groups()), [](const auto& tested) {
  return name_of(tested.param.mode) + "_" + std::to_string(tested.param.ranks);
});
class Ways : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, Ways, ::testing::ValuesIn(modes()),
                         [](const auto& tested) { return name_of(tested.param); });

TEST_P(Ranks, AllreduceHasTheProvedBits) {
  const auto [mode, ranks] = GetParam();
  for (const auto* algorithm : {"auto", "ring", "recursive_doubling"}) {
    const auto jobs = jobs_for(mode, ranks, algorithm);
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

TEST_P(Ways, ManyOperationsInFlightEndInAnyOrder) {
  run(GetParam(), 4, "auto", [](Communicator& communicator) {
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

TEST_P(Ways, ARankThatStopsProgressingAfterItsOperationKeepsNobodyWaiting) {
  for (int round = 0; round < rounds(GetParam(), 20); ++round) {
    std::latch everybody_is_through(4);
    run(GetParam(), 4, "auto", [&](Communicator& communicator) {
      const auto done = finish(communicator, communicator.barrier());
      EXPECT_TRUE(done.has_value()) << done.error().message();
      // No call into the communicator from here on until all four have ended their barrier.
      everybody_is_through.arrive_and_wait();
    });
  }
}

TEST_P(Ways, ARankThatLeavesOnceItIsThroughTakesNothingFromSlowerOnes) {
  const auto mode = GetParam();
  for (int round = 0; round < rounds(mode, 16); ++round) {
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
      EXPECT_TRUE(done.has_value()) << "round " << round << ": " << done.error().message();
      EXPECT_TRUE(buffer == original);
    }
    leaver.join();
  }
}

TEST_P(Ways, TellsHowEachPeerIsReachedAndHowMuchWentThere) {
  run(GetParam(), 4, "ring", [mode = GetParam()](Communicator& communicator) {
    auto buffer = shard(CENOTE_FLOAT32, 400'000, communicator.rank());
    const auto before = communicator.stats();
    ASSERT_TRUE(finish(communicator, communicator.allreduce(memory_of(buffer), memory_of(buffer), 400'000,
                                                            CENOTE_FLOAT32, CENOTE_SUM))
                    .has_value());
    const auto next = (communicator.rank() + 1) % 4;
    const auto previous = (communicator.rank() + 3) % 4;
    constexpr std::uint64_t expected = std::uint64_t{2} * 3 * 400'000;  // 2 (N - 1) n / N
    const auto after = communicator.stats();
    ASSERT_EQ(after.size(), 3U);
    for (std::size_t i = 0; i < after.size(); ++i) {
      const auto& peer = after[i];
      EXPECT_EQ(peer.bytes_sent - before[i].bytes_sent, peer.rank == next ? expected : 0);
      EXPECT_EQ(peer.bytes_received - before[i].bytes_received, peer.rank == previous ? expected : 0);
      EXPECT_EQ(peer.transport, transport_between(mode, communicator.rank(), peer.rank));
      EXPECT_FALSE(peer.reason.empty());
    }
    ASSERT_TRUE(finish(communicator, communicator.barrier()).has_value());
  });
}

}  // namespace
}  // namespace cenote::collectives
