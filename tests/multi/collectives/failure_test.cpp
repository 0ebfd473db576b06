// Ranks that die, hang or give up, as processes of their own: the others end in time, with the rank named.
#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "tests/fault_row.h"
#include "tests/multi/collectives/ranks.h"
#include "tests/unit/collectives/reference.h"

namespace cenote::collectives {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t ranks = 4;
constexpr std::uint32_t victim = 2;

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
      return reduce_until_failure(id, up, mode, r, ranks, timeout);
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
  for (int round = 0; round < rounds(GetParam(), 12); ++round) {
    const auto pause = std::chrono::microseconds(random() % 40'000);
    const auto outcome = with_victim(GetParam(), std::chrono::seconds(20), pause,
                                     [](RankProcess& process) { process.kill(SIGKILL); });
    EXPECT_LT(outcome.took, std::chrono::seconds(10)) << "round " << round;
    for (const auto& report : outcome.reports)
      EXPECT_THAT(report, HasSubstr("peer rank 2:")) << "round " << round;
  }
  if (GetParam() == Mode::verbs) return;  // not every machine has the VM
  cenote::test::tried({"Collectives, ranks as processes", "a rank is killed at a random moment",
                       static_cast<std::uint64_t>(rounds(GetParam(), 12)),
                       "the others end at once, and name it", "so within 10 s"});
}

TEST_P(Killed, HangingIsNamedAtTheDeadline) {
  const auto outcome = with_victim(GetParam(), std::chrono::seconds(2), std::chrono::milliseconds(300),
                                   [](RankProcess& process) { process.kill(SIGSTOP); });
  EXPECT_LT(outcome.took, std::chrono::seconds(15));
  for (const auto& report : outcome.reports) {
    EXPECT_THAT(report, HasSubstr("peer rank 2:"));
    EXPECT_THAT(report, HasSubstr("allreduce of"));
  }
  if (GetParam() == Mode::verbs) return;  // not every machine has the VM
  cenote::test::tried({"Collectives, ranks as processes", "a rank is stopped", 1,
                       "the others end at their deadline, and name it and the operation", "so"});
}

INSTANTIATE_TEST_SUITE_P(Modes, Killed, ::testing::ValuesIn(modes()),
                         [](const auto& tested) { return name_of(tested.param); });

class Abort : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, Abort, ::testing::ValuesIn(modes()),
                         [](const auto& tested) { return name_of(tested.param); });

TEST_P(Abort, EndsEverybodyWithTheReason) {
  std::vector<std::unique_ptr<RankProcess>> processes;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    processes.push_back(std::make_unique<RankProcess>(
        [r, mode = GetParam()](const std::string& id, const auto&) -> std::string {
          auto options = options_for(mode, r, ranks);
          options.id = *UniqueId::parse(id);
          auto communicator = Communicator::create(options);
          if (!communicator) return communicator.error().message();
          auto barrier = (*communicator)->barrier();
          if (!barrier) return barrier.error().message();
          if (auto met = (*communicator)->wait(*barrier, Deadline::never()); !met)
            return met.error().message();
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
