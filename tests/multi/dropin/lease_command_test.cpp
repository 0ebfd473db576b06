// `cenote lease -- COMMAND`: what the command and whoever watches it are told when the holder of the lease,
// or an agent of it, dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "pool/cli/agent_watch.h"
#include "runtime/process.h"
#include "tests/multi/agent/cluster.h"

namespace cenote::pool::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

client::LeaseInfo lease_on(const std::vector<std::string>& agents) {
  client::LeaseInfo lease;
  lease.id = "7f3a";
  for (const auto& agent : agents) lease.devices.push_back({"uuid", "A100", 1, agent, "127.0.0.1:1", 1});
  return lease;
}

client::PoolState pool_of(bool a_alive, bool b_alive) {
  client::PoolState pool;
  pool.now_unix_ms = 10'000;
  pool.agents = {{"a", "", a_alive, 9'900, {}}, {"b", "", b_alive, 7'500, {}}};
  return pool;
}

TEST(SilentDevices, AreNamedOnceWithTheirAgent) {
  std::set<std::string> told;
  EXPECT_THAT(cli::silent_devices(lease_on({"a", "b"}), pool_of(true, true), told), IsEmpty());
  EXPECT_THAT(cli::silent_devices(lease_on({"a", "b"}), pool_of(true, false), told),
              ElementsAre(AllOf(HasSubstr("lease 7f3a gpu 1 (A100 on b)"), HasSubstr("2.5 s"))));
  EXPECT_THAT(cli::silent_devices(lease_on({"a", "b"}), pool_of(true, false), told), IsEmpty());
}

TEST(SilentDevices, EveryDeviceOfTheAgentAndNoOther) {
  std::set<std::string> told;
  EXPECT_EQ(cli::silent_devices(lease_on({"b", "b", "a"}), pool_of(true, false), told).size(), 2U);
  EXPECT_THAT(cli::silent_devices(lease_on({"a"}), pool_of(true, false), told), IsEmpty());
}

TEST(SilentDevices, AreNamedAgainWhenTheAgentWasBackInBetween) {
  std::set<std::string> told;
  EXPECT_EQ(cli::silent_devices(lease_on({"b"}), pool_of(true, false), told).size(), 1U);
  EXPECT_THAT(cli::silent_devices(lease_on({"b"}), pool_of(true, true), told), IsEmpty());
  EXPECT_EQ(cli::silent_devices(lease_on({"b"}), pool_of(true, false), told).size(), 1U);
}

TEST(SilentDevices, AnAgentThatTheBrokerDoesNotKnowIsSilent) {
  std::set<std::string> told;
  EXPECT_THAT(cli::silent_devices(lease_on({"c"}), pool_of(true, true), told),
              ElementsAre(HasSubstr("does not know")));
}

// `cenote lease ... -- sh -c SCRIPT` in the background; the script's $FILE takes what it has to say.
class LeaseCommand : public ::testing::Test {
 protected:
  void SetUp() override { begin({}); }
  void begin(std::vector<std::string> settings) {
    cluster = Cluster::start(std::move(settings));
    ASSERT_NE(cluster, nullptr);
    auto made = TemporaryFolder::create("cenote-test");
    ASSERT_TRUE(made);
    folder.emplace(std::move(*made));
    error.reset(::memfd_create("error", MFD_CLOEXEC));
  }
  void start(const std::string& gpus, const std::string& script) {
    cli::ChildOptions options;
    options.command = {kCenote};
    for (const auto& option : cluster->options()) options.command.push_back(option);
    for (const auto& word : {std::string("lease"), std::string("--gpus"), gpus, std::string("--"),
                             std::string("sh"), std::string("-c"), script})
      options.command.push_back(word);
    options.environment["FILE"] = folder->file("said");
    options.error = error.get();
    auto started = cli::ChildProcess::start(options);
    ASSERT_TRUE(started) << started.error().message();
    holder = std::move(*started);
  }
  /// The command's process, once it has written its number.
  UniqueFd command() {
    pid_t pid = 0;
    EXPECT_TRUE(eventually([&] {
      std::ifstream file(folder->file("said"));
      std::string line;
      if (!std::getline(file, line) || file.eof()) return false;
      pid = std::stoi(line);
      return true;
    }));
    return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  }
  static bool ends(const UniqueFd& process) {
    pollfd ended{process.get(), POLLIN, 0};
    return process && ::poll(&ended, 1, patience().poll_ms()) > 0;
  }
  [[nodiscard]] std::string said() const {
    std::string text(static_cast<std::size_t>(::lseek(error.get(), 0, SEEK_END)), '\0');
    text.resize(
        static_cast<std::size_t>(std::max<ssize_t>(0, ::pread(error.get(), text.data(), text.size(), 0))));
    return text;
  }
  static std::size_t guards_of(pid_t holder) {
    std::size_t found = 0;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
      std::ifstream file(entry.path() / "cmdline", std::ios::binary);
      std::ostringstream words;
      words << file.rdbuf();  // a process that ends in the meantime has none: no exception
      const auto wanted = std::string("--holder") + '\0' + std::to_string(holder) + '\0';
      if (words.str().find(wanted) != std::string::npos) ++found;
    }
    return found;
  }

  std::unique_ptr<Cluster> cluster;
  std::optional<TemporaryFolder> folder;
  UniqueFd error;
  cli::ChildProcess holder;
};

TEST_F(LeaseCommand, IsEndedWithAReasonWhenItsHolderIsKilled) {
  start("1", "trap 'echo told > $FILE.end; exit' TERM; echo $$ > $FILE; while :; do sleep 0.1; done");
  const auto process = command();
  ASSERT_TRUE(eventually([&] { return guards_of(holder.pid()) == 1; }));
  const auto pid = holder.pid();
  holder.end(Clock::duration::zero());
  EXPECT_TRUE(ends(process));
  EXPECT_TRUE(std::filesystem::exists(folder->file("said.end")))
      << "SIGTERM comes first: it may save its work";
  EXPECT_THAT(said(),
              AllOf(HasSubstr("cenote lease: "), HasSubstr("(pid " + std::to_string(pid) + ") was killed")));
  EXPECT_TRUE(eventually([&] { return guards_of(pid) == 0; }));
}

TEST_F(LeaseCommand, ThatDoesNotListenIsKilledAfterItsHolder) {
  start("1", "trap '' TERM; echo $$ > $FILE; while :; do sleep 0.1; done");
  const auto process = command();
  ASSERT_TRUE(eventually([&] { return guards_of(holder.pid()) == 1; }));
  holder.end(Clock::duration::zero());
  EXPECT_TRUE(ends(process));
}

TEST_F(LeaseCommand, LeavesNoGuardBehind) {
  start("1", "echo $$ > $FILE; exit 7");
  const auto pid = holder.pid();
  const auto status = holder.wait(patience());
  ASSERT_TRUE(status);
  EXPECT_EQ(cli::ChildProcess::exit_code(*status), 7);
  EXPECT_EQ(guards_of(pid), 0U);
  EXPECT_EQ(said(), "");
}

// The agents that live must not fall silent in the eyes of the broker while the machine is busy.
class LeaseCommandOfPatientBroker : public LeaseCommand {
 protected:
  void SetUp() override { begin({"broker.agent_timeout=6s", "broker.agent_dead=2m"}); }
};

TEST_F(LeaseCommandOfPatientBroker, GoesOnWhileItsHolderNamesTheDevicesOfADeadAgent) {
  start("4", "echo $$ > $FILE; while :; do sleep 0.1; done");
  const auto process = command();
  cluster->processes().kill_agent("b");
  EXPECT_TRUE(eventually([&] { return said().find("(A100 on b): the broker") != std::string::npos; }))
      << said();
  EXPECT_EQ(said().find("on a)"), std::string::npos) << "the others are well";
  holder.signal(SIGTERM);
  EXPECT_TRUE(ends(process));
  EXPECT_TRUE(holder.wait(patience()));
}

}  // namespace
}  // namespace cenote::pool::testing
