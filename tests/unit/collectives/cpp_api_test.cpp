// The C++ headers over the C interface, as a program sees them that links the shared libraries alone. Ranks
// are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cenote/cenote.hpp>
#include <cenote/pool.hpp>
#include <functional>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

template <class T>
constexpr bool move_only = std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T> &&
                           !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
static_assert(move_only<cenote::Context> && move_only<cenote::Communicator> && move_only<cenote::Window> &&
              move_only<cenote::Request> && move_only<cenote::Pool> && move_only<cenote::Lease> &&
              move_only<cenote::Gpus> && move_only<cenote::DeviceBuffer<float>>);
static_assert(cenote::Element<float> && cenote::Element<const long> && cenote::Element<int> &&
              !cenote::Element<char> && !cenote::Element<unsigned>);

/// How `body` failed.
cenote_status status_of(const std::function<void()>& body, const char* text = "") {
  try {
    body();
  } catch (const cenote::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(text));
    return error.status();
  }
  return CENOTE_SUCCESS;
}

void on_ranks(std::uint32_t ranks, const std::function<void(cenote::Communicator&)>& body) {
  cenote::Context context({.transports = "shm,tcp"});
  const auto id = context.create_unique_id();
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        cenote::Communicator group(context,
                                   {.rank = rank, .ranks = ranks, .id = id, .operation_timeout = 20s});
        body(group);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(CppApi, CollectivesTakeSpansOfTheirElements) {
  on_ranks(3, [](cenote::Communicator& group) {
    EXPECT_EQ(group.ranks(), 3U);
    std::vector<double> send{1, 2, static_cast<double>(group.rank())}, recv(3);
    auto sum = group.allreduce(std::span<const double>(send), std::span(recv), CENOTE_SUM);
    while (!sum.ready()) {
    }
    sum.wait();  // of what is complete: nothing
    EXPECT_EQ(recv, (std::vector<double>{3, 6, 3}));

    const std::vector<std::int64_t> mine{group.rank(), -1};
    std::vector<std::int64_t> all(6);
    group.allgather(std::span<const std::int64_t>(mine), std::span(all)).wait();
    EXPECT_EQ(all, (std::vector<std::int64_t>{0, -1, 1, -1, 2, -1}));

    std::vector<std::int32_t> passed{group.rank() == 2 ? 42 : 0};
    group.broadcast(std::span(passed), 2).wait(20s);
    EXPECT_EQ(passed.front(), 42);

    cenote::Request moved = group.barrier();
    cenote::Request to;
    EXPECT_TRUE(to.ready());
    to = std::move(moved);
    to.wait();
    EXPECT_TRUE(to.ready());
  });
}

TEST(CppApi, WhatDoesNotFitIsAnErrorWithStatusAndText) {
  on_ranks(2, [](cenote::Communicator& group) {
    std::vector<float> two(2), three(3);
    EXPECT_EQ(
        status_of([&] { group.allreduce(std::span<const float>(two), std::span(three), CENOTE_SUM).wait(); },
                  "recv has 3 elements, 2 are needed"),
        CENOTE_INVALID_ARGUMENT);
    EXPECT_EQ(status_of([&] { group.allgather(std::span<const float>(two), std::span(three)).wait(); },
                        "4 are needed"),
              CENOTE_INVALID_ARGUMENT);
    EXPECT_EQ(status_of([&] { group.broadcast(std::span(two), 2).wait(); }, "root 2 of 2 ranks"),
              CENOTE_INVALID_ARGUMENT);
    EXPECT_EQ(status_of([&] { static_cast<void>(group.signal_count(0, 0)); }, "no window"),
              CENOTE_INVALID_ARGUMENT);
    group.barrier().wait();  // nothing of that broke anything
    cenote::Communicator stolen = std::move(group);
    // NOLINTNEXTLINE(bugprone-use-after-move): what is left of it refuses
    const auto left = status_of([&] { group.barrier().wait(); }, "NULL");
    EXPECT_EQ(left, CENOTE_INVALID_ARGUMENT);
    stolen.barrier().wait();
  });
  EXPECT_EQ(status_of([] { cenote::Context context({.transports = ""}); }, "no transports"),
            CENOTE_INVALID_ARGUMENT);
  cenote::Context context;
  EXPECT_EQ(
      status_of([&] { cenote::Communicator(context, {.rank = 1, .ranks = 2, .id = std::string(300, 'x')}); },
                "too long"),
      CENOTE_INVALID_ARGUMENT);
}

TEST(CppApi, AWaitThatFailedFailsAgain) {
  on_ranks(2, [](cenote::Communicator& group) {
    if (group.rank() == 1) std::this_thread::sleep_for(400ms);  // the late rank
    if (group.rank() == 1) {
      EXPECT_EQ(status_of([&] { group.barrier().wait(); }), CENOTE_PEER_FAILED);
      return;
    }
    auto request = group.barrier();
    EXPECT_EQ(status_of([&] { request.wait(50ms); }), CENOTE_DEADLINE_EXCEEDED);
    auto moved = std::move(request);
    EXPECT_EQ(status_of([&] { moved.wait(); }), CENOTE_DEADLINE_EXCEEDED);
    EXPECT_EQ(status_of([&] { static_cast<void>(moved.ready()); }), CENOTE_DEADLINE_EXCEEDED);
  });
}

TEST(CppApi, WindowsPutAndGetElements) {
  on_ranks(2, [](cenote::Communicator& group) {
    cenote::Window window(group, 10 * sizeof(std::uint32_t));
    EXPECT_EQ(window.memory().size(), 40U);
    EXPECT_EQ(window.as<std::uint64_t>().size(), 5U);
    const auto other = 1 - group.rank();
    EXPECT_EQ(window.bytes(other), 40U);
    const std::vector<std::uint32_t> mine{group.rank() + 10, 7};
    window.put(other, 8, std::span(mine), 3).wait();
    group.wait_signal(other, 3, 1);
    EXPECT_EQ(window.as<std::uint32_t>()[2], other + 10);
    std::vector<std::uint32_t> back(2);
    window.get(other, 8, std::span(back)).wait();
    EXPECT_EQ(back, mine);
    EXPECT_EQ(status_of([&] { window.put(other, 40, std::span(mine)).wait(); }, "8 bytes at 40 of the 40"),
              CENOTE_INVALID_ARGUMENT);
    EXPECT_EQ(status_of([&] { group.wait_signal(other, 4, 1, 1ns); }, "signal 4"), CENOTE_DEADLINE_EXCEEDED);
    group.signal(other, 3).wait();
    group.wait_signal(other, 3, 2);
    EXPECT_EQ(group.signal_count(other, 3), 2U);
    group.progress();
    group.barrier().wait();
  });
}

TEST(CppApi, AnAbortEndsTheOthersWithItsReason) {
  on_ranks(2, [](cenote::Communicator& group) {
    group.barrier().wait();
    if (group.rank() == 0) {
      group.abort("enough");
      EXPECT_EQ(status_of([&] { group.barrier().wait(); }, "enough"), CENOTE_CANCELLED);
    } else {
      EXPECT_EQ(status_of([&] { group.barrier().wait(); }, "enough"), CENOTE_PEER_FAILED);
    }
  });
}

TEST(CppApi, ALauncherIsAskedOrIsNone) {
  cenote::Context context;
  const auto alone = cenote::find_launch(context, "none");
  EXPECT_EQ(alone.rank, 0U);
  EXPECT_EQ(alone.ranks, 1U);
  EXPECT_STREQ(alone.launcher, "none");
  auto group = cenote::Communicator::launched(context, {.launcher = "none"});
  EXPECT_EQ(group.ranks(), 1U);
  group.barrier().wait();
  const auto refused = [&](const cenote::LaunchOptions& options, const char* text) {
    EXPECT_EQ(status_of([&] { (void)cenote::Communicator::launched(context, options); }, text),
              CENOTE_INVALID_ARGUMENT);
  };
  refused({.launcher = "mpi"}, "the caller: launcher: 'mpi' is not one of auto, pmix, slurm, torchrun, none");
  refused({.launcher = "none", .port = 65536}, "launcher_port");
  refused({.launcher = "none", .group = "a b"}, "'a b'");
  EXPECT_EQ(cenote_launch_find(context.handle(), "none", nullptr), CENOTE_INVALID_ARGUMENT);
  cenote_launch sizeless{};
  EXPECT_EQ(cenote_launch_find(context.handle(), "none", &sizeless), CENOTE_INVALID_ARGUMENT);
  EXPECT_THAT(cenote_last_error(), HasSubstr("size is not set"));
  struct {  // a program of a later version: what this library does not know stays as it was
    cenote_launch known;
    std::uint32_t later;
  } larger{{}, 7};
  larger.known.size = sizeof larger;
  EXPECT_EQ(cenote_launch_find(context.handle(), "none", &larger.known), CENOTE_SUCCESS);
  EXPECT_EQ(larger.known.size, sizeof larger);
  EXPECT_EQ(larger.later, 7U);
}

TEST(CppApi, APoolsErrorsHaveThePoolsText) {
  EXPECT_EQ(status_of([] { cenote::Pool pool({.config_file = "nowhere.toml", .read_environment = false}); },
                      "nowhere.toml"),
            CENOTE_NOT_FOUND);
}

}  // namespace
