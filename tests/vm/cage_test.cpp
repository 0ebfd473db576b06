// The cage's cgroups, on a kernel that has version 2 to itself.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

#include "pool/agent/cages.h"
#include "runtime/process.h"
#include "runtime/spawn.h"
#include "runtime/unique_fd.h"
#include "tests/test_paths.h"
#include "tests/vm/environment.h"

namespace cenote::test::vm {
namespace {

namespace fs = std::filesystem;
using namespace pool::agent;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class CageGroups : public VmTest {
 protected:
  void SetUp() override {
    VmTest::SetUp();
    if (IsSkipped()) return;
    folder.emplace(TemporaryFolder::create("cgroup").value());
    ASSERT_EQ(::mount("cgroup2", folder->path().c_str(), "cgroup2", 0, nullptr), 0);
    delegated = folder->path() + "/delegated";
    // As systemd delegates: controllers are there, and the group is empty but for the agent.
    std::ofstream(folder->path() + "/cgroup.subtree_control") << "+memory +pids";
    ASSERT_EQ(::mkdir(delegated.c_str(), 0755), 0);
    std::ofstream(delegated + "/cgroup.procs") << "0";
    CageOptions options;
    options.users = "";
    options.cgroup = delegated;
    options.memory = 64 << 20;
    options.threads = 20;
    auto made = plan_cage(options);
    ASSERT_TRUE(made) << made.error().message();
    plan = std::move(*made);
  }
  void TearDown() override {
    if (!folder) return;
    std::ofstream(folder->path() + "/cgroup.procs") << "0";
    for (const auto& group : {delegated + "/agent", delegated}) ::rmdir(group.c_str());
    EXPECT_FALSE(fs::exists(delegated)) << "a cgroup stayed";
    EXPECT_EQ(::umount(folder->path().c_str()), 0);
  }
  /// The process's exit status; `told`: what it printed.
  int attempt(const std::string& cgroup, const std::string& what, std::string& told) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd reading(ends[0]);
    UniqueFd writing(ends[1]);
    const auto pid = spawn({.program = CENOTE_BINARY_DIR "/tests/cage_process",
                            .words = {"cage_process", "0", "filtered", cgroup, "0", what},
                            .output = writing.get()});
    EXPECT_TRUE(pid);
    writing.reset();
    char buffer[256];
    for (ssize_t got = 0; (got = ::read(reading.get(), buffer, sizeof buffer)) > 0;)
      told.append(buffer, static_cast<std::size_t>(got));
    int status = 0;
    ::waitpid(*pid, &status, 0);
    return status;
  }

  std::optional<TemporaryFolder> folder;
  std::string delegated;
  CagePlan plan;
};

TEST_F(CageGroups, HoldAWorkerToItsMemoryAndItsThreads) {
  auto cages = Cages::create(std::move(plan));
  for (const auto& rung : cages.rungs()) {
    const bool wanted = rung.name == "memory" || rung.name == "threads";
    EXPECT_TRUE(rung.taken || !wanted) << rung.reason;
  }
  EXPECT_EQ(text_of(delegated + "/cgroup.procs"), "") << "the agent has moved below";
  const auto held = cages.make({});
  ASSERT_TRUE(held) << held.error().message();
  const auto& group = held->cage.cgroup;
  EXPECT_EQ(text_of(group + "/memory.max"), std::to_string(64 << 20) + "\n");
  EXPECT_EQ(text_of(group + "/pids.max"), "20\n");

  std::string told;
  EXPECT_EQ(attempt(group, "nothing", told), 0);
  EXPECT_EQ(told, "done\n");
  told.clear();
  EXPECT_EQ(attempt(group, "many threads", told), 0);
  EXPECT_EQ(told, "EAGAIN\n");
  told.clear();
  const int status = attempt(group, "much memory", told);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << told;
}

TEST_F(CageGroups, GoWithTheirWorkersAndThoseOfADeadAgentWithTheNextOne) {
  std::string left;
  {
    auto cages = Cages::create(plan);
    auto held = cages.make({});
    ASSERT_TRUE(held) << held.error().message();
    left = held->cage.cgroup;
    EXPECT_TRUE(fs::exists(left));
  }
  EXPECT_FALSE(fs::exists(left));

  // An agent that dies: a process with a number of its own, which leaves a group and, in it, somebody.
  const auto stale = delegated + "/cenote-999999-1";
  ASSERT_EQ(::mkdir(stale.c_str(), 0755), 0);
  const auto sleeper = spawn({.program = "/bin/sleep", .words = {"sleep", "1000"}});
  ASSERT_TRUE(sleeper);
  std::ofstream(stale + "/cgroup.procs") << *sleeper;
  std::thread reaper([&] { ::waitpid(*sleeper, nullptr, 0); });
  const auto next = Cages::create(plan);
  reaper.join();
  EXPECT_FALSE(fs::exists(stale));
}

TEST_F(CageGroups, ACrowdedOneIsLeftAsItIs) {
  const auto other = spawn({.program = "/bin/sleep", .words = {"sleep", "1000"}});
  ASSERT_TRUE(other);
  std::ofstream(delegated + "/cgroup.procs") << *other;
  CageOptions options;
  options.cgroup = delegated;
  const auto made = plan_cage(options);
  ASSERT_TRUE(made);
  for (const auto& rung : made->rungs) {
    if (rung.name != "memory") continue;
    EXPECT_FALSE(rung.taken);
    EXPECT_THAT(rung.reason, ::testing::HasSubstr("1 other process is in"));
  }
  ::kill(*other, SIGKILL);
  ::waitpid(*other, nullptr, 0);
}

}  // namespace
}  // namespace cenote::test::vm
