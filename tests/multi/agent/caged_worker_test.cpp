// The workers of a real pool, in their cages, as an agent of root and of an ordinary user has them: what the
// kernel says of their processes, while they work over shared memory with clients of another user.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "runtime/process.h"
#include "tests/multi/agent/cluster.h"
#include "tests/multi/agent/work.h"

namespace cenote::pool::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

bool is_root() { return ::geteuid() == 0; }

std::string proc(pid_t pid, const std::string& file) {
  std::ifstream in(fmt::format("/proc/{}/{}", pid, file));
  return {std::istreambuf_iterator<char>(in), {}};
}

/// "Seccomp:\t2" of /proc/PID/status: the first word after the title.
std::string field(pid_t pid, const std::string& title) {
  std::istringstream in(proc(pid, "status"));
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(title + ":")) continue;
    std::istringstream words(line.substr(title.size() + 1));
    std::string word;
    words >> word;
    return word;
  }
  return "no " + title;
}

class CagedWorker : public ::testing::Test {
 protected:
  void begin(std::vector<std::string> settings) {
    cluster = Cluster::start(std::move(settings));
    ASSERT_NE(cluster, nullptr);
    client = cluster->client();
    auto granted = client->lease({.gpus = 4, .ttl = std::chrono::minutes(10)}, patience());
    ASSERT_TRUE(granted) << granted.error().message();
    lease = std::move(*granted);
    auto opened = CountingWork::open(*lease, patience());
    ASSERT_TRUE(opened) << opened.error().message();
    work.emplace(std::move(*opened));
    ASSERT_TRUE(work->round());
    workers = cluster->workers();
    ASSERT_EQ(workers.size(), 3U);
  }
  std::string agent_log() { return cluster->processes().log_tail("a"); }

  std::unique_ptr<Cluster> cluster;
  std::unique_ptr<client::PoolClient> client;
  std::unique_ptr<client::Lease> lease;
  std::optional<CountingWork> work;
  std::vector<pid_t> workers;
};

TEST_F(CagedWorker, HasItsFilterItsUserNoPrivilegesAndNoCore) {
  // Over shared memory alone: what a client and a worker of different users have to do with each other.
  ASSERT_NO_FATAL_FAILURE(begin({"transports=shm"}));
  std::set<std::string> users;
  for (const auto pid : workers) {
    EXPECT_EQ(field(pid, "Seccomp"), "2");
    EXPECT_EQ(field(pid, "NoNewPrivs"), "1");
    EXPECT_THAT(proc(pid, "limits"), HasSubstr("Max core file size        0                    0 "));
    users.insert(field(pid, "Uid"));
    if (!is_root()) continue;
    EXPECT_GE(std::stoul(field(pid, "Uid")), 1900000000UL);
    EXPECT_EQ(field(pid, "Uid"), field(pid, "Gid"));
    EXPECT_EQ(field(pid, "CapEff"), "0000000000000000");
    EXPECT_EQ(field(pid, "CapPrm"), "0000000000000000");
    EXPECT_EQ(field(pid, "Groups"), "") << "no device here wants one";
  }
  EXPECT_EQ(users.size(), is_root() ? 3U : 1U);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(work->round());
}

TEST_F(CagedWorker, HasNoCredentialOfTheAgent) {
  ASSERT_NO_FATAL_FAILURE(begin({}));
  const auto keys = cluster->processes().folder() + "/tls";
  for (const auto pid : workers) {
    EXPECT_THAT(proc(pid, "environ"), Not(HasSubstr("CENOTE_")));
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", pid), error)) {
      std::error_code gone;
      const auto target = fs::read_symlink(entry.path(), gone).string();
      EXPECT_THAT(target, Not(HasSubstr(keys)));
      EXPECT_THAT(target, Not(HasSubstr("broker")));
    }
    if (!is_root()) continue;  // /proc/PID/fd of what nobody may trace is root's
    EXPECT_FALSE(error) << error.message();
    for (const auto& entry : fs::directory_iterator(keys)) {
      struct stat info {};
      ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
      if (entry.path().extension() != ".key") continue;
      EXPECT_EQ(info.st_mode & 077U, 0U) << entry.path();
      EXPECT_EQ(info.st_uid, 0U) << entry.path();
    }
  }
}

TEST_F(CagedWorker, ItsAgentSaysWhatIsInForceAndDoctorTheSame) {
  ASSERT_NO_FATAL_FAILURE(begin({}));
  std::ifstream file(cluster->processes().folder() + "/a.log");
  const std::string log{std::istreambuf_iterator<char>(file), {}};
  const auto doctor = nlohmann::json::parse(cluster->run({"doctor", "--json"}).output)["rungs"];
  int seen = 0;
  for (const auto& rung : doctor) {
    if (rung["ladder"] != "worker's cage") continue;
    ++seen;
    EXPECT_NE(rung["reason"], "");
    EXPECT_THAT(log, HasSubstr(fmt::format("cage of workers: {} {}: {}", rung["rung"].get<std::string>(),
                                           rung["usable"].get<bool>() ? "yes" : "no",
                                           rung["reason"].get<std::string>())));
  }
  EXPECT_EQ(seen, 6);
}

TEST_F(CagedWorker, GivesItsUserBackHoweverItEnds) {
  ASSERT_NO_FATAL_FAILURE(begin({"agent.cage.users=1900000000-1900000003"}));
  for (const auto pid : workers) ::kill(pid, SIGKILL);
  work.reset();
  lease.reset();
  ASSERT_TRUE(eventually([&] { return cluster->idle(); }));
  auto again = client->lease({.gpus = 4, .ttl = std::chrono::minutes(10), .wait = std::chrono::minutes(1)},
                             patience());
  ASSERT_TRUE(again) << again.error().message();
  auto opened = CountingWork::open(**again, patience());
  ASSERT_TRUE(opened) << opened.error().message();
  EXPECT_TRUE(opened->round());
}

TEST(CagedAgent, DoesNotStartWithoutWhatItIsToldToRequire) {
  auto set =
      cli::ProcessSet::create({.executable = kCenote,
                               .prefix = "cenote-test",
                               .agents = {{"a", "emulated:T4:16MiB"}},
                               .settings = {"agent.cage.require=system-calls", "agent.cage.filter=false"}});
  ASSERT_TRUE(set) << set.error().message();
  const auto started = (*set)->start(patience());
  ASSERT_FALSE(started);
  EXPECT_THAT(started.error().message(), HasSubstr("agent.cage.filter is false"));
}

/// Exit code of a command that an ordinary user runs.
int as_nobody(const std::vector<std::string>& command) {
  cli::ChildOptions options;
  options.command = {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};
  options.command.insert(options.command.end(), command.begin(), command.end());
  auto child = cli::ChildProcess::start(options);
  EXPECT_TRUE(child) << child.error().message();
  if (!child) return -1;
  const auto status = child->wait(patience());
  EXPECT_TRUE(status);
  return status ? cli::ChildProcess::exit_code(*status) : -1;
}

// All of the above once more, as a user that may not do what root may.
TEST(CagedWorkerOfAnOrdinaryUser, IsAsCagedAsItCanBe) {
  if (!is_root()) GTEST_SKIP() << "not root: the tests above were run by an ordinary user";
  if (::access("/usr/bin/setpriv", X_OK) != 0) GTEST_SKIP() << "no setpriv here (util-linux)";
  const auto self = fs::read_symlink("/proc/self/exe").string();
  if (as_nobody({"/usr/bin/test", "-r", self}) != 0) GTEST_SKIP() << "no other user may read " << self;
  const auto folder = TemporaryFolder::create("caged", "/tmp").value();  // TMPDIR may be for root alone
  ASSERT_EQ(::chown(folder.path().c_str(), 65534, 65534), 0);
  EXPECT_EQ(as_nobody({"/usr/bin/env", "--unset=GTEST_OUTPUT", "TMPDIR=" + folder.path(), self,
                       "--gtest_filter=Caged*-*OrdinaryUser*"}),
            0);
}

}  // namespace
}  // namespace cenote::pool::testing
