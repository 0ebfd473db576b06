// The main job, as a newcomer runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pool/cli/demo_data.h"
#include "tests/multi/agent/demo_process.h"

namespace cenote::pool::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

json run(const std::vector<std::string>& arguments, int exit_code = 0) {
  DemoProcess demo(arguments);
  EXPECT_EQ(demo.end(), exit_code) << demo.output() << demo.error();
  EXPECT_THAT(demo.left(), IsEmpty());
  return demo.figures();
}

TEST(Demo, TrainsToTheSameBitsOnFourGpusAsOnOne) {
  const auto figures = run({});
  ASSERT_TRUE(figures.is_object());
  EXPECT_GE(figures["test_accuracy"], 0.95);
  EXPECT_EQ(figures["test_accuracy"], figures["single_gpu_accuracy"]);
  EXPECT_EQ(figures["weights_bit_equal"], true);
  for (const auto* key : {"grant_ms", "launches_per_second", "exchanged_bytes", "client_bytes",
                          "bus_bandwidth_gbps", "seconds"}) {
    EXPECT_GT(figures[key], 0) << key;
  }
  EXPECT_THAT(figures["kills"], IsEmpty());
}

TEST(Demo, WhatTheClientSendsDoesNotGrowWithTheGradients) {
  // Too few epochs to learn much: the figures are what counts here.
  const auto narrow = run({"--epochs", "2", "--hidden", "32"}, 1),
             wide = run({"--epochs", "2", "--hidden", "64"}, 1);
  EXPECT_GT(wide["gradient_bytes"].get<double>(), 1.9 * narrow["gradient_bytes"].get<double>());
  EXPECT_GT(wide["exchanged_bytes"].get<double>(), 1.9 * narrow["exchanged_bytes"].get<double>());
  // Headers of batches are a part of it, and how many calls share one depends on the clock.
  EXPECT_LT(wide["client_bytes"].get<double>(), 1.10 * narrow["client_bytes"].get<double>());
}

TEST(Demo, GivesTheSameBitsOverTcp) {
  const auto figures = run({"--epochs", "2", "--transports", "tcp"}, 1);
  EXPECT_EQ(figures["weights_bit_equal"], true);
  for (const auto& pair : figures["pairs"]) {
    if (pair["bytes"] == 0) continue;
    EXPECT_EQ(pair["transport"], "tcp");
  }
}

TEST(Demo, TrainsOnAPoolThatStandsAndLeavesItAsItWas) {
  const auto cluster = Cluster::start();
  ASSERT_TRUE(cluster);
  const auto result = cluster->run({"demo", "--pool", "--epochs", "1", "--hidden", "16"});
  EXPECT_EQ(result.exit_code, 1) << "one epoch is too few: " << result.error;
  EXPECT_THAT(result.error, HasSubstr("less than 0.95"));
  EXPECT_THAT(result.output, HasSubstr("3 agents with 4 GPUs"));
  EXPECT_THAT(result.output, HasSubstr("weights bit-equal"));
  EXPECT_TRUE(eventually([&] { return cluster->idle(); }));
}

TEST(Demo, SettingsOfTheCommandLineAreThoseOfAllItsProcesses) {
  const auto result = run_cenote({"demo", "--epochs", "1", "--set", "worker.timeout=1s", "--set",
                                  "collective.algorithm=ring", "--hidden", "16"});
  EXPECT_THAT(result.output, HasSubstr("weights bit-equal")) << result.error;
  EXPECT_THAT(result.output, ::testing::ContainsRegex("0 -> 2 +shm +4 B")) << "no gradient across the ring";
}

TEST(Demo, APoolThatHasNoFourGpusFreeSaysSo) {
  const auto cluster = Cluster::start();
  ASSERT_TRUE(cluster);
  const auto held = cluster->client()->lease({.gpus = 1}, patience());
  ASSERT_TRUE(held) << held.error().message();
  const auto result = cluster->run({"demo", "--pool"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.error, HasSubstr("1 of 4 leased"));
}

TEST(Demo, TooFewEpochsAreSaidToBeTheReasonForItsExitCode) {
  DemoProcess demo({"--epochs", "1"});
  EXPECT_EQ(demo.end(), 1);
  EXPECT_THAT(demo.error(), HasSubstr("less than 0.95"));
  EXPECT_THAT(demo.error(), HasSubstr("--epochs"));
  EXPECT_TRUE(demo.figures().is_object()) << "the figures are there all the same";
}

TEST(Demo, IsInterruptedInWordsWithTheShellsCodeAndLeavesNothing) {
  for (const auto& [number, name] : {std::pair(SIGINT, "SIGINT"), std::pair(SIGTERM, "SIGTERM")}) {
    DemoProcess demo({"--epochs", "10000"});
    ASSERT_TRUE(demo.has_said("training on four GPUs"));
    const auto children = children_of(demo.child().pid());
    EXPECT_GE(children.size(), 5U) << "guardian, broker, three agents";
    demo.child().signal(number);
    EXPECT_EQ(demo.end(), 128 + number);
    EXPECT_EQ(demo.error(), std::string("cenote demo: interrupted by ") + name + "\n");
    for (const auto child : children) EXPECT_FALSE(alive(child)) << child;
    EXPECT_THAT(demo.left(), IsEmpty());
    EXPECT_FALSE(std::filesystem::exists(demo.figures_path())) << "there are no figures";
  }
}

TEST(Demo, RefusesWhereItCannotWriteItsFiguresBeforeItDoesAnything) {
  for (const auto* path : {"/nonexistent/figures.json", "/"}) {
    const auto result = run_cenote({"demo", "--json", path});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.output, "") << "nothing was begun";
    EXPECT_THAT(result.error, HasSubstr(std::string("write ") + path + " failed: "));
  }
}

TEST(Demo, FindsItsDataInTheTreeThatItWasBuiltInWhereverThatHasGone) {
  namespace fs = std::filesystem;
  const auto folder = std::move(*TemporaryFolder::create("cenote-test"));
  const auto here = fs::current_path();
  fs::current_path(folder.path());  // not in a tree
  const auto data = fs::path(folder.file("tree")) / "examples/data/digits.csv";
  const auto program = fs::path(folder.file("tree")) / "build/any/bin";
  const auto none = cli::find_digits("", program);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::not_found);
  for (const auto& place : {program / "digits.csv", program.parent_path() / "share/cenote/digits.csv", data})
    EXPECT_THAT(none.error().cause, HasSubstr(place.string()));
  EXPECT_THAT(none.error().remedy, HasSubstr("--data"));
  fs::create_directories(data.parent_path());
  std::ofstream(data) << "data";
  const auto found = cli::find_digits("", program);
  fs::current_path(here);
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ(*found, data);
}

TEST(Demo, KeepsItsFolderWhenAskedAndNamesIt) {
  DemoProcess demo({"--epochs", "1", "--keep"});
  EXPECT_EQ(demo.end(), 1) << "also when it fails";
  ASSERT_EQ(demo.left().size(), 1U);
  const auto kept = demo.temporary() + "/" + demo.left().front();
  EXPECT_THAT(demo.output(), HasSubstr("kept: " + kept));
  for (const auto* name : {"broker.log", "node1.log", "broker/broker.db"})
    EXPECT_TRUE(std::filesystem::exists(kept + "/" + name)) << name;
}

}  // namespace
}  // namespace cenote::pool::testing
