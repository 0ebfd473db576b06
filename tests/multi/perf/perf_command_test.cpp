// `cenote perf` as people use it: two hosts (here: two processes that meet at a port), or --local.
#include "tests/multi/perf/perf_command.h"

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/tcp_socket.h"

namespace cenote::perf::test {
namespace {

using nlohmann::json;
using pool::testing::run_cenote;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using Words = std::vector<std::string>;

/// What was written to a memfd, as far as a page or so.
std::string contents(const UniqueFd& file) {
  std::string text(4096, '\0');
  const auto size = ::pread(file.get(), text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

/// With patience for a busy machine, where a test does not say how much.
Words perf(const std::string& tool, const Words& more) {
  Words words{"perf", tool};
  if (std::find(more.begin(), more.end(), "--timeout") == more.end())
    words.insert(words.end(), {"--timeout", "60"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class EveryTool : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(EveryTool, MeasuresBetweenTwoProcessesHere) {
  const auto& [tool, transport] = GetParam();
  const auto result =
      run_cenote(perf(tool, {"--local", "--transport", transport, "-n", "200", "--validate", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const auto out = json::parse(result.output);
  EXPECT_EQ(out["test_info"]["test"], tool);
  EXPECT_EQ(out["test_info"]["transport"], transport);
  EXPECT_EQ(out["results"]["n_iterations"], 200);
  const auto& figure = out["results"][tool.ends_with("_lat") ? "t_avg" : "BW_average"];
  EXPECT_GT(figure.get<double>(), 0);
}

INSTANTIATE_TEST_SUITE_P(, EveryTool,
                         ::testing::Combine(::testing::Values("write_bw", "write_lat", "read_bw", "read_lat",
                                                              "send_bw", "send_lat", "atomic_lat"),
                                            ::testing::Values("shm", "tcp", "ucx")),
                         [](const auto& kind) {
                           return std::get<0>(kind.param) + "_" + std::get<1>(kind.param);
                         });

/// A client beside a server that waits; the server has its own idea of what to measure, which does not count.
struct TwoHosts {
  explicit TwoHosts(const std::string& tool, const Words& server_words, const Words& client_words) {
    Words words{"--bind", "127.0.0.1", "-p", "0"};
    words.insert(words.end(), server_words.begin(), server_words.end());
    server.emplace(perf(tool, words));
    words = {"127.0.0.1", "-p", server->port()};
    words.insert(words.end(), client_words.begin(), client_words.end());
    client.emplace(perf(tool, words));
  }
  std::optional<Running> server, client;
};

std::string last_row(const std::string& table) {
  const auto end = table.find("\n---", table.find("#bytes"));
  const auto begin = table.rfind('\n', end - 1);
  return table.substr(begin + 1, end - begin - 1);
}

TEST(TwoHosts, MeasureAsThePerftestToolsDoAndBothShowIt) {
  TwoHosts hosts("write_bw", {"--transport", "tcp"}, {"-s", "4096", "-n", "300"});
  EXPECT_EQ(hosts.client->wait(), 0) << hosts.client->error();
  EXPECT_EQ(hosts.server->wait(), 0) << hosts.server->error();
  EXPECT_THAT(hosts.client->output(),
              AllOf(HasSubstr("BW average[MiB/sec]"), HasSubstr("127.0.0.1:"), HasSubstr("tcp")));
  EXPECT_THAT(last_row(hosts.client->output()), StartsWith(" 4096       300"));
  EXPECT_EQ(last_row(hosts.client->output()), last_row(hosts.server->output()));
}

TEST(TwoHosts, TheFabricChoosesAndTheReasonIsShown) {
  TwoHosts hosts("read_lat", {}, {"-n", "10"});
  EXPECT_EQ(hosts.client->wait(), 0) << hosts.client->error();
  EXPECT_EQ(hosts.server->wait(), 0) << hosts.server->error();
  EXPECT_THAT(hosts.client->output(), HasSubstr("shm: same boot id"));
}

TEST(TwoHosts, AStrangerAtThePortDoesNotEndTheWait) {
  Running server(perf("write_lat", {"--bind", "127.0.0.1", "-p", "0"}));
  const auto port = server.port();
  {
    const SocketAddress address{"127.0.0.1", static_cast<std::uint16_t>(std::stoi(port))};
    auto socket = start_connecting(address);
    ASSERT_TRUE(socket);
    const std::string words = "GET / HTTP/1.1\r\n\r\n";
    ASSERT_TRUE(eventually([&] {
      return ::send(socket->get(), words.data(), words.size(), MSG_NOSIGNAL) ==
             static_cast<ssize_t>(words.size());
    }));
    EXPECT_TRUE(server.says("still waiting")) << server.error();
  }
  EXPECT_EQ(run_cenote(perf("write_lat", {"127.0.0.1", "-p", port, "-n", "10"})).exit_code, 0);
  EXPECT_EQ(server.wait(), 0);
}

TEST(TwoHosts, DifferentToolsEndBothWithBothNames) {
  Running server(perf("write_bw", {"--bind", "127.0.0.1", "-p", "0"}));
  const auto client = run_cenote(perf("read_bw", {"127.0.0.1", "-p", server.port()}));
  EXPECT_EQ(client.exit_code, 1);
  EXPECT_EQ(server.wait(), 1);
  for (const auto& said : {client.error, server.error()})
    EXPECT_THAT(said, AllOf(HasSubstr("read_bw"), HasSubstr("write_bw")));
}

class Death : public ::testing::TestWithParam<std::string> {};

TEST_P(Death, OfThePeerIsAnErrorThatNamesIt) {
  for (const bool of_client : {false, true}) {
    TwoHosts hosts("write_bw", {"--transport", GetParam()}, {"-D", "600"});
    ASSERT_TRUE(hosts.client->says("#bytes")) << hosts.client->error();
    auto& victim = of_client ? *hosts.client : *hosts.server;
    auto& other = of_client ? *hosts.server : *hosts.client;
    victim.signal(SIGKILL);
    EXPECT_EQ(other.wait(), 1);
    EXPECT_THAT(other.error(), AllOf(HasSubstr("cenote perf write_bw: "), HasSubstr("with 127.0.0.1:")));
  }
}

TEST_P(Death, AStoppedPeerIsOneThatSaysNothing) {
  TwoHosts hosts("write_bw", {"--transport", GetParam()}, {"-D", "600", "--timeout", "6"});
  ASSERT_TRUE(hosts.client->says("#bytes")) << hosts.client->error();
  hosts.server->signal(SIGSTOP);
  EXPECT_EQ(hosts.client->wait(), 1);
  EXPECT_THAT(hosts.client->error(), AllOf(HasSubstr("said nothing for 6 s"), HasSubstr("127.0.0.1:")));
}

INSTANTIATE_TEST_SUITE_P(, Death, ::testing::Values("shm", "tcp"),
                         [](const auto& kind) { return kind.param; });

TEST(Local, CtrlCLeavesNothingBehind) {
  Running run(perf("write_bw", {"--local", "-D", "600"}));
  ASSERT_TRUE(run.says("#bytes")) << run.error();
  const auto children = pool::testing::children_of(run.pid());
  ASSERT_EQ(children.size(), 1U);
  run.signal(SIGINT);
  EXPECT_EQ(run.wait(), 130);
  EXPECT_THAT(run.error(), HasSubstr("interrupted by SIGINT"));
  EXPECT_TRUE(eventually([&] { return !pool::cli::is_running(children.front()); }));
}

TEST(Local, TheOtherEndDiesWithTheOneThatStartedIt) {
  Running run(perf("write_bw", {"--local", "-D", "600"}));
  ASSERT_TRUE(run.says("#bytes")) << run.error();
  const auto children = pool::testing::children_of(run.pid());
  ASSERT_EQ(children.size(), 1U);
  run.signal(SIGKILL);
  EXPECT_EQ(run.wait(), 128 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return !pool::cli::is_running(children.front()); }));
}

TEST(Local, AnotherEndThatIsKilledIsNamedWithItsSignal) {
  Running run(perf("write_bw", {"--local", "-D", "600"}));
  ASSERT_TRUE(run.says("#bytes")) << run.error();
  const auto children = pool::testing::children_of(run.pid());
  ASSERT_EQ(children.size(), 1U);
  ::kill(children.front(), SIGKILL);
  EXPECT_EQ(run.wait(), 1);
  EXPECT_THAT(run.error(),
              AllOf(HasSubstr("process " + std::to_string(children.front())), HasSubstr("SIGKILL")));
}

TEST(Local, RunsUntilCtrlCAndThatIsItsGoodEnd) {
  Running run(perf("write_lat", {"--local", "-D", "0.2", "--run_infinitely"}));
  const auto rows = [&] {
    const auto text = run.output();
    const auto table = text.find("#bytes");
    return table == std::string::npos
               ? 0
               : std::count(text.begin() + static_cast<std::ptrdiff_t>(table), text.end(), '\n');
  };
  ASSERT_TRUE(eventually([&] { return rows() > 3; })) << run.error();
  run.signal(SIGINT);
  EXPECT_EQ(run.wait(), 0) << run.error();
}

TEST(Local, ARunThatTakesLongSaysHowFarItIs) {
  const auto result = run_cenote(perf("read_lat", {"--local", "-D", "3"}));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.error, HasSubstr("2 bytes: 2 of 3 s, "));
  EXPECT_EQ(run_cenote(perf("read_lat", {"--local", "-n", "10"})).error, "");
}

TEST(Local, ASweepIsATableAFileAndAPicture) {
  const auto folder = TemporaryFolder::create("perf-command");
  ASSERT_TRUE(folder);
  const auto plot = folder->file("sweep.svg"), figures = folder->file("sweep.json");
  const auto result =
      run_cenote(perf("send_bw", {"--local", "-a", "-n", "50", "--plot", plot, "--out_json_file", figures,
                                  "--report_gbits", "--transport", "shm"}));
  ASSERT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("Gb/sec"));
  const auto out = json::parse(*read_file(figures, 1 << 20));
  EXPECT_EQ(out["results"].size(), 23U);  // 2 to 8 MiB
  EXPECT_EQ(out["results"].back()["MsgSize"], 8 << 20);
  EXPECT_THAT(*read_file(plot, 1 << 20),
              AllOf(StartsWith("<?xml"), HasSubstr("cenote perf send_bw over shm")));
}

TEST(Flags, ThatAreWrongSayWhichAndWhy) {
  const struct {
    Words words;
    std::string about, why;
  } cases[] = {
      {{"perf"}, "command", "cenote perf --help"},
      {{"perf", "write"}, "write", "cenote perf --help"},
      {{"perf", "write_bw", "--local", "-s", "0"}, "--size", "more than 0"},
      {{"perf", "write_bw", "--local", "-s", "lots"}, "--size", "lots"},
      {{"perf", "write_bw", "--local", "-s", "2GiB"}, "--size", "1073741824"},
      {{"perf", "write_bw", "--local", "-n", "0"}, "--iters", "1"},
      {{"perf", "write_bw", "--local", "-t", "0"}, "--tx-depth", "65536"},
      {{"perf", "write_bw", "--local", "-n", "5", "-D", "5"}, "--iters", "exclude"},
      {{"perf", "write_bw", "--local", "-D", "4", "-f", "2"}, "--margin", "nothing would be counted"},
      {{"perf", "write_bw", "--local", "-x", "300"}, "--gid-index", "255"},
      {{"perf", "write_bw", "--local", "--transport", "carrier"}, "--transport", "shm"},
      {{"perf", "write_bw", "--local", "--memory", "tape"}, "--memory", "emulated"},
      {{"perf", "write_bw", "--local", "-i", "2"}, "-i", "-d mlx5_0"},
      {{"perf", "write_bw", "--local", "-R"}, "-R", "over TCP"},
      {{"perf", "write_bw", "--local", "-c", "UD"}, "failed: -c: ", "reliable"},
      {{"perf", "write_bw", "--local", "--rate_limit", "5"}, "failed: --rate_limit: ", "tc(8)"},
      {{"perf", "write_bw", "--local", "-q", "4"}, "-q", "--rails"},
      {{"perf", "write_bw", "--local", "--plot", "a.svg"}, "--plot", "--all"},
      {{"perf", "write_bw", "--local", "elsewhere"}, "--local", "elsewhere"},
      {{"perf", "write_lat", "--local", "-b"}, "-b", "write_lat"},
      {{"perf", "atomic_lat", "--local", "-s", "8"}, "-s", "atomic_lat"},
  };
  for (const auto& wrong : cases) {
    SCOPED_TRACE(::testing::PrintToString(wrong.words));
    const auto result = run_cenote(wrong.words);
    EXPECT_EQ(result.exit_code, 2) << result.error;
    EXPECT_EQ(result.output, "");
    EXPECT_THAT(result.error, AllOf(StartsWith("cenote perf"), HasSubstr(wrong.about), HasSubstr(wrong.why)));
    EXPECT_LE(std::count(result.error.begin(), result.error.end(), '\n'), 2) << result.error;
  }
}

TEST(Flags, OfHabitAreToldAndDoNotHinder) {
  const auto result = run_cenote(perf(
      "write_bw", {"--local", "-n", "10", "-F", "-Q", "1", "-I", "64", "-l", "4", "-c", "RC", "-q", "1"}));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  for (const char* flag : {"-F", "-Q", "-I", "-l"})
    EXPECT_THAT(result.error, HasSubstr(std::string(flag) + " has no effect: ")) << flag;
}

TEST(Flags, AFileThatCannotBeWrittenIsSaidBeforeAnythingIsMeasured) {
  const auto result = run_cenote(perf("write_bw", {"--local", "--out_json_file", "/no/such/folder/a.json"}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.error, HasSubstr("/no/such/folder/a.json"));
  EXPECT_EQ(result.output, "");
}

TEST(Flags, AServerWhosePortIsTakenSaysSo) {
  const Running first(perf("write_bw", {"--bind", "127.0.0.1", "-p", "0"}));
  const auto second = run_cenote(perf("write_bw", {"--bind", "127.0.0.1", "-p", first.port()}));
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.error, HasSubstr("127.0.0.1:" + first.port()));
}

TEST(Flags, AreCompletedByTheShell) {
  const auto folder = TemporaryFolder::create("perf-command");
  ASSERT_TRUE(folder);
  const auto script = folder->file("complete.sh");
  std::ofstream(script) << run_cenote({"completion", "bash"}).output << R"(
complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _cenote; echo "${COMPREPLY[*]}"; }
complete_words cenote perf ''
complete_words cenote perf write_bw --bid
complete_words cenote per
complete_words cenote lease --gp
)";
  const UniqueFd output(::memfd_create("output", MFD_CLOEXEC));
  pool::cli::ChildOptions options;
  options.command = {"bash", script};
  options.output = output.get();
  auto bash = pool::cli::ChildProcess::start(options);
  ASSERT_TRUE(bash);
  ASSERT_EQ(bash->wait(patience()), 0);
  std::istringstream lines(contents(output));
  std::string tools, flag, perf_word, lease;
  std::getline(lines, tools);
  std::getline(lines, flag);
  std::getline(lines, perf_word);
  std::getline(lines, lease);
  EXPECT_THAT(tools, AllOf(HasSubstr("write_bw"), HasSubstr("atomic_lat"), Not(HasSubstr("--gpus"))));
  EXPECT_EQ(flag, "--bidirectional");
  EXPECT_EQ(perf_word, "perf");
  EXPECT_EQ(lease, "--gpus");
}

TEST(Signals, AHangUpThatNohupIgnoresEndsNothing) {
  pool::cli::ChildOptions options;
  options.command = {"bash", "-c",
                     "trap '' HUP; exec \"$0\" perf write_bw --local --transport shm -D 2 -f 0.5",
                     pool::testing::kCenote};
  const UniqueFd said(::memfd_create("said", MFD_CLOEXEC));
  options.output = said.get();
  auto run = pool::cli::ChildProcess::start(options);
  ASSERT_TRUE(run);
  const auto text = [&] { return contents(said); };
  ASSERT_TRUE(pool::testing::eventually([&] { return text().find("#bytes") != std::string::npos; }));
  ::kill(run->pid(), SIGHUP);
  const auto status = run->wait(patience());
  ASSERT_TRUE(status);
  EXPECT_EQ(pool::cli::ChildProcess::exit_code(*status), 0) << text();
}

// What the program opens would have the number of what was closed, and the table would be written into it.
TEST(Output, ThatTheCallerHasClosedIsAnErrorAndNotSomethingElse) {
  const UniqueFd said(::memfd_create("said", MFD_CLOEXEC));
  pool::cli::ChildOptions options;
  options.command = {"bash", "-c", "exec \"$0\" perf write_bw --local --transport shm -n 10 >&-",
                     pool::testing::kCenote};
  options.error = said.get();
  auto closed = pool::cli::ChildProcess::start(options);
  ASSERT_TRUE(closed);
  const auto status = closed->wait(patience());
  ASSERT_TRUE(status);
  EXPECT_EQ(pool::cli::ChildProcess::exit_code(*status), 1);
  EXPECT_THAT(contents(said), HasSubstr("write to standard output failed: Bad file descriptor"));
}

}  // namespace
}  // namespace cenote::perf::test
