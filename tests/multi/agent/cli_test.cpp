// The command as people meet it: one clear line when something is wrong, the right exit code, JSON where it
// lists.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/multi/agent/cluster.h"

namespace cenote::pool::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// One line that says what, and at most one more that says what to do.
void expect_one_clear_line(const ProgramResult& result, const std::string& command, const std::string& about,
                           int code = 1) {
  EXPECT_EQ(result.exit_code, code) << result.error;
  EXPECT_THAT(result.error, AllOf(StartsWith("cenote " + command + ": "), HasSubstr(about)));
  EXPECT_LE(std::count(result.error.begin(), result.error.end(), '\n'), 2) << result.error;
}

class CommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = TemporaryFolder::create("cenote-test");
    ASSERT_TRUE(made);
    folder.emplace(std::move(*made));
  }
  std::optional<TemporaryFolder> folder;
};

TEST_F(CommandTest, VersionAndHelp) {
  EXPECT_THAT(run_cenote({"version"}).output, StartsWith("cenote 0."));
  EXPECT_TRUE(json::parse(run_cenote({"version", "--json"}).output).contains("version"));
  const auto help = run_cenote({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output,
              AllOf(HasSubstr("demo"), HasSubstr("lease"), ::testing::Not(HasSubstr("worker "))));
}

TEST_F(CommandTest, WrongUsageEndsWithTwo) {
  expect_one_clear_line(run_cenote({"lease", "--gpus", "none"}), "lease", "--gpus", 2);
  EXPECT_EQ(run_cenote({"frobnicate"}).exit_code, 2);
  EXPECT_EQ(run_cenote({}).exit_code, 2);
}

TEST_F(CommandTest, SettingsMayStandBeforeOrAfterTheCommand) {
  for (const auto& words :
       std::vector<std::vector<std::string>>{{"--set", "log.level=debug", "config", "--json"},
                                             {"config", "--json", "--set", "log.level=debug"}}) {
    EXPECT_THAT(run_cenote(words).output, HasSubstr("\"debug\""));
  }
}

TEST_F(CommandTest, ConfigShowsEverySettingWithItsSource) {
  const auto shown = json::parse(run_cenote({"--set", "log.level=debug", "config", "--json"}).output);
  bool found = false;
  for (const auto& setting : shown["settings"]) {
    if (setting["name"] != "log.level") continue;
    found = true;
    EXPECT_EQ(setting["value"], "debug");
    EXPECT_THAT(setting["source"].get<std::string>(), HasSubstr("--set"));
  }
  EXPECT_TRUE(found);
}

TEST_F(CommandTest, ABadSettingIsNamed) {
  expect_one_clear_line(run_cenote({"--set", "broker.grace=soon", "config"}), "config", "broker.grace");
  expect_one_clear_line(run_cenote({"--set", "no.such=1", "config"}), "config", "no.such");
}

TEST_F(CommandTest, ABadConfigFileIsNamedWithItsLine) {
  const auto path = folder->file("cenote.toml");
  std::ofstream(path) << "[broker]\ngrace = \"soon\"\n";
  expect_one_clear_line(run_cenote({"--config", path, "config"}), "config", path);
  expect_one_clear_line(run_cenote({"--config", folder->file("missing.toml"), "config"}), "config",
                        "missing.toml");
}

TEST_F(CommandTest, AnUnreadableDataFileIsNamed) {
  expect_one_clear_line(run_cenote({"demo", "--data", folder->file("missing.csv")}), "demo", "missing.csv");
  const auto path = folder->file("bad.csv");
  std::ofstream(path) << "1,2,3\n";
  expect_one_clear_line(run_cenote({"demo", "--data", path}), "demo", "line 1: too few columns");
}

TEST_F(CommandTest, WithoutCertificatesTheRemedyIsSaid) {
  const auto result = run_cenote({"--set", "tls.dir=" + folder->path(), "leases"});
  expect_one_clear_line(result, "leases", "cert.pem");
  EXPECT_THAT(result.error, HasSubstr("cenote broker --init-tls"));
}

TEST_F(CommandTest, InitTlsSaysWhatBelongsWhere) {
  const auto dir = folder->file("tls");
  const auto made =
      run_cenote({"--set", "tls.dir=" + dir, "broker", "--init-tls", "--agent", "n1", "--client", "alice"});
  EXPECT_EQ(made.exit_code, 0) << made.error;
  EXPECT_THAT(made.output,
              AllOf(HasSubstr("agent-n1.pem"), HasSubstr("client-alice.key"), HasSubstr("ca.key")));
  // Again, for one more agent: the authority stays.
  const auto more = run_cenote({"--set", "tls.dir=" + dir, "broker", "--init-tls", "--agent", "n2"});
  EXPECT_EQ(more.exit_code, 0) << more.error;
  EXPECT_THAT(more.output, AllOf(HasSubstr("used authority"), HasSubstr("agent-n2.pem")));
}

TEST_F(CommandTest, ABrokerThatIsNotThereIsOneLine) {
  const auto dir = folder->file("tls");
  ASSERT_EQ(run_cenote({"--set", "tls.dir=" + dir, "broker", "--init-tls"}).exit_code, 0);
  const auto result = run_cenote(
      {"--set", "tls.dir=" + dir, "--set", "broker.address=127.0.0.1:1", "leases", "--timeout", "1"});
  expect_one_clear_line(result, "leases", "127.0.0.1:1");
}

TEST_F(CommandTest, DoctorNamesEveryRungWithItsReason) {
  const auto rungs = json::parse(run_cenote({"doctor", "--json"}).output)["rungs"];
  std::set<std::string> seen;
  for (const auto& rung : rungs) {
    seen.insert(rung["rung"]);
    EXPECT_NE(rung["reason"], "") << rung;
  }
  for (const auto* name :
       {"libcuda", "emulated", "dma-buf", "staged", "shm", "tcp", "locked memory", "broker"}) {
    EXPECT_TRUE(seen.contains(name)) << name;
  }
}

TEST_F(CommandTest, TheCompletionIsBashAndKnowsTheCommands) {
  const auto script = run_cenote({"completion", "bash"});
  EXPECT_THAT(script.output, AllOf(HasSubstr("--gpus"), HasSubstr("doctor"), HasSubstr("complete -F")));
  const auto path = folder->file("completion");
  std::ofstream(path) << script.output;
  cli::ChildOptions options;
  options.command = {"bash", "-n", path};
  auto bash = cli::ChildProcess::start(options);
  ASSERT_TRUE(bash);
  EXPECT_EQ(bash->wait(patience()), 0);
}

class PoolCommandTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { cluster = Cluster::start().release(); }
  static void TearDownTestSuite() { delete cluster; }
  void SetUp() override { ASSERT_NE(cluster, nullptr); }
  static Cluster* cluster;
};
Cluster* PoolCommandTest::cluster = nullptr;

TEST_F(PoolCommandTest, AnImpossibleRequestSaysWhatThePoolHas) {
  expect_one_clear_line(cluster->run({"lease", "--gpus", "9"}), "lease", "asks 9 GPUs, the pool has 4");
}

TEST_F(PoolCommandTest, NoFreeGpuIsOneLine) {
  const auto held = cluster->client()->lease({.gpus = 4}, patience());
  ASSERT_TRUE(held) << held.error().message();
  expect_one_clear_line(cluster->run({"lease", "--gpus", "1"}), "lease", "free");
  EXPECT_TRUE((*held)->release(patience()));
  ASSERT_TRUE(eventually([&] { return cluster->idle(); }));
}

TEST_F(PoolCommandTest, APortInUseIsOneLine) {
  TemporaryFolder other = std::move(*TemporaryFolder::create("cenote-test"));
  const auto result = cluster->run({"--set", "broker.state_dir=" + other.path(), "--set",
                                    "broker.listen=" + cluster->processes().broker_endpoint(), "broker"});
  expect_one_clear_line(result, "broker", cluster->processes().broker_endpoint());
}

TEST_F(PoolCommandTest, ASecondBrokerOnOneStoreIsOneLine) {
  const auto result = cluster->run({"--set", "broker.listen=127.0.0.1:0", "broker"});
  expect_one_clear_line(result, "broker", std::to_string(cluster->processes().broker_pid()));
}

TEST_F(PoolCommandTest, ASecondAgentOnOneGpuIsOneLine) {
  const auto result = cluster->run({"--set", "agent.devices=emulated:A100:64MiB", "agent", "--name", "b"});
  expect_one_clear_line(result, "agent", "another agent on this machine serves it");
}

TEST_F(PoolCommandTest, ABadDeviceListIsNamed) {
  expect_one_clear_line(cluster->run({"--set", "agent.devices=emulated:H200:lots", "agent", "--name", "b"}),
                        "agent", "agent.devices");
}

TEST_F(PoolCommandTest, ADetachedLeaseIsListedAndReleasedByItsFile) {
  const auto detached = cluster->run({"lease", "--gpus", "2", "--note", "by hand", "--detach"});
  ASSERT_EQ(detached.exit_code, 0) << detached.error;
  const auto listed = json::parse(cluster->run({"leases", "--json"}).output)["leases"];
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed[0]["note"], "by hand");
  EXPECT_EQ(listed[0]["devices"].size(), 2U);
  TemporaryFolder folder = std::move(*TemporaryFolder::create("cenote-test"));
  std::ofstream(folder.file("lease.json")) << detached.output;
  const auto released = cluster->run({"release", folder.file("lease.json")});
  EXPECT_EQ(released.exit_code, 0) << released.error;
  EXPECT_TRUE(eventually([&] { return cluster->leases() == 0; }));
}

TEST_F(PoolCommandTest, NoLeaseFileIsOneLine) {
  TemporaryFolder folder = std::move(*TemporaryFolder::create("cenote-test"));
  std::ofstream(folder.file("x.json")) << "{}";
  expect_one_clear_line(cluster->run({"release", folder.file("x.json")}), "release", "x.json");
}

TEST_F(PoolCommandTest, ALeaseIsHeldWhileACommandRunsAndItsExitCodeComesBack) {
  const auto inside =
      cluster->run({"lease", "--gpus", "1", "--", "sh", "-c",
                    kCenote + " --config " + cluster->processes().config_file() +
                        " leases --json; test -r \"$CENOTE_CLIENT_LEASE_FILE\" || exit 3; exit 7"});
  EXPECT_EQ(inside.exit_code, 7) << inside.error;
  EXPECT_EQ(json::parse(inside.output)["leases"].size(), 1U);
  EXPECT_TRUE(eventually([&] { return cluster->leases() == 0; }));
}

TEST_F(PoolCommandTest, TheExitCodeComesBackAlsoWhenTheLeaseCannotBeGivenBack) {
  const auto own = Cluster::start();
  ASSERT_NE(own, nullptr);
  const auto kill_the_broker = "kill -9 " + std::to_string(own->processes().broker_pid()) + "; exit 7";
  const auto ran = own->run({"lease", "--gpus", "1", "--", "sh", "-c", kill_the_broker});
  EXPECT_EQ(ran.exit_code, 7);
  EXPECT_THAT(ran.error, HasSubstr("release lease"));
}

TEST_F(PoolCommandTest, ANoteCannotForgeRowsOfTheTable) {
  const auto held = cluster->run({"lease", "--gpus", "1", "--note", "evil\x1b[31m\nforged", "--", kCenote,
                                  "leases", "--config", cluster->processes().config_file()});
  EXPECT_EQ(held.exit_code, 0) << held.error;
  EXPECT_THAT(held.output, HasSubstr("evil?[31m?forged"));
}

TEST(Environment, OfTheUserDoesNotReachAPoolOfItsOwn) {
  ::setenv("CENOTE_BROKER_LISTEN", "127.0.0.1:1", 1);
  ::setenv("CENOTE_TLS_DIR", "/nonexistent", 1);
  const auto own = Cluster::start();
  ::unsetenv("CENOTE_BROKER_LISTEN");
  ::unsetenv("CENOTE_TLS_DIR");
  EXPECT_NE(own, nullptr);
}

TEST_F(PoolCommandTest, TopShowsAgentsDevicesAndHolders) {
  const auto held = cluster->client()->lease({.gpus = 1, .model = "T4"}, patience());
  ASSERT_TRUE(held) << held.error().message();
  const auto top = json::parse(cluster->run({"top", "--json"}).output);
  EXPECT_EQ(top["agents"].size(), 3U);
  EXPECT_EQ(top["leases"].size(), 1U);
  EXPECT_THAT(cluster->run({"top"}).output, AllOf(HasSubstr("3 agents, 4 GPUs"), HasSubstr("T4")));
  EXPECT_TRUE((*held)->release(patience()));
}

}  // namespace
}  // namespace cenote::pool::testing
