// Ranks that die, hang or give up, as processes of their own: the others end in time, with the rank named.
#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "tests/multi/collectives/ranks.h"
#include "tests/unit/collectives/reference.h"

namespace cenote::collectives {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t ranks = 4;
constexpr std::uint32_t victim = 2;

MemoryDescription memory_of(Bytes& bytes) { return MemoryDescription::of_host(bytes.data(), bytes.size()); }

/// Allreduces of changing sizes until something fails; the report says what, and how long the last one took.
std::string reduce_until_failure(const std::string& id, const std::function<void()>& up, Mode mode,
                                 std::uint32_t rank, Clock::duration timeout,
                                 Clock::duration init_timeout = std::chrono::seconds(20)) {
  auto options = options_for(mode, rank, ranks);
  options.id = *UniqueId::parse(id);
  options.operation_timeout = timeout;
  options.init_timeout = init_timeout;
  auto communicator = Communicator::create(options);
  if (!communicator) return "create: " + communicator.error().message();
  up();
  Bytes buffer(1 << 20);
  for (std::uint64_t i = 0;; ++i) {
    const std::size_t count = i % 3 == 0 ? 5 : i % 3 == 1 ? 3'000 : 200'000;
    const auto started = Clock::now();
    auto request =
        (*communicator)->allreduce(memory_of(buffer), memory_of(buffer), count, CENOTE_FLOAT32, CENOTE_MAX);
    Result<void> done = request ? (*communicator)->wait(*request, Deadline::never()) : fail(request.error());
    if (done) continue;
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - started).count();
    return "after " + std::to_string(ms) + " ms, peer " + done.error().peer + ": " + done.error().message();
  }
}

struct Outcome {
  std::vector<std::string> reports;
  Clock::duration took{};
};

/// Starts all ranks, does `act` to the victim after `pause`, collects what the others report.
Outcome with_victim(Mode mode, Clock::duration timeout, Clock::duration pause,
                    const std::function<void(RankProcess&)>& act) {
  std::vector<std::unique_ptr<RankProcess>> processes;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    processes.push_back(std::make_unique<RankProcess>([=](const std::string& id, const auto& up) {
      return reduce_until_failure(id, up, mode, r, timeout);
    }));
  }
  auto root = BootstrapRoot::create("127.0.0.1");
  EXPECT_TRUE(root.has_value());
  for (auto& process : processes) process->tell((*root)->id().text());
  for (auto& process : processes) EXPECT_TRUE(process->is_up());
  std::this_thread::sleep_for(pause);  // chooses the moment of the blow; nothing is waited for
  const auto started = Clock::now();
  act(*processes[victim]);
  Outcome outcome;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    if (r != victim) outcome.reports.push_back(processes[r]->report());
  }
  outcome.took = Clock::now() - started;
  return outcome;
}

class Killed : public ::testing::TestWithParam<Mode> {};

TEST_P(Killed, AtAnyMomentEndsTheOthersWithItsName) {
  std::mt19937 random(7);
  for (int round = 0; round < 12; ++round) {
    const auto pause = std::chrono::microseconds(random() % 40'000);
    const auto outcome = with_victim(GetParam(), std::chrono::seconds(20), pause,
                                     [](RankProcess& process) { process.kill(SIGKILL); });
    EXPECT_LT(outcome.took, std::chrono::seconds(10)) << "round " << round;
    for (const auto& report : outcome.reports)
      EXPECT_THAT(report, HasSubstr("peer rank 2:")) << "round " << round;
  }
}

TEST_P(Killed, WhileTheGroupFormsEndsTheOthersWithItsName) {
  std::mt19937 random(3);
  for (int round = 0; round < 8; ++round) {
    std::vector<std::unique_ptr<RankProcess>> processes;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      processes.push_back(std::make_unique<RankProcess>([=](const std::string& id, const auto& up) {
        return reduce_until_failure(id, up, GetParam(), r, std::chrono::seconds(20),
                                    std::chrono::seconds(15));
      }));
    }
    auto root = BootstrapRoot::create("127.0.0.1");
    ASSERT_TRUE(root.has_value());
    for (auto& process : processes) process->tell((*root)->id().text());
    // Before it has said who it is, while the tree grows, while transports connect, or in its first
    // operation.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 25'000));
    const auto started = Clock::now();
    processes[victim]->kill(SIGKILL);
    bool unknown = false;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      if (r == victim) continue;
      auto report = processes[r]->report();
      if (report.starts_with("up\n")) report.erase(0, 3);
      EXPECT_THAT(report, HasSubstr("rank 2")) << "round " << round;
      unknown = unknown || report.find("has not arrived") != std::string::npos;
      EXPECT_TRUE(unknown || report.find("peer rank 2:") != std::string::npos ||
                  report.find("with rank 2 failed") != std::string::npos)
          << report;
    }
    if (!unknown) {
      EXPECT_LT(Clock::now() - started, std::chrono::seconds(10)) << "round " << round;
    }
  }
}

TEST_P(Killed, HangingIsNamedAtTheDeadline) {
  const auto outcome = with_victim(GetParam(), std::chrono::seconds(2), std::chrono::milliseconds(300),
                                   [](RankProcess& process) { process.kill(SIGSTOP); });
  EXPECT_LT(outcome.took, std::chrono::seconds(15));
  for (const auto& report : outcome.reports) {
    EXPECT_THAT(report, HasSubstr("peer rank 2:"));
    EXPECT_THAT(report, HasSubstr("allreduce of"));
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Killed, ::testing::Values(Mode::shm, Mode::tcp, Mode::mixed),
                         [](const auto& tested) { return name_of(tested.param); });

TEST(Abort, EndsEverybodyWithTheReason) {
  std::vector<std::unique_ptr<RankProcess>> processes;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    processes.push_back(std::make_unique<RankProcess>([r](const std::string& id, const auto&) -> std::string {
      auto options = options_for(Mode::shm, r, ranks);
      options.id = *UniqueId::parse(id);
      auto communicator = Communicator::create(options);
      if (!communicator) return communicator.error().message();
      auto barrier = (*communicator)->barrier();
      if (!barrier) return barrier.error().message();
      if (auto met = (*communicator)->wait(*barrier, Deadline::never()); !met) return met.error().message();
      // Rank 1 never joins the second barrier.
      if (r == 1) {
        (*communicator)->abort("out of patience");
      }
      auto again = (*communicator)->barrier();
      auto done =
          again ? (*communicator)->wait(*again, Deadline::never()) : Result<void>(fail(again.error()));
      return done ? "no failure" : done.error().message();
    }));
  }
  auto root = BootstrapRoot::create("127.0.0.1");
  ASSERT_TRUE(root.has_value());
  for (auto& process : processes) process->tell((*root)->id().text());
  for (auto& process : processes) EXPECT_THAT(process->report(), HasSubstr("out of patience"));
}

}  // namespace
}  // namespace cenote::collectives
