// The main job, as a newcomer runs it.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/multi/agent/cluster.h"

namespace cenote::pool::testing {
namespace {

using nlohmann::json;

class DemoTest : public ::testing::Test {
 protected:
  json run(const std::vector<std::string>& more, int exit_code = 0) {
    auto folder = TemporaryFolder::create("cenote-test");
    EXPECT_TRUE(folder);
    const auto path = folder->file("figures.json");
    std::vector<std::string> arguments{"demo", "--json", path};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto result = run_cenote(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.output << result.error;
    std::ifstream file(path);
    return json::parse(file, nullptr, false);
  }
};

TEST_F(DemoTest, TrainsToTheSameBitsOnFourGpusAsOnOne) {
  const auto figures = run({});
  ASSERT_TRUE(figures.is_object());
  EXPECT_GE(figures["test_accuracy"], 0.95);
  EXPECT_EQ(figures["test_accuracy"], figures["single_gpu_accuracy"]);
  EXPECT_EQ(figures["weights_bit_equal"], true);
  for (const auto* key : {"grant_ms", "launches_per_second", "exchanged_bytes", "client_bytes",
                          "bus_bandwidth_gbps", "seconds"}) {
    EXPECT_GT(figures[key], 0) << key;
  }
}

TEST_F(DemoTest, WhatTheClientSendsDoesNotGrowWithTheGradients) {
  // Too few epochs to learn much: the figures are what counts here.
  const auto narrow = run({"--epochs", "2", "--hidden", "32"}, 1),
             wide = run({"--epochs", "2", "--hidden", "64"}, 1);
  EXPECT_GT(wide["gradient_bytes"].get<double>(), 1.9 * narrow["gradient_bytes"].get<double>());
  EXPECT_GT(wide["exchanged_bytes"].get<double>(), 1.9 * narrow["exchanged_bytes"].get<double>());
  // Headers of batches are a part of it, and how many calls share one depends on the clock.
  EXPECT_LT(wide["client_bytes"].get<double>(), 1.10 * narrow["client_bytes"].get<double>());
}

TEST_F(DemoTest, GivesTheSameBitsOverTcp) {
  const auto figures = run({"--epochs", "2", "--transports", "tcp"}, 1);
  EXPECT_EQ(figures["weights_bit_equal"], true);
  for (const auto& pair : figures["pairs"]) {
    if (pair["bytes"] == 0) continue;
    EXPECT_EQ(pair["transport"], "tcp");
  }
}

}  // namespace
}  // namespace cenote::pool::testing
