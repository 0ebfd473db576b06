// Windows: puts, gets and signals between the ranks of a communicator, over every transport; what is refused
// before it moves; ranks that die in the middle.
#include "collectives/window.h"

#include <gmock/gmock.h>

#include <cstring>
#include <random>

#include "collectives/outstanding.h"
#include "collectives/wire.h"
#include "tests/multi/collectives/ranks.h"

namespace cenote::collectives {
namespace {

using ::testing::HasSubstr;

MemoryDescription allocated(std::size_t bytes) {
  MemoryDescription memory;
  memory.size = bytes;
  return memory;
}

std::byte* start_of(const Window& window) {
  return reinterpret_cast<std::byte*>(window.memory().address);  // NOLINT(performance-no-int-to-ptr)
}

/// Byte i of what `rank` puts.
std::byte pattern(std::uint32_t rank, std::size_t i) {
  return static_cast<std::byte>(std::size_t{rank} * 37 + i * 7 + i / 251);
}

Bytes filled(std::uint32_t rank, std::size_t bytes) {
  Bytes out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = pattern(rank, i);
  return out;
}

std::string refusal(const Result<Request>& result, ErrorCode code) {
  if (result) return "accepted";
  return result.error().code == code ? result.error().message() : "another code: " + result.error().message();
}

class Windows : public ::testing::TestWithParam<GroupOf> {};
INSTANTIATE_TEST_SUITE_P(Groups, Windows, ::testing::ValuesIn(groups()), [](const auto& tested) {
  return name_of(tested.param.mode) + std::to_string(tested.param.ranks);
});

TEST_P(Windows, WhatIsPutArrivesBeforeItsSignalAndCanBeGot) {
  const auto [mode, ranks] = GetParam();
  run(mode, ranks, "auto", [ranks = ranks](Communicator& c) {
    constexpr std::size_t most = 300'000;
    auto window = c.create_window({allocated(most + 64)});
    ASSERT_TRUE(window) << window.error().message();
    const auto next = (c.rank() + 1) % ranks, before = (c.rank() + ranks - 1) % ranks;
    std::uint64_t rounds = 0;
    for (const std::size_t bytes :
         {std::size_t{1}, std::size_t{40}, std::size_t{41}, std::size_t{4096}, most}) {
      const auto mine = filled(c.rank(), bytes);
      const std::uint64_t offset = bytes % 64;
      ASSERT_TRUE(finish(c, (*window)->put(next, offset, mine, 5)));
      const auto told = c.wait_signal(before, 5, ++rounds, Deadline::never());
      ASSERT_TRUE(told) << told.error().message();
      const auto expected = filled(before, bytes);
      ASSERT_EQ(std::memcmp(start_of(**window) + offset, expected.data(), bytes), 0) << bytes;
      Bytes back(bytes);
      ASSERT_TRUE(finish(c, (*window)->get(next, offset, back)));
      ASSERT_EQ(back, mine) << bytes;
      ASSERT_TRUE(finish(c, c.barrier()));  // nobody puts the next size before this one was read back
    }
    EXPECT_EQ(*c.signal_count(before, 5), rounds);
    EXPECT_EQ(*c.signal_count(before, 6), 0U);
  });
}

TEST_P(Windows, EveryRankReachesEveryOtherBesideCollectives) {
  const auto [mode, ranks] = GetParam();
  run(mode, ranks, "auto", [ranks = ranks](Communicator& c) {
    auto window = c.create_window({allocated(ranks * sizeof(std::uint64_t))});
    ASSERT_TRUE(window) << window.error().message();
    for (std::uint64_t round = 1; round <= 20; ++round) {
      const std::uint64_t value = round * 1000 + c.rank();
      std::int64_t sum = c.rank();
      const auto memory = MemoryDescription::of_host(&sum, sizeof sum);
      auto reduced = c.allreduce(memory, memory, 1, CENOTE_INT64, CENOTE_SUM);
      ASSERT_TRUE(reduced);
      std::vector<Request> puts;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        auto put = (*window)->put(rank, c.rank() * sizeof value, std::as_bytes(std::span(&value, 1)), 0);
        ASSERT_TRUE(put) << put.error().message();
        puts.push_back(*put);
      }
      for (auto& put : puts) ASSERT_TRUE(c.wait(put, Deadline::never()));
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        ASSERT_TRUE(c.wait_signal(rank, 0, round, Deadline::never()));
        std::uint64_t came = 0;
        std::memcpy(&came, start_of(**window) + rank * sizeof came, sizeof came);
        ASSERT_EQ(came, round * 1000 + rank);
      }
      ASSERT_TRUE(c.wait(*reduced, Deadline::never()));
      ASSERT_EQ(sum, ranks * (ranks - 1) / 2);
      ASSERT_TRUE(finish(c, c.barrier()));
    }
  });
}

TEST_P(Windows, WhatDoesNotFitIsRefusedInWordsAndBreaksNothing) {
  const auto [mode, ranks] = GetParam();
  run(mode, ranks, "auto", [ranks = ranks](Communicator& c) {
    EXPECT_THAT(refusal(c.signal(0, 0), ErrorCode::invalid_argument), HasSubstr("no window has been made"));
    // Parts of different sizes: rank r has 100 + r bytes.
    auto window = c.create_window({allocated(100 + c.rank())});
    ASSERT_TRUE(window) << window.error().message();
    for (std::uint32_t rank = 0; rank < ranks; ++rank) EXPECT_EQ((*window)->bytes(rank), 100 + rank);
    EXPECT_EQ((*window)->bytes(ranks), 0U);
    const auto last = ranks - 1;
    const std::uint64_t size = 100 + last;
    Bytes buffer(4096, std::byte{0xee});
    const auto span = std::span<std::byte>(buffer);
    const auto put = [&](std::uint64_t rank, std::uint64_t offset, std::span<const std::byte> bytes,
                         std::uint32_t signal = transport::no_signal) {
      return refusal((*window)->put(static_cast<std::uint32_t>(rank), offset, bytes, signal),
                     ErrorCode::invalid_argument);
    };
    EXPECT_THAT(put(ranks, 0, span.first(1)), HasSubstr("rank " + std::to_string(ranks)));
    EXPECT_THAT(put(last, 0, span.first(size + 1)), HasSubstr("bytes at 0 of the " + std::to_string(size)));
    EXPECT_THAT(put(last, size, span.first(1)), HasSubstr("1 bytes at"));
    EXPECT_THAT(put(last, ~std::uint64_t{0}, span.first(8)), HasSubstr("8 bytes at"));
    EXPECT_THAT(put(last, 0, {static_cast<std::byte*>(nullptr), 8}), HasSubstr("NULL"));
    EXPECT_THAT(put(last, 0, span.first(8), wire::user_signals), HasSubstr("signal 32"));
    EXPECT_THAT(refusal((*window)->get(last, size - 3, span.first(4)), ErrorCode::invalid_argument),
                HasSubstr("4 bytes at"));
    EXPECT_THAT(refusal(c.signal(last, wire::user_signals), ErrorCode::invalid_argument),
                HasSubstr("signal 32"));
    EXPECT_THAT(refusal(c.signal(ranks, 0), ErrorCode::invalid_argument), HasSubstr("ranks"));
    Request never{Outstanding::mark | 12345678};
    EXPECT_EQ(c.test(never).error().code, ErrorCode::invalid_argument);
    ASSERT_TRUE(finish(c, c.barrier()));
    for (std::size_t i = 0; i < 100 + c.rank(); ++i) ASSERT_EQ(start_of(**window)[i], std::byte{0});
    // The last byte there is, and nothing at all at the end, are inside.
    EXPECT_TRUE(finish(c, (*window)->put(last, size - 1, span.first(0), transport::no_signal)));
    EXPECT_TRUE(finish(c, (*window)->get(last, size - 1, span.first(1))));
    EXPECT_TRUE(finish(c, (*window)->get(last, size, span.first(0))));
    ASSERT_TRUE(finish(c, c.barrier()));
  });
}

TEST_P(Windows, ASignalThatDoesNotComeInTimeBreaksNothing) {
  const auto [mode, ranks] = GetParam();
  run(mode, ranks, "auto", [ranks = ranks](Communicator& c) {
    auto window = c.create_window({allocated(8)});
    ASSERT_TRUE(window) << window.error().message();
    const auto next = (c.rank() + 1) % ranks, before = (c.rank() + ranks - 1) % ranks;
    auto early = c.wait_signal(before, 1, 1, Deadline::in(std::chrono::milliseconds(20)));
    ASSERT_FALSE(early);
    EXPECT_EQ(early.error().code, ErrorCode::deadline_exceeded);
    EXPECT_THAT(early.error().message(), HasSubstr("signal 1 of rank " + std::to_string(before)));
    ASSERT_TRUE(finish(c, c.barrier()));
    ASSERT_TRUE(finish(c, c.signal(next, 1)));
    const auto came = c.wait_signal(before, 1, 1, Deadline::never());
    EXPECT_TRUE(came) << came.error().message();
    ASSERT_TRUE(finish(c, c.barrier()));
  });
}

class WindowModes : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, WindowModes, ::testing::ValuesIn(modes()),
                         [](const auto& tested) { return name_of(tested.param); });

TEST_P(WindowModes, ManyInFlightEndInAnyOrderAndTooManyAreRefused) {
  run(GetParam(), 2, "auto", [](Communicator& c) {
    constexpr std::uint32_t many = 3 * Outstanding::capacity;
    auto window = c.create_window({allocated(many * sizeof(std::uint32_t))});
    ASSERT_TRUE(window) << window.error().message();
    if (c.rank() == 0) {
      std::vector<std::uint32_t> values(many);
      std::vector<Request> flying;
      bool refused = false;
      std::mt19937 random(11);
      for (std::uint32_t i = 0; i < many;) {
        values[i] = i * 3 + 1;
        auto put = (*window)->put(1, i * sizeof(std::uint32_t), std::as_bytes(std::span(&values[i], 1)), 2);
        if (put) {
          flying.push_back(*put);
          ++i;
          continue;
        }
        ASSERT_EQ(put.error().code, ErrorCode::resource_exhausted) << put.error().message();
        refused = true;
        ASSERT_FALSE(flying.empty());
        std::swap(flying[random() % flying.size()], flying.back());
        ASSERT_TRUE(c.wait(flying.back(), Deadline::never()));
        flying.pop_back();
      }
      EXPECT_TRUE(refused);
      std::ranges::shuffle(flying, random);
      for (auto& request : flying) ASSERT_TRUE(c.wait(request, Deadline::never()));
    } else {
      ASSERT_TRUE(c.wait_signal(0, 2, many, Deadline::never()));
      for (std::uint32_t i = 0; i < many; ++i) {
        std::uint32_t value = 0;
        std::memcpy(&value, start_of(**window) + i * sizeof value, sizeof value);
        ASSERT_EQ(value, i * 3 + 1);
      }
    }
    ASSERT_TRUE(finish(c, c.barrier()));
  });
}

TEST_P(WindowModes, AProgramsOwnMemoryIsReachedOrRefusedOnAllRanks) {
  const auto mode = GetParam();
  run(mode, 3, "auto", [mode](Communicator& c) {
    Bytes own(5000);
    auto window = c.create_window({memory_of(own)});
    if (mode == Mode::shm || mode == Mode::mixed) {
      ASSERT_FALSE(window);
      EXPECT_EQ(window.error().code, ErrorCode::not_supported);
      EXPECT_THAT(window.error().message(), HasSubstr("its part could not be made"));
      EXPECT_THAT(window.error().message(), HasSubstr("rank 0"));
    } else {
      ASSERT_TRUE(window) << window.error().message();
      const auto mine = filled(c.rank(), own.size());
      const auto next = (c.rank() + 1) % 3, before = (c.rank() + 2) % 3;
      ASSERT_TRUE(finish(c, (*window)->put(next, 0, mine, 0)));
      ASSERT_TRUE(c.wait_signal(before, 0, 1, Deadline::never()));
      EXPECT_EQ(own, filled(before, own.size()));
    }
    const auto met = finish(c, c.barrier());
    EXPECT_TRUE(met) << met.error().message();
  });
}

TEST_P(WindowModes, TwoWindowsAreTwoPiecesOfMemory) {
  run(GetParam(), 3, "auto", [](Communicator& c) {
    auto first = c.create_window({allocated(64)});
    auto second = c.create_window({allocated(c.rank() == 1 ? 0 : 64)});
    ASSERT_TRUE(first && second);
    EXPECT_EQ((*second)->bytes(1), 0U);
    const auto next = (c.rank() + 1) % 3, before = (c.rank() + 2) % 3;
    const auto mine = filled(c.rank(), 64);
    ASSERT_TRUE(finish(c, (*first)->put(next, 0, mine, 3)));
    EXPECT_EQ((*second)->put(1, 0, std::span(mine).first(1), 3).has_value(), false);
    ASSERT_TRUE(c.wait_signal(before, 3, 1, Deadline::never()));
    EXPECT_EQ(std::memcmp(start_of(**first), filled(before, 64).data(), 64), 0);
    if (c.rank() != 1) {
      EXPECT_EQ(start_of(**second)[0], std::byte{0});
    }
    ASSERT_TRUE(finish(c, c.barrier()));
  });
}

TEST_P(WindowModes, AnEndedWindowIsNotReached) {
  run(GetParam(), 2, "auto", [](Communicator& c) {
    auto gone = c.create_window({allocated(1 << 20)});
    ASSERT_TRUE(gone) << gone.error().message();
    if (c.rank() == 1) {
      gone->reset();
      // What rank 0 asks for is not here any more. That ends the connection, sometimes with the barrier still
      // on it.
      auto told = finish(c, c.barrier());
      if (told) told = c.wait_signal(0, 0, 1, Deadline::never());
      EXPECT_FALSE(told);
      return;
    }
    ASSERT_TRUE(finish(c, c.barrier()));
    Bytes buffer(1 << 20);
    const auto got = finish(c, (*gone)->get(1, 0, buffer));
    ASSERT_FALSE(got);
    EXPECT_THAT(got.error().message(), HasSubstr("rank 1"));
  });
}

TEST_P(WindowModes, AnAbortEndsWhoWaitsForASignal) {
  run(GetParam(), 2, "auto", [](Communicator& c) {
    auto window = c.create_window({allocated(8)});
    ASSERT_TRUE(window) << window.error().message();
    ASSERT_TRUE(finish(c, c.barrier()));
    if (c.rank() == 0) {
      c.abort("enough");
      EXPECT_EQ(c.progress().error().code, ErrorCode::cancelled);
      return;
    }
    const auto told = c.wait_signal(0, 0, 1, Deadline::never());
    ASSERT_FALSE(told);
    EXPECT_EQ(told.error().code, ErrorCode::peer_failed);
    EXPECT_THAT(told.error().message(), HasSubstr("enough"));
    EXPECT_EQ((*window)->put(0, 0, Bytes(8), transport::no_signal).error().code, ErrorCode::peer_failed);
  });
}

/// Puts to, gets from and waits for the other ranks until one of them fails.
std::string trade_until_failure(const std::string& id, const std::function<void()>& up,
                                CommunicatorOptions options) {
  options.id = *UniqueId::parse(id);
  auto communicator = Communicator::create(options);
  if (!communicator) return communicator.error().message();
  auto& c = **communicator;
  auto window = c.create_window({allocated(1 << 20)});
  if (!window) return window.error().message();
  up();
  const auto next = (c.rank() + 1) % c.size(), before = (c.rank() + c.size() - 1) % c.size();
  Bytes mine(1 << 19), back(1 << 19);
  for (std::uint64_t round = 1;; ++round) {
    auto ended = finish(c, (*window)->put(next, 0, mine, 0));
    if (ended) ended = finish(c, (*window)->get(next, 1 << 19, back));
    if (ended) ended = c.wait_signal(before, 0, round, Deadline::never());
    if (ended) continue;
    auto again = c.barrier();
    if (again || again.error().message() != ended.error().message()) return "the failure did not last";
    return std::string(to_string(ended.error().code)) + " " + ended.error().peer + ": " +
           ended.error().message();
  }
}

class KilledPeer : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, KilledPeer, ::testing::ValuesIn(modes()),
                         [](const auto& tested) { return name_of(tested.param); });

TEST_P(KilledPeer, InMidTradeIsNamedToItsNeighboursAndTheRestFollow) {
  constexpr std::uint32_t ranks = 4, victim = 2;
  std::mt19937 random(::testing::UnitTest::GetInstance()->random_seed());
  for (int round = 0; round < rounds(GetParam(), 8); ++round) {
    std::vector<std::unique_ptr<RankProcess>> processes;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      processes.push_back(
          std::make_unique<RankProcess>([=, mode = GetParam()](const std::string& id, const auto& ready) {
            return trade_until_failure(id, ready, options_for(mode, r, ranks));
          }));
    }
    auto root = BootstrapRoot::create("127.0.0.1");
    ASSERT_TRUE(root);
    for (auto& process : processes) process->tell((*root)->id().text());
    for (auto& process : processes) ASSERT_TRUE(process->is_up());
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % 30'000));  // chooses the moment of the blow
    const auto started = Clock::now();
    processes[victim]->kill(SIGKILL);
    for (std::uint32_t r = 0; r < ranks; ++r) {
      if (r == victim) continue;
      EXPECT_THAT(processes[r]->report(), HasSubstr("peer failed rank 2:")) << "rank " << r;
    }
    EXPECT_LT(Clock::now() - started, std::chrono::seconds(10));
  }
}

}  // namespace
}  // namespace cenote::collectives
