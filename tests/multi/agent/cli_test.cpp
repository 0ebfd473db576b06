// The command as people meet it: one clear line when something is wrong, the right exit code, JSON where it
// lists.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "pool/cli/output.h"
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

TEST_F(CommandTest, TheVersionIsAlsoAnOption) {
  const auto version = run_cenote({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.output, run_cenote({"version"}).output);
}

TEST_F(CommandTest, WhatIsNoCommandAndNoOptionIsNamed) {
  const auto expect = [](const std::vector<std::string>& words, const std::string& cause) {
    const auto result = run_cenote(words);
    EXPECT_EQ(result.exit_code, 2) << result.error;
    EXPECT_EQ(result.output, "");
    EXPECT_EQ(result.error, "cenote: read command line failed: " + cause + "\n  see: cenote --help\n");
  };
  expect({"nope"}, "there is no command nope");
  expect({"--nope"}, "there is no option --nope");
  expect({}, "no command was given");
}

// A wrong value is wrong usage wherever it stands: said before anything is done, with what would be right.
TEST_F(CommandTest, WrongValuesEndWithTwoAndSayWhatIsAllowed) {
  const struct {
    std::vector<std::string> words;
    std::string about, allowed;
  } cases[] = {
      {{"lease", "--gpus", "none"}, "--gpus", "none"},
      {{"lease", "--gpus", "0"}, "--gpus", "16384"},
      {{"lease", "--gpus", "16385"}, "--gpus", "16384"},
      {{"lease", "--mem", "lots"}, "--mem", "40GiB"},
      {{"lease", "--mem", "0"}, "--mem", "more than 0"},
      {{"lease", "--ttl", "soon"}, "--ttl", "30s"},
      {{"lease", "--ttl", "1ms"}, "--ttl", "the shortest is 1s"},
      {{"lease", "--timeout", "nan"}, "--timeout", "number of seconds"},
      {{"lease", "--timeout", "-1"}, "--timeout", "more than 0"},
      {{"leases", "--timeout", "nan"}, "--timeout", "number of seconds"},
      {{"leases", "--timeout", "0"}, "--timeout", "more than 0"},
      {{"top", "--timeout", "inf"}, "--timeout", "at most"},
      {{"top", "--interval", "nan"}, "--interval", "number of seconds"},
      {{"demo", "--transports", "foo"}, "--transports", "shm"},
      {{"demo", "--epochs", "0"}, "--epochs", "10000"},
      {{"demo", "--kill", "everyone"}, "--kill", "broker"},
      {{"demo", "--pool", "--kill", "broker"}, "--kill", "--pool"},
      {{"demo", "--pool", "--transports", "tcp"}, "--transports", "--pool"},
      {{"demo", "--pool", "--keep"}, "--keep", "--pool"},
      {{"demo", "--set", "broker.address=head:1"}, "broker.address", "--pool"},
      {{"broker", "--set", "broker.listen=127.0.0.1"}, "broker.listen", "host:port"},
      {{"broker", "--set", "broker.listen=127.0.0.1:high"}, "broker.listen", "host:port"},
      {{"agent", "--set", "agent.listen=:0"}, "agent.listen", "host:port"},
      {{"agent", "--set", "agent.devices=nonsense"}, "agent.devices", "emulated:MODEL:SIZE"},
      {{"agent", "--set", "agent.devices=emulated:H200:big"}, "agent.devices", "emulated:MODEL:SIZE"},
      {{"version", "--set", "foo=1"}, "foo", "not a setting"},
      {{"version", "--set", "foo"}, "foo", "="},
      {{"config", "--log-level", "loud"}, "log.level", "debug"},
      {{"completion", "fish"}, "fish", "bash"},
  };
  for (const auto& wrong : cases) {
    const auto result = run_cenote(wrong.words);
    SCOPED_TRACE(::testing::PrintToString(wrong.words));
    const auto command = wrong.words.front();
    expect_one_clear_line(result, command, wrong.about, 2);
    EXPECT_THAT(result.error, HasSubstr(wrong.allowed));
    EXPECT_EQ(result.output, "");
  }
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
  expect_one_clear_line(run_cenote({"--set", "broker.grace=soon", "config"}), "config", "broker.grace", 2);
  expect_one_clear_line(run_cenote({"--set", "no.such=1", "config"}), "config", "no.such", 2);
}

TEST_F(CommandTest, ABadConfigFileIsNamedWithItsLine) {
  const auto path = folder->file("cenote.toml");
  std::ofstream(path) << "[broker]\ngrace = \"soon\"\n";
  expect_one_clear_line(run_cenote({"--config", path, "config"}), "config", path, 2);
  expect_one_clear_line(run_cenote({"--config", folder->file("missing.toml"), "config"}), "config",
                        "missing.toml", 2);
}

TEST_F(CommandTest, AnUnreadableDataFileIsNamed) {
  expect_one_clear_line(run_cenote({"demo", "--data", folder->file("missing.csv")}), "demo", "missing.csv");
}

TEST_F(CommandTest, AWrongDataFileIsNamedWithItsRowAndColumn) {
  const auto path = folder->file("bad.csv");
  const auto expect = [&](const std::string& text, const std::string& cause) {
    std::ofstream(path) << text;
    expect_one_clear_line(run_cenote({"demo", "--data", path}), "demo", path + " failed: " + cause);
  };
  std::string good;
  for (int column = 0; column < 64; ++column) good += "16,";
  good += "9\n";
  expect("1,2,3\n", "row 1, 3 of 65 columns");
  expect(good + "\n" + good + "1,17,3\n", "row 4, column 2: 17 is not in 0..16");
  expect(good + "1,x,3\n", "row 2, column 2: 'x' is not a whole number");
  expect(good + "1,1.5,3\n", "row 2, column 2: '1.5' is not a whole number");
  expect("a\x1b[31m,2\n", "row 1, column 1: 'a?[31m' is not a whole number");
  expect(good.substr(0, good.size() - 2) + "10\n", "row 1, column 65: 10 is not in 0..9");
  expect(good.substr(0, good.size() - 1) + ",1\n", "row 1, more than 65 columns");
  expect(good, "it has 1 rows, the demo needs 100 at least");
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

// gRPC reports on its own, and in its own words; neither reaches the user.
TEST_F(CommandTest, ACertificateOfAnotherPoolIsOneLineInWords) {
  const auto ours = folder->file("ours"), theirs = folder->file("theirs");
  for (const auto& dir : {ours, theirs})
    ASSERT_EQ(run_cenote({"--set", "tls.dir=" + dir, "broker", "--init-tls"}).exit_code, 0);
  cli::ChildOptions options;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd ready(ends[0]);
  UniqueFd theirs_end(ends[1]);
  options.command = {kCenote,
                     "--set",
                     "tls.dir=" + theirs,
                     "--set",
                     "broker.listen=127.0.0.1:0",
                     "--set",
                     "broker.state_dir=" + folder->file("state"),
                     "--set",
                     "log.level=error",
                     "broker",
                     "--ready-fd",
                     "3"};
  options.pass = theirs_end.get();
  auto broker = cli::ChildProcess::start(options);
  ASSERT_TRUE(broker);
  theirs_end.reset();
  char text[64] = {};
  ASSERT_GT(::read(ready.get(), text, sizeof text - 1), 0);
  const std::string endpoint(text, std::string(text).find('\n'));
  const auto result = run_cenote(
      {"--set", "tls.dir=" + ours, "--set", "broker.address=" + endpoint, "leases", "--timeout", "2"});
  expect_one_clear_line(result, "leases", endpoint);
  for (const auto* raw : {"UNKNOWN", "SSL_ERROR", "last error", "handshaker", "E1", "E0", ".cc:"})
    EXPECT_THAT(result.error, ::testing::Not(HasSubstr(raw)));
  EXPECT_THAT(result.error, HasSubstr("\n  ")) << "and what to do";
}

TEST_F(CommandTest, ATextThatIsNoLeaseFileIsOneLineInWords) {
  for (const auto* text : {"{\"cenote_lease\": 1", "[]", "", "{\"cenote_lease\": \"x\"}"}) {
    const auto path = folder->file("lease.json");
    std::ofstream(path) << text;
    const auto result = run_cenote({"release", path});
    expect_one_clear_line(result, "release", "lease.json");
    EXPECT_THAT(result.error, ::testing::Not(HasSubstr("json.exception")));
  }
}

TEST_F(CommandTest, DoctorNamesEveryRungWithItsReason) {
  const auto rungs = json::parse(run_cenote({"doctor", "--json"}).output)["rungs"];
  std::set<std::string> seen;
  for (const auto& rung : rungs) {
    seen.insert(rung["rung"]);
    EXPECT_NE(rung["reason"], "") << rung;
  }
  for (const auto* name :
       {"libcuda", "emulated", "dmabuf", "peermem", "visibility", "shm", "tcp", "locked memory", "broker"}) {
    EXPECT_TRUE(seen.contains(name)) << name;
  }
}

TEST_F(CommandTest, DoctorsPreflightSaysWhatWasSeenAndWhatToDo) {
  const auto plain = run_cenote({"doctor"});
  EXPECT_EQ(plain.exit_code, 0);
  EXPECT_THAT(plain.output,
              AllOf(HasSubstr("RDMA preflight"), HasSubstr("locked memory"), HasSubstr(" problems, ")));
  const auto whole = json::parse(run_cenote({"doctor", "--json"}).output)["preflight"];
  ASSERT_FALSE(whole.empty());
  bool problem = false;
  for (const auto& finding : whole) {
    problem = problem || finding["verdict"] == "problem";
    EXPECT_NE(finding["seen"], "") << finding;
    if (finding["verdict"] == "problem" || finding["verdict"] == "warning") {
      EXPECT_NE(finding["remedy"], "") << finding;
    }
  }
  EXPECT_EQ(run_cenote({"doctor", "--strict"}).exit_code, problem ? 1 : 0);
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
                        "agent", "agent.devices", 2);
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
  const auto id = listed[0]["id"].get<std::string>();
  const auto released = cluster->run({"release", folder.file("lease.json")});
  EXPECT_EQ(released.exit_code, 0) << released.error;
  EXPECT_EQ(released.output, "released lease " + id + "\n");
  EXPECT_TRUE(eventually([&] { return cluster->leases() == 0; }));
  const auto again = cluster->run({"release", folder.file("lease.json")});
  EXPECT_EQ(again.exit_code, 0) << again.error;
  EXPECT_EQ(again.output, "lease " + id + " was over already: released before, or expired\n");
}

TEST_F(PoolCommandTest, ALeaseFileThatOthersCanReadIsWarnedOf) {
  const auto detached = cluster->run({"lease", "--gpus", "1", "--detach"});
  ASSERT_EQ(detached.exit_code, 0) << detached.error;
  TemporaryFolder folder = std::move(*TemporaryFolder::create("cenote-test"));
  const auto path = folder.file("lease.json");
  std::ofstream(path) << detached.output;
  namespace fs = std::filesystem;
  fs::permissions(path, fs::perms(0600));
  EXPECT_EQ(cluster->run({"release", path}).error, "");
  fs::permissions(path, fs::perms(0644));
  EXPECT_THAT(cluster->run({"release", path}).error,
              AllOf(HasSubstr("warning: " + path + " has mode 0644"), HasSubstr("chmod 600")));
  ASSERT_TRUE(eventually([&] { return cluster->idle(); }));
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

TEST(Output, CountsAndTimesReadAsTheyAreSaid) {
  EXPECT_EQ(cli::count_text(0, "lease"), "0 leases");
  EXPECT_EQ(cli::count_text(1, "lease"), "1 lease");
  EXPECT_EQ(cli::when_text(1'000, 1'000), "now");
  EXPECT_EQ(cli::when_text(588, 1'000), "412 ms ago");
  EXPECT_EQ(cli::when_text(1'412, 1'000), "in 412 ms");
  EXPECT_EQ(cli::when_text(60'000, 1'000), "in 59 s");
  EXPECT_EQ(cli::when_text(0, 600'000), "10 min ago");
}

// The broker's log does not hold when an agent was last heard.
TEST(Output, AnAgentThatThisBrokerNeverHeardHasNoAge) {
  client::PoolState state;
  state.now_unix_ms = 1'796'000'000'000;
  client::AgentState agent;
  agent.name = "node1";
  agent.devices.push_back({.uuid = "u", .model = "H200", .agent = "node1", .lease_id = {}});
  state.agents.push_back(agent);
  EXPECT_THAT(cli::top_text(state), HasSubstr("not heard since the broker started"));
  state.agents.front().last_heartbeat_unix_ms = state.now_unix_ms - 5'000;
  EXPECT_THAT(cli::top_text(state),
              AllOf(HasSubstr("1 agent, 1 GPU, 0 leased; 0 leases"), HasSubstr("silent for 5 s")));
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

// As Ctrl-C during a start: whatever it waits for, it is over.
TEST_F(CommandTest, AStartThatIsCancelledEndsTheChildThatDoesNotListen) {
  const auto program = folder->file("cenote");
  std::ofstream(program) << "#!/bin/sh\n[ \"$1\" = guard ] && exec " << kCenote
                         << " \"$@\"\nexec sleep 300\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  cli::ProcessSetOptions options;
  options.executable = program;
  options.prefix = "cenote-test";
  auto set = cli::ProcessSet::create(std::move(options));
  ASSERT_TRUE(set) << set.error().message();
  const auto before = children_of(::getpid()).size();  // the guardian, at least
  CancelFlag cancel;
  std::thread interrupts([&] {
    EXPECT_TRUE(eventually([&] { return children_of(::getpid()).size() == before + 1; })) << "the broker";
    cancel.raise();
  });
  const auto started = (*set)->start(patience(), &cancel);
  interrupts.join();
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code, ErrorCode::cancelled) << started.error().message();
  EXPECT_EQ(children_of(::getpid()).size(), before) << "it was left behind";
}

TEST_F(CommandTest, TheHelpOfTheDemoSaysWhoCanBeKilled) {
  const auto help = run_cenote({"demo", "--help"}).output;
  EXPECT_THAT(help, HasSubstr("--kill WHO"));
  EXPECT_THAT(help, ::testing::Not(HasSubstr("ENUM")));
}

}  // namespace
}  // namespace cenote::pool::testing
