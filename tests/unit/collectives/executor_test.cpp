// The executor over a fabric in one thread: every delay, every full queue and every moment of death, by seed.
#include "collectives/executor.h"

#include <gmock/gmock.h>

#include <cmath>
#include <thread>

#include "tests/unit/collectives/executor_group.h"

namespace cenote::collectives {
namespace {

using ::testing::HasSubstr;

void expect_allreduce(std::uint32_t ranks, std::uint64_t count, DataType type, ReduceOp op,
                      const std::string& algorithm, bool in_place, std::uint64_t seed) {
  auto options = small_chunks();
  options.algorithm = algorithm;
  Group group(ranks, seed, options);
  std::vector<Buffers> buffers(ranks);
  std::vector<Bytes> shards;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    shards.push_back(shard(type, count, r, seed));
    buffers[r] = {shards.back(), Bytes(shards.back().size())};
  }
  const auto expected = reduced(type, op, algorithm, shards);
  std::vector<Result<std::uint64_t>> sequences;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    sequences.push_back(group.executors[r]->start(allreduce_call(buffers[r], count, type, op, in_place)));
  }
  for (const auto& done : group.finish(sequences)) ASSERT_TRUE(done.has_value()) << done.error().message();
  for (std::uint32_t r = 0; r < ranks; ++r) {
    ASSERT_EQ(buffers[r].recv, expected) << to_string(type) << " " << to_string(op) << " x " << count
                                         << " over " << ranks << " by " << algorithm << " at rank " << r;
    if (!in_place) {
      ASSERT_EQ(buffers[r].send, shards[r]);
    }
  }
}

TEST(Executor, AllreduceHasTheProvedBitsForEveryTypeReductionAndPlacement) {
  std::uint64_t seed = 0;
  for (std::uint32_t ranks : {1U, 2U, 3U, 5U}) {
    for (auto type :
         {CENOTE_FLOAT32, CENOTE_FLOAT64, CENOTE_FLOAT16, CENOTE_BFLOAT16, CENOTE_INT32, CENOTE_INT64}) {
      for (auto op : {CENOTE_SUM, CENOTE_MIN, CENOTE_MAX, CENOTE_AVG}) {
        for (const auto* algorithm : {"ring", "recursive_doubling"}) {
          expect_allreduce(ranks, 61, type, op, algorithm, seed % 2 == 0, seed);
          ++seed;
        }
      }
    }
  }
}

TEST(Executor, AllreduceTakesAnyCountAndAnyNumberOfRanks) {
  std::uint64_t seed = 100;
  for (std::uint32_t ranks = 1; ranks <= 9; ++ranks) {
    for (std::uint64_t count : {0U, 1U, 2U, 7U, 17U, 300U}) {
      for (const auto* algorithm : {"ring", "recursive_doubling"}) {
        expect_allreduce(ranks, count, CENOTE_FLOAT32, CENOTE_SUM, algorithm, seed % 2 == 0, seed);
        ++seed;
      }
    }
  }
}

TEST(Executor, AllgatherBroadcastAndBarrierOverlapInOneGroup) {
  constexpr std::uint32_t ranks = 5;
  constexpr std::uint64_t count = 43;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Group group(ranks, seed);
    std::vector<Bytes> gathered(ranks, Bytes(count * 4 * ranks));
    std::vector<Bytes> sent(ranks);
    std::vector<Bytes> passed(ranks, Bytes(count * 8));
    passed[3] = shard(CENOTE_INT64, count, 3, seed);
    const auto original = passed[3];
    Bytes expected;
    std::vector<std::vector<Result<std::uint64_t>>> sequences(3);
    for (std::uint32_t r = 0; r < ranks; ++r) {
      sent[r] = shard(CENOTE_FLOAT32, count, r, seed);
      expected.insert(expected.end(), sent[r].begin(), sent[r].end());
      const auto in = MemoryDescription::of_host(sent[r].data(), sent[r].size());
      const auto out = MemoryDescription::of_host(gathered[r].data(), gathered[r].size());
      const auto buffer = MemoryDescription::of_host(passed[r].data(), passed[r].size());
      auto& executor = *group.executors[r];
      sequences[0].push_back(
          executor.start({Operation::allgather, count, CENOTE_FLOAT32, CENOTE_SUM, 0, in, out, false}));
      sequences[1].push_back(
          executor.start({Operation::broadcast, count, CENOTE_INT64, CENOTE_SUM, 3, buffer, buffer, true}));
      sequences[2].push_back(
          executor.start({Operation::barrier, 1, CENOTE_INT32, CENOTE_MAX, 0, {}, {}, false}));
    }
    // The last one first: the earlier ones must get on all the same.
    for (std::size_t which : {2U, 0U, 1U}) {
      for (const auto& done : group.finish(sequences[which]))
        ASSERT_TRUE(done.has_value()) << done.error().message();
    }
    for (std::uint32_t r = 0; r < ranks; ++r) {
      ASSERT_EQ(gathered[r], expected);
      ASSERT_EQ(passed[r], original);
    }
  }
}

TEST(Executor, ABarrierHoldsEverybodyUntilTheLastHasCome) {
  Group group(4, 5);
  std::vector<Result<std::uint64_t>> sequences(4, 0);
  const Call barrier{Operation::barrier, 1, CENOTE_INT32, CENOTE_MAX, 0, {}, {}, false};
  for (std::uint32_t r = 0; r < 3; ++r) sequences[r] = group.executors[r]->start(barrier);
  for (int turn = 0; turn < 200; ++turn) {
    for (std::uint32_t r = 0; r < 3; ++r) ASSERT_FALSE(group.executors[r]->test(*sequences[r]).value());
  }
  sequences[3] = group.executors[3]->start(barrier);
  for (const auto& done : group.finish(sequences)) ASSERT_TRUE(done.has_value());
}

TEST(Executor, ARankKilledBetweenAnyTwoStepsEndsTheOthersWithItsName) {
  constexpr std::uint32_t ranks = 4;
  constexpr std::uint32_t victim = 2;
  for (const auto* algorithm : {"ring", "recursive_doubling"}) {
    std::uint64_t ended = 0;
    for (std::uint64_t moment = 0;; ++moment) {
      auto options = small_chunks();
      options.algorithm = algorithm;
      Group group(ranks, 11 + moment, options);
      std::vector<Buffers> buffers(ranks);
      std::vector<Bytes> shards;
      for (std::uint32_t r = 0; r < ranks; ++r) {
        shards.push_back(shard(CENOTE_FLOAT32, 90, r));
        buffers[r] = {shards.back(), Bytes(360)};
      }
      const auto expected = reduced(CENOTE_FLOAT32, CENOTE_SUM, algorithm, shards);
      std::vector<Result<std::uint64_t>> sequences;
      for (std::uint32_t r = 0; r < ranks; ++r) {
        sequences.push_back(
            group.executors[r]->start(allreduce_call(buffers[r], 90, CENOTE_FLOAT32, CENOTE_SUM, false)));
      }
      bool killed = false;
      const auto results = group.finish(sequences, [&] {
        if (killed || group.net.events < moment) return;
        killed = true;
        group.net.kill(victim);
        group.executors[victim] = nullptr;
      });
      std::size_t failed = 0;
      for (std::uint32_t r = 0; r < ranks; ++r) {
        if (r == victim && killed) continue;
        if (results[r]) {
          ASSERT_EQ(buffers[r].recv, expected) << "a wrong result, reported as right";
          continue;
        }
        ++failed;
        EXPECT_EQ(results[r].error().code, ErrorCode::peer_failed);
        EXPECT_EQ(results[r].error().peer, "rank 2") << results[r].error().message();
        EXPECT_THAT(results[r].error().message(), HasSubstr("operation 1 by"));
      }
      if (failed > 0) ++ended;
      if (!killed) break;  // the operation was over before that many events
    }
    EXPECT_GT(ended, 20U) << algorithm;
  }
}

TEST(Executor, ARankThatHangsIsNamedAtTheDeadlineByRanksThatDoNotTalkToIt) {
  constexpr std::uint32_t ranks = 5;
  auto options = small_chunks();
  options.algorithm = "ring";
  options.timeout = std::chrono::seconds(4);  // long enough for all notes to go round before
  Group group(ranks, 3, options);
  std::vector<Buffers> buffers(ranks);
  std::vector<Result<std::uint64_t>> sequences;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    buffers[r] = {shard(CENOTE_FLOAT32, 300, r), Bytes(1200)};
    sequences.push_back(
        group.executors[r]->start(allreduce_call(buffers[r], 300, CENOTE_FLOAT32, CENOTE_SUM, false)));
  }
  auto hung = std::move(group.executors[3]);  // it exists, and does nothing
  const auto results = group.finish(sequences);
  for (std::uint32_t r = 0; r < ranks; ++r) {
    if (r == 3) continue;
    ASSERT_FALSE(results[r].has_value());
    EXPECT_EQ(results[r].error().peer, "rank 3") << results[r].error().message();
    EXPECT_THAT(results[r].error().message(),
                HasSubstr("allreduce of 300 float32 by sum, operation 1 by ring"));
  }
}

TEST(Executor, RanksThatCallDifferentThingsAreBothNamed) {
  Group group(2, 9);
  std::vector<Buffers> buffers(2);
  buffers[0] = {shard(CENOTE_FLOAT32, 10, 0), Bytes(40)};
  buffers[1] = {shard(CENOTE_FLOAT32, 12, 1), Bytes(48)};
  std::vector<Result<std::uint64_t>> sequences;
  sequences.push_back(
      group.executors[0]->start(allreduce_call(buffers[0], 10, CENOTE_FLOAT32, CENOTE_SUM, false)));
  sequences.push_back(
      group.executors[1]->start(allreduce_call(buffers[1], 12, CENOTE_FLOAT32, CENOTE_MAX, false)));
  const auto results = group.finish(sequences);
  std::size_t told = 0;
  for (const auto& result : results) {
    ASSERT_FALSE(result.has_value());
    if (result.error().code != ErrorCode::invalid_argument) continue;
    ++told;
    EXPECT_THAT(result.error().message(), HasSubstr("allreduce of 10 float32 by sum"));
    EXPECT_THAT(result.error().message(), HasSubstr("allreduce of 12 float32 by max"));
  }
  EXPECT_GE(told, 1U);
}

TEST(Executor, AnAbortEndsEverybodyAndSaysWhoAndWhy) {
  Group group(3, 2);
  std::vector<Buffers> buffers(3);
  std::vector<Result<std::uint64_t>> sequences;
  for (std::uint32_t r = 0; r < 3; ++r) {
    buffers[r] = {shard(CENOTE_FLOAT32, 500, r), Bytes(2000)};
    sequences.push_back(
        group.executors[r]->start(allreduce_call(buffers[r], 500, CENOTE_FLOAT32, CENOTE_SUM, false)));
  }
  std::thread([&] { group.executors[1]->abort("the loss is NaN"); }).join();
  const auto results = group.finish(sequences);
  for (std::uint32_t r = 0; r < 3; ++r) {
    ASSERT_FALSE(results[r].has_value());
    EXPECT_EQ(results[r].error().code, r == 1 ? ErrorCode::cancelled : ErrorCode::peer_failed);
    EXPECT_EQ(results[r].error().peer, r == 1 ? "" : "rank 1");
    EXPECT_THAT(results[r].error().message(), HasSubstr("rank 1"));
    EXPECT_THAT(results[r].error().message(), HasSubstr("the loss is NaN"));
    // Broken for good, with the same words.
    const auto again =
        group.executors[r]->start(allreduce_call(buffers[r], 500, CENOTE_FLOAT32, CENOTE_SUM, false));
    ASSERT_FALSE(again.has_value());
    EXPECT_EQ(again.error().message(), results[r].error().message());
  }
}

/// Starts a broadcast of `count` int64 from `root`; `buffer` is made where it is empty.
Result<std::uint64_t> start_broadcast(Executor& executor, Bytes& buffer, std::uint64_t count,
                                      std::uint32_t root) {
  buffer.resize(count * 8);
  const auto memory = MemoryDescription::of_host(buffer.data(), buffer.size());
  return executor.start({Operation::broadcast, count, CENOTE_INT64, CENOTE_SUM, root, memory, memory, true});
}

std::vector<Result<std::uint64_t>> broadcast_all(Group& group, std::vector<Bytes>& buffers,
                                                 std::uint64_t count, std::uint32_t root) {
  std::vector<Result<std::uint64_t>> sequences;
  for (std::size_t r = 0; r < group.executors.size(); ++r)
    sequences.push_back(start_broadcast(*group.executors[r], buffers[r], count, root));
  return sequences;
}

/// Gives one rank turns until its operation has ended.
Result<bool> finish_at(Executor& executor, std::uint64_t sequence) {
  for (;;) {
    auto done = executor.test(sequence);
    if (!done || *done) return done;
  }
}

TEST(Executor, ARankThatLeavesOnceItIsThroughTakesNothingFromSlowerOnes) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Group group(2, seed);
    std::vector<Bytes> buffers(2);
    buffers[0] = shard(CENOTE_INT64, 200, 0, seed);  // 25 chunks, two ahead
    const auto original = buffers[0];
    const auto sequences = broadcast_all(group, buffers, 200, 0);
    for (bool done = false; !done;) {
      done = group.executors[0]->test(*sequences[0]).value();
      if (!done) {
        ASSERT_TRUE(group.executors[1]->test(*sequences[1]).has_value());
      }
    }
    group.executors[0] = nullptr;
    const auto late = finish_at(*group.executors[1], *sequences[1]);
    ASSERT_TRUE(late.has_value()) << "seed " << seed << ": " << late.error().message();
    ASSERT_EQ(buffers[1], original);
    // What comes afterwards needs the one that left.
    const auto next =
        group.executors[1]->start({Operation::barrier, 1, CENOTE_INT32, CENOTE_MAX, 0, {}, {}, false});
    const auto barrier = next ? finish_at(*group.executors[1], *next) : Result<bool>(fail(next.error()));
    ASSERT_FALSE(barrier.has_value());
    EXPECT_EQ(barrier.error().code, ErrorCode::peer_failed);
    EXPECT_EQ(barrier.error().peer, "rank 0");
  }
}

TEST(Executor, WhatHasArrivedIsCompleteThoughALaterOperationsPeerIsGone) {
  Group group(3, 1);
  group.net.calm = true;
  std::vector<Bytes> first(3);
  std::vector<Bytes> second(3);
  first[2] = shard(CENOTE_INT64, 16, 2);  // two chunks: as many as may be ahead
  second[0] = shard(CENOTE_INT64, 16, 0);
  const auto original = first[2];
  std::vector<Result<std::uint64_t>> from_two(3, 0);
  std::vector<Result<std::uint64_t>> from_zero(3, 0);
  for (std::uint32_t r = 0; r < 3; ++r) {
    from_two[r] = start_broadcast(*group.executors[r], first[r], 16, 2);
    from_zero[r] = start_broadcast(*group.executors[r], second[r], 16, 0);
  }
  ASSERT_TRUE(finish_at(*group.executors[2], *from_two[2]).value());  // all of it is under way to the others
  group.net.kill(0);
  group.executors[0] = nullptr;
  const auto arrived = group.executors[1]->test(*from_two[1]);
  ASSERT_TRUE(arrived.has_value()) << arrived.error().message();
  EXPECT_TRUE(*arrived);
  EXPECT_EQ(first[1], original);
  const auto missing = group.executors[1]->test(*from_zero[1]);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().peer, "rank 0");
  EXPECT_THAT(missing.error().message(), HasSubstr("operation 2 by"));
  const auto later =
      group.executors[1]->start({Operation::barrier, 1, CENOTE_INT32, CENOTE_MAX, 0, {}, {}, false});
  ASSERT_FALSE(later.has_value());
  EXPECT_EQ(later.error().message(), missing.error().message());
  EXPECT_TRUE(group.executors[1]->test(*from_two[1]).value()) << "complete it stays";
}

TEST(Executor, ARankThatCannotHaveItsStagingMemoryIsNamedByAll) {
  Group group(3, 1);
  group.net.without_memory = 1;
  std::vector<Buffers> buffers(3, {Bytes(4000), Bytes(4000)});
  std::vector<Result<std::uint64_t>> sequences;
  for (std::uint32_t r = 0; r < 3; ++r) {
    sequences.push_back(
        group.executors[r]->start(allreduce_call(buffers[r], 1000, CENOTE_FLOAT32, CENOTE_SUM, false)));
  }
  for (const auto& done : group.finish(sequences)) {
    ASSERT_FALSE(done.has_value());
    EXPECT_EQ(done.error().peer, "rank 1") << done.error().message();
    EXPECT_THAT(done.error().message(), HasSubstr("no memory"));
    EXPECT_THAT(done.error().stage, HasSubstr("allreduce of 1000 float32"));
  }
}

TEST(Executor, ALinkIsSentNoCreditsThatItsPeerDoesNotNeed) {
  Group group(2, 1);
  group.net.calm = true;
  std::vector<Bytes> buffers(2);
  buffers[0] = shard(CENOTE_INT64, 40, 0);  // five chunks, two ahead: three credits are needed
  const auto sequences = broadcast_all(group, buffers, 40, 0);
  for (const auto& done : group.finish(sequences)) ASSERT_TRUE(done.has_value()) << done.error().message();
  for (int turn = 0; turn < 10; ++turn) ASSERT_TRUE(group.executors[1]->test(*sequences[1]).value());
  EXPECT_EQ(group.net.wire(1, 0).signals[wire::credit_signal] + group.net.wire(1, 0).flying.size(), 3U);
  // The next operation brings the rest.
  for (int round = 0; round < 3; ++round) {
    for (const auto& done : group.finish(broadcast_all(group, buffers, 40, 0))) ASSERT_TRUE(done.has_value());
  }
  EXPECT_EQ(group.net.wire(1, 0).signals[wire::credit_signal] + group.net.wire(1, 0).flying.size(), 18U);
}

}  // namespace
}  // namespace cenote::collectives
