// Ranks that die while their group forms: the others end with the rank named.
#include <gmock/gmock.h>

#include <random>

#include "tests/multi/collectives/ranks.h"

namespace cenote::collectives {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t ranks = 4;
constexpr std::uint32_t victim = 2;

class Forming : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, Forming, ::testing::ValuesIn(modes()),
                         [](const auto& tested) { return name_of(tested.param); });

TEST_P(Forming, AKilledRankEndsTheOthersWithItsName) {
  std::mt19937 random(3);
  for (int round = 0; round < 8; ++round) {
    std::vector<std::unique_ptr<RankProcess>> processes;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      processes.push_back(std::make_unique<RankProcess>([=](const std::string& id, const auto& up) {
        return reduce_until_failure(id, up, GetParam(), r, ranks, std::chrono::seconds(20),
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

}  // namespace
}  // namespace cenote::collectives
