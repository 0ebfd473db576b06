// `cenote perf` over the kernel's verbs: every tool with every byte checked, over one rail and over two.
#include <gmock/gmock.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "perf/peer_process.h"
#include "perf/verbs_tools.h"
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

// The kernel's card comes to an emulated GPU by staging; what lies there is checked through the driver.
using PerfInGpuMemory = PerfOverVerbs;

TEST_P(PerfInGpuMemory, ChecksEveryByte) {
  expect_well({"-d", environment().devices.front(), "--validate", "--memory", "emulated:A100"});
}

INSTANTIATE_TEST_SUITE_P(, PerfInGpuMemory, ::testing::Values("write_bw", "write_lat", "read_bw", "read_lat"),
                         [](const auto& kind) { return kind.param; });

/// A tool of perftest, and ours, measure the same; both tables are for the same reader.
class BesidePerftest : public VmTest, public ::testing::WithParamInterface<std::string> {
 protected:
  const bool latency = GetParam().ends_with("_lat");

  /// What the client prints, and how long it lived.
  static std::pair<std::string, double> measured(const std::vector<std::string>& program,
                                                 std::vector<std::string> server,
                                                 std::vector<std::string> client) {
    const auto patience = Deadline::in(std::chrono::seconds(120));
    const auto port = perf::free_port().value();
    const auto start = [&](const std::vector<std::string>& own) {
      auto words = program;
      words.insert(words.end(), {"-p", std::to_string(port), "-x", "1"});
      words.insert(words.end(), own.begin(), own.end());
      auto started = perf::PeerProcess::start({words});
      EXPECT_TRUE(started) << started.error().message();
      return std::move(*started);
    };
    server.insert(server.end(), {"-d", environment().devices[1]});
    client.insert(client.end(), {"127.0.0.1", "-d", environment().devices[0], "-s", "512", "-n", "200"});
    auto one = start(server);
    const auto listens = perf::await_listener(port, one, patience);
    EXPECT_TRUE(listens) << listens.error().message();
    const auto began = Clock::now();
    auto output = start(client).finish(patience);
    EXPECT_TRUE(output) << output.error().message();
    return {output.value_or(""), std::chrono::duration<double>(Clock::now() - began).count()};
  }
  /// The names of the columns, without units: perftest calls 2^20 bytes MB or MiB, by its version.
  static std::string columns(const std::string& output) {
    const auto at = output.find("#bytes");
    const auto line = output.substr(at, output.find('\n', at) - at);
    const auto bare = std::regex_replace(line, std::regex(R"(\[[^\]]*\])"), "");
    const auto words = std::regex_replace(bare, std::regex(R"( +)"), " ");
    return words.substr(0, words.find_last_not_of(' ') + 1);
  }
};

TEST_P(BesidePerftest, TheTableHasTheSameColumnsAndUnits) {
  if (::access("/usr/bin/ib_write_bw", X_OK) != 0)
    GTEST_SKIP() << "there is no perftest here; ./dev setup vm installs it";
  const auto [theirs, their_life] =
      measured({"/usr/bin/ib_" + GetParam(), "-F"}, {"-s", "512", "-n", "200"}, {});
  const auto [ours, our_life] =
      measured({pool::testing::kCenote, "perf", GetParam(), "--transport", "verbs", "--timeout", "60"},
               {"--bind", "127.0.0.1"}, {});
  EXPECT_EQ(columns(ours), columns(theirs));
  for (const auto& [output, life] : {std::pair(theirs, their_life), std::pair(ours, our_life)}) {
    const auto row = perf::parse_row(output, latency);
    ASSERT_TRUE(row) << row.error().message();
    EXPECT_EQ(row->values[0], 512);
    EXPECT_EQ(row->values[1], 200);
    if (latency) {  // least, most, typical, average, deviation, 99 %, 99.9 %; in microseconds, of half a
                    // round trip
      EXPECT_LE(row->values[2], row->values[4]);
      EXPECT_LE(row->values[4], row->values[7]);
      EXPECT_LE(row->values[7], row->values[8]);
      EXPECT_LE(row->values[8], row->values[3]);
      EXPECT_GT(row->values[2], 1);
      EXPECT_LT(row->values[5] * 1e-6 * 2 * 190, life) << output;
    } else {  // MiB/s is 2^20 bytes, the rate millions of messages; both are printed rounded
      EXPECT_NEAR(row->values[3] * (1 << 20), row->values[4] * 1e6 * 512, 0.006 * (1 << 20));
      EXPECT_LT(200 / (row->values[4] * 1e6), life) << output;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, BesidePerftest, ::testing::Values("write_bw", "write_lat"),
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
