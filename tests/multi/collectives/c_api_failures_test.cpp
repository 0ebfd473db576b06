// What a program that has only the C interface is told when something goes wrong. Ranks are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cenote/cenote.h"

namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

/// A context that serves an id, and what its ranks ask for.
struct Group {
  explicit Group(const char* transports, std::uint32_t ranks) : size(ranks) {
    cenote_context_options options{};
    options.size = sizeof options;
    options.transports = transports;
    EXPECT_EQ(cenote_context_create(&options, &context), CENOTE_SUCCESS) << cenote_last_error();
    EXPECT_EQ(cenote_unique_id_create(context, &id), CENOTE_SUCCESS) << cenote_last_error();
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() { cenote_context_destroy(context); }

  [[nodiscard]] cenote_comm_options options(std::uint32_t rank) const {
    cenote_comm_options wanted{};
    wanted.size = sizeof wanted;
    wanted.rank = rank;
    wanted.ranks = size;
    wanted.id = id;
    wanted.operation_timeout_ms = 20'000;
    return wanted;
  }

  void run(const std::function<void(cenote_comm*, std::uint32_t)>& body) const {
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const auto wanted = options(rank);
        cenote_comm* comm = nullptr;
        ASSERT_EQ(cenote_comm_create(context, &wanted, &comm), CENOTE_SUCCESS) << cenote_last_error();
        body(comm, rank);
        cenote_comm_destroy(comm);
      });
    }
    for (auto& thread : threads) thread.join();
  }

  std::uint32_t size;
  cenote_context* context = nullptr;
  cenote_unique_id id{};
};

cenote_status finish(cenote_comm* comm, cenote_status started, cenote_request& request) {
  return started == CENOTE_SUCCESS ? cenote_wait(comm, &request, 0) : started;
}

cenote_status meet(cenote_comm* comm) {
  cenote_request request{};
  return finish(comm, cenote_barrier(comm, &request), request);
}

cenote_status make_window(cenote_comm* comm, std::size_t bytes, cenote_window** window) {
  cenote_window_options wanted{};
  wanted.size = sizeof wanted;
  wanted.bytes = bytes;
  return cenote_window_create(comm, &wanted, window);
}

class CApiFailures : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, CApiFailures, ::testing::Values("shm", "tcp"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(CApiFailures, AWaitThatTimedOutFailsAgainWhenItIsRepeated) {
  const Group group(GetParam(), 2);
  group.run([](cenote_comm* comm, std::uint32_t rank) {
    float mine[4] = {1, 2, 3, 4}, sum[4] = {-1, -1, -1, -1};
    cenote_request request{};
    int done = 7;
    // Nothing in flight on a communicator that is well is complete.
    EXPECT_EQ(cenote_wait(comm, &request, 0), CENOTE_SUCCESS);
    EXPECT_EQ(cenote_test(comm, &request, &done), CENOTE_SUCCESS);
    EXPECT_EQ(done, 1);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));  // the late rank
    const auto started = cenote_allreduce(comm, mine, sum, 4, CENOTE_FLOAT32, CENOTE_SUM, &request);
    if (rank == 1) {
      EXPECT_EQ(finish(comm, started, request), CENOTE_PEER_FAILED);
      return;
    }
    ASSERT_EQ(started, CENOTE_SUCCESS) << cenote_last_error();
    ASSERT_EQ(cenote_wait(comm, &request, 100), CENOTE_DEADLINE_EXCEEDED);
    const std::string first = cenote_last_error();
    EXPECT_EQ(request.sequence, 0U);
    EXPECT_EQ(cenote_wait(comm, &request, 0), CENOTE_DEADLINE_EXCEEDED);
    EXPECT_EQ(cenote_last_error(), first);
    EXPECT_EQ(cenote_test(comm, &request, &done), CENOTE_DEADLINE_EXCEEDED);
    EXPECT_EQ(done, 0);
    // So does a start that failed.
    EXPECT_EQ(cenote_barrier(comm, &request), CENOTE_DEADLINE_EXCEEDED);
    EXPECT_EQ(cenote_wait(comm, &request, 0), CENOTE_DEADLINE_EXCEEDED);
  });
}

TEST_P(CApiFailures, AnImpossibleWindowAtOneRankIsRefusedAtAll) {
  for (const auto& [bytes, status] : {std::pair{std::size_t{1} << 60, CENOTE_INVALID_ARGUMENT},
                                      std::pair{std::size_t{1} << 47, CENOTE_RESOURCE_EXHAUSTED}}) {
    const Group group(GetParam(), 3);
    group.run([bytes = bytes, status = status](cenote_comm* comm, std::uint32_t rank) {
      cenote_window* window = nullptr;
      const auto made = make_window(comm, rank == 1 ? bytes : 64, &window);
      EXPECT_EQ(made, status) << bytes << " at " << rank << ": " << cenote_last_error();
      EXPECT_EQ(window, nullptr);
      EXPECT_THAT(cenote_last_error(), HasSubstr("rank 1"));
      EXPECT_EQ(meet(comm), CENOTE_SUCCESS) << cenote_last_error();  // nothing is broken
      EXPECT_EQ(make_window(comm, 64, &window), CENOTE_SUCCESS) << cenote_last_error();
      EXPECT_EQ(meet(comm), CENOTE_SUCCESS);
      cenote_window_destroy(window);
    });
  }
}

TEST_P(CApiFailures, RanksThatDisagreeAreBothToldWhatDiffers) {
  const Group group(GetParam(), 2);
  group.run([](cenote_comm* comm, std::uint32_t rank) {
    std::vector<float> values(200);
    cenote_request request{};
    const auto count = rank == 0 ? 100 : 200;
    const auto started =
        cenote_allreduce(comm, values.data(), values.data(), count, CENOTE_FLOAT32, CENOTE_SUM, &request);
    EXPECT_EQ(finish(comm, started, request), CENOTE_INVALID_ARGUMENT) << cenote_last_error();
    const std::string text = cenote_last_error();
    EXPECT_THAT(text, HasSubstr("ranks disagree"));
    EXPECT_THAT(text, HasSubstr("rank 0 calls allreduce of 100"));
    EXPECT_THAT(text, HasSubstr("rank 1 calls allreduce of 200"));
    EXPECT_THAT(text, HasSubstr(rank == 0 ? "with rank 1" : "with rank 0"));
    EXPECT_THAT(text, HasSubstr("the same calls in the same order"));
  });
}

TEST_P(CApiFailures, SignalsThatHadArrivedAreCountedAfterTheFailure) {
  const Group group(GetParam(), 2);
  group.run([](cenote_comm* comm, std::uint32_t rank) {
    cenote_window* window = nullptr;
    ASSERT_EQ(make_window(comm, 64, &window), CENOTE_SUCCESS) << cenote_last_error();
    cenote_request request{};
    if (rank == 1) {
      EXPECT_EQ(finish(comm, cenote_signal(comm, 0, 3, &request), request), CENOTE_SUCCESS);
      EXPECT_EQ(meet(comm), CENOTE_SUCCESS);
    } else {
      EXPECT_EQ(meet(comm), CENOTE_SUCCESS);
      ASSERT_EQ(cenote_signal_wait(comm, 1, 3, 1, 0), CENOTE_SUCCESS);
      EXPECT_EQ(meet(comm), CENOTE_PEER_FAILED);
      EXPECT_EQ(cenote_signal_wait(comm, 1, 3, 1, 0), CENOTE_SUCCESS);
      std::uint64_t count = 7;
      EXPECT_EQ(cenote_signal_count(comm, 1, 3, &count), CENOTE_PEER_FAILED);
      EXPECT_EQ(count, 1U);
      EXPECT_EQ(cenote_signal_count(comm, 2, 3, &count), CENOTE_INVALID_ARGUMENT);
      EXPECT_EQ(count, 0U);
    }
    cenote_window_destroy(window);
  });
}

TEST_P(CApiFailures, TextsNameWhatIsNullWhoAbortedAndWhoseWindowEnded) {
  const Group group(GetParam(), 2);
  group.run([](cenote_comm* comm, std::uint32_t rank) {
    cenote_request request{};
    float value = 0;
    EXPECT_EQ(cenote_allreduce(comm, nullptr, &value, 1, CENOTE_FLOAT32, CENOTE_SUM, &request),
              CENOTE_INVALID_ARGUMENT);
    EXPECT_THAT(cenote_last_error(), HasSubstr("send is NULL, 4 bytes are needed"));
    EXPECT_EQ(cenote_put(nullptr, 0, 0, &value, 4, 0, &request), CENOTE_INVALID_ARGUMENT);
    EXPECT_THAT(cenote_last_error(), HasSubstr("the window is NULL"));
    EXPECT_EQ(cenote_get(nullptr, 0, 0, &value, 4, &request), CENOTE_INVALID_ARGUMENT);
    EXPECT_THAT(cenote_last_error(), HasSubstr("the window is NULL"));
    EXPECT_EQ(meet(comm), CENOTE_SUCCESS);
    if (rank == 0) cenote_comm_abort(comm, "enough\nof it");
    auto ended = meet(comm);
    EXPECT_EQ(ended, rank == 0 ? CENOTE_CANCELLED : CENOTE_PEER_FAILED);
    EXPECT_THAT(cenote_last_error(), HasSubstr("enough?of it"));
    if (rank == 0) {
      EXPECT_THAT(cenote_last_error(), HasSubstr("collectives of rank 0 failed: aborted"));
    }
  });
  const Group another(GetParam(), 2);
  another.run([](cenote_comm* comm, std::uint32_t rank) {
    cenote_window* window = nullptr;
    ASSERT_EQ(make_window(comm, 1 << 20, &window), CENOTE_SUCCESS) << cenote_last_error();
    if (rank == 1) {
      cenote_window_destroy(window);
      auto ended = meet(comm);
      if (ended == CENOTE_SUCCESS) ended = cenote_signal_wait(comm, 0, 0, 1, 0);
      EXPECT_NE(ended, CENOTE_SUCCESS);
      return;
    }
    EXPECT_EQ(meet(comm), CENOTE_SUCCESS);
    std::vector<char> bytes(1 << 20);
    cenote_request request{};
    const auto put = cenote_put(window, 1, 0, bytes.data(), bytes.size(), CENOTE_NO_SIGNAL, &request);
    auto ended = finish(comm, put, request);
    // A put ends when its source may be used again: the target's refusal may come after that.
    if (ended == CENOTE_SUCCESS)
      ended = finish(comm, cenote_get(window, 1, 0, bytes.data(), bytes.size(), &request), request);
    EXPECT_NE(ended, CENOTE_SUCCESS);
    EXPECT_THAT(cenote_last_error(), HasSubstr("rank 1 has ended its window"));
    cenote_window_destroy(window);
  });
}

TEST(CApi, AnUnknownAlgorithmIsAnInvalidArgument) {
  const Group group("shm", 1);
  auto wanted = group.options(0);
  wanted.algorithm = "star";
  cenote_comm* comm = nullptr;
  EXPECT_EQ(cenote_comm_create(group.context, &wanted, &comm), CENOTE_INVALID_ARGUMENT);
  EXPECT_THAT(cenote_last_error(), HasSubstr("no algorithm is called 'star'"));
}

TEST(CApi, AFreshWindowIsWrittenWhileItsOwnerComputes) {
  const Group group("shm", 2);
  group.run([](cenote_comm* comm, std::uint32_t rank) {
    cenote_window* window = nullptr;
    ASSERT_EQ(make_window(comm, 1 << 20, &window), CENOTE_SUCCESS) << cenote_last_error();
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(2));  // computes, and makes no call
    } else {
      std::vector<char> bytes(1 << 20, 'x');
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the owner is out of its own call
      const auto started = Clock::now();
      cenote_request request{};
      const auto put = cenote_put(window, 1, 0, bytes.data(), bytes.size(), CENOTE_NO_SIGNAL, &request);
      EXPECT_EQ(finish(comm, put, request), CENOTE_SUCCESS) << cenote_last_error();
      EXPECT_LT(Clock::now() - started, std::chrono::seconds(1));
    }
    EXPECT_EQ(meet(comm), CENOTE_SUCCESS);
    cenote_window_destroy(window);
  });
}

TEST(CApi, AChildOfForkUsesNothingOfItsParentsAndHarmsNothing) {
  const Group group("shm", 1);
  const auto wanted = group.options(0);
  cenote_comm* comm = nullptr;
  ASSERT_EQ(cenote_comm_create(group.context, &wanted, &comm), CENOTE_SUCCESS);
  cenote_window* window = nullptr;
  ASSERT_EQ(make_window(comm, 64, &window), CENOTE_SUCCESS);
  const auto child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(10);  // a hang ends it
    const auto refused = [](cenote_status status) {
      return status == CENOTE_INVALID_ARGUMENT &&
             std::string(cenote_last_error()).find("child of fork") != std::string::npos;
    };
    int line = 0;
    cenote_comm* another = nullptr;
    cenote_unique_id id{};
    cenote_request request{};
    cenote_window* of_child = nullptr;
    std::uint64_t count = 0;
    char byte = 1;
    if (!refused(cenote_comm_create(group.context, &wanted, &another))) line = 1;
    if (!refused(cenote_unique_id_create(group.context, &id))) line = 2;
    if (!refused(cenote_barrier(comm, &request))) line = 3;
    if (!refused(cenote_put(window, 0, 0, &byte, 1, CENOTE_NO_SIGNAL, &request))) line = 4;
    if (!refused(make_window(comm, 64, &of_child))) line = 5;
    if (!refused(cenote_wait(comm, &request, 0))) line = 6;
    if (!refused(cenote_signal_count(comm, 0, 0, &count))) line = 7;
    if (!refused(cenote_progress(comm))) line = 8;
    cenote_comm_abort(comm, "the child's");
    cenote_window_destroy(window);
    cenote_comm_destroy(comm);
    cenote_context_destroy(group.context);
    ::_exit(line);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(meet(comm), CENOTE_SUCCESS) << cenote_last_error();
  cenote_window_destroy(window);
  cenote_comm_destroy(comm);
}

TEST(CApi, ARankThatContradictsTheGroupEndsItAtOnce) {
  struct Wrong {
    std::uint32_t rank, ranks;
    const char* text;
  };
  for (const auto& wrong : {Wrong{0, 3, "rank 0 came twice, from 127.0.0.1"},
                            Wrong{2, 4, "rank 2 expects 4 ranks, the others expect 3"}}) {
    const Group group("shm", 3);
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto wanted = group.options(rank);
        const auto started = Clock::now();
        cenote_comm* comm = nullptr;
        EXPECT_EQ(cenote_comm_create(group.context, &wanted, &comm), CENOTE_INVALID_ARGUMENT);
        EXPECT_THAT(cenote_last_error(), HasSubstr(wrong.text));
        EXPECT_LT(Clock::now() - started, std::chrono::seconds(10));  // the timeout is 30 s
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the wrong one is not the first
    auto wanted = group.options(wrong.rank);
    wanted.ranks = wrong.ranks;
    cenote_comm* comm = nullptr;
    EXPECT_NE(cenote_comm_create(group.context, &wanted, &comm), CENOTE_SUCCESS);
    for (auto& thread : threads) thread.join();
  }
}

}  // namespace
