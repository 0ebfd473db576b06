// `cenote perf` over the kernel's verbs: every tool with every byte checked, over one rail and over two.
#include <gmock/gmock.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "tests/multi/perf/perf_command.h"
#include "tests/vm/environment.h"

namespace cenote::test::vm {
namespace {

using perf::test::Running;
using pool::testing::run_cenote;
using ::testing::AllOf;
using ::testing::HasSubstr;

class PerfOverVerbs : public VmTest, public ::testing::WithParamInterface<std::string> {
 protected:
  void expect_well(const std::vector<std::string>& more) {
    std::vector<std::string> words{"perf", GetParam(), "--local", "--transport", "verbs",
                                   "-n",   "50",       "--json",  "--timeout",   "60"};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = run_cenote(words);
    ASSERT_EQ(result.exit_code, 0) << result.error;
    const auto out = nlohmann::json::parse(result.output);
    EXPECT_EQ(out["test_info"]["transport"], "verbs");
    EXPECT_EQ(out["runs"][0]["n_iterations"], 50);
  }
};

TEST_P(PerfOverVerbs, ChecksEveryByteOverOneDevice) {
  expect_well({"-d", environment().devices.front(), "--validate"});
}

TEST_P(PerfOverVerbs, MeasuresOverAllRails) { expect_well({}); }

INSTANTIATE_TEST_SUITE_P(, PerfOverVerbs,
                         ::testing::Values("write_bw", "write_lat", "read_bw", "read_lat", "send_bw",
                                           "send_lat", "atomic_lat"),
                         [](const auto& kind) { return kind.param; });

using PerfVerbs = VmTest;

TEST_F(PerfVerbs, ADeviceThatIsNotThereIsNamed) {
  const auto result = run_cenote({"perf", "write_bw", "--local", "--transport", "verbs", "-d", "mlx5_9"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.error, HasSubstr("mlx5_9"));
}

TEST_F(PerfVerbs, ThePeersDeathIsAnErrorThatNamesIt) {
  Running run({"perf", "write_bw", "--local", "--transport", "verbs", "-D", "600"});
  ASSERT_TRUE(run.says("#bytes")) << run.error();
  const auto children = pool::testing::children_of(run.pid());
  ASSERT_EQ(children.size(), 1U);
  ::kill(children.front(), SIGKILL);
  EXPECT_EQ(run.wait(), 1);
  EXPECT_THAT(run.error(), AllOf(HasSubstr("cenote perf write_bw: "),
                                 HasSubstr("process " + std::to_string(children.front()))));
}

}  // namespace
}  // namespace cenote::test::vm
