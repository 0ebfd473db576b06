// The cage: each way out of it is tried by a process in one, and every worker of a real pool is in one. What
// needs root (a user of its own) says so where there is none.
#include "pool/agent/cage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "runtime/process.h"
#include "runtime/spawn.h"
#include "runtime/unique_fd.h"
#include "tests/test_paths.h"

namespace cenote::pool::agent {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

bool is_root() { return ::geteuid() == 0; }
constexpr std::uint32_t kUser = 1900070001;  // beside the range of agents

struct Told {
  std::string text;
  int status = 0;
};

struct Entered {
  std::uint32_t user = 0;
  bool filtered = true;
  std::string cgroup{};
  std::uint64_t threads = 0;
};

Told attempt(const Entered& how, const std::string& what, const std::string& argument = {}) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  SpawnOptions options{.program = CENOTE_BINARY_DIR "/tests/cage_process",
                       .words = {"cage_process", std::to_string(how.user), how.filtered ? "filtered" : "open",
                                 how.cgroup, std::to_string(how.threads), what, argument},
                       .output = writing.get()};
  const auto pid = spawn(options);
  EXPECT_TRUE(pid) << pid.error().message();
  writing.reset();
  Told told;
  char buffer[256];
  for (ssize_t got = 0; (got = ::read(reading.get(), buffer, sizeof buffer)) > 0;)
    told.text.append(buffer, static_cast<std::size_t>(got));
  EXPECT_EQ(::waitpid(*pid, &told.status, 0), *pid);
  if (!told.text.empty() && told.text.back() == '\n') told.text.pop_back();
  return told;
}

TEST(Cage, EachWayOutIsRefused) {
  const char here = 'x';
  const auto address = fmt::format("{:x}", reinterpret_cast<std::uintptr_t>(&here));
  for (const auto* way : {"start a program", "fork", "trace its parent", "look into its parent",
                          "kill its parent", "become root", "a user namespace", "a user namespace by clone",
                          "mount", "bpf", "perf events", "keys", "user faults", "io_uring"}) {
    const auto told = attempt({}, way, address);
    EXPECT_TRUE(told.text == "EPERM" || told.text == "ENOSYS") << way << ": " << told.text;
  }
  for (const auto* way : {"a raw socket", "a crypto socket", "be traceable again", "outlive its agent",
                          "a call of tomorrow", "a user namespace by clone"})
    EXPECT_EQ(attempt({}, way).text, "ENOSYS") << way;
}

// Else the test above would hold for a process that can do nothing at all.
TEST(Cage, TheSameIsPossibleWithoutIt) {
  const char here = 'x';
  const auto address = fmt::format("{:x}", reinterpret_cast<std::uintptr_t>(&here));
  for (const auto* way : {"fork", "look into its parent", "kill its parent", "open its parent's pidfd",
                          "be traceable again", "outlive its agent"}) {
    if (std::string(way) == "look into its parent" && !is_root())
      continue;  // as the kernel's ptrace_scope says
    EXPECT_EQ(attempt({.filtered = false}, way, address).text, "done") << way;
  }
}

TEST(Cage, WhatAWorkerNeedsWorks) {
  for (const auto* need : {"a thread", "a TCP socket", "a unix socket", "open its parent's pidfd"})
    EXPECT_EQ(attempt({}, need).text, "done") << need;
  EXPECT_EQ(attempt({}, "read", "/etc/hostname").text, "done");
}

TEST(Cage, ACrashLeavesNoCore) {
  const auto told = attempt({}, "crash");
  ASSERT_TRUE(WIFSIGNALED(told.status));
  EXPECT_EQ(WTERMSIG(told.status), SIGABRT);
  EXPECT_FALSE(WCOREDUMP(told.status));
}

TEST(Cage, ItsEnvironmentIsWhatLibrariesReadAndNoSecrets) {
  EXPECT_THAT(
      caged_environment({"PATH=/bin", "CENOTE_TLS_DIR=/etc/cenote", "AWS_SECRET_ACCESS_KEY=x", "LC_ALL=C",
                         "CUDA_VISIBLE_DEVICES=0", "PATHS=no", "LD_LIBRARY_PATH=/l", "SSH_AUTH_SOCK=/s"}),
      ::testing::ElementsAre("PATH=/bin", "LC_ALL=C", "CUDA_VISIBLE_DEVICES=0", "LD_LIBRARY_PATH=/l"));
}

class OwnUser : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_root()) GTEST_SKIP() << "not root: a worker cannot have a user of its own";
  }
};

TEST_F(OwnUser, ReadsNoKeyOfTheAgent) {
  const auto folder = TemporaryFolder::create("cage").value();
  const auto key = folder.file("key.pem");
  std::ofstream(key) << "secret";
  ::chmod(folder.path().c_str(), 0755);
  ::chmod(key.c_str(), 0600);
  EXPECT_EQ(attempt({.user = kUser}, "read", key).text, "EACCES");
  EXPECT_EQ(attempt({}, "read", key).text, "done") << "root reads it, so it was the user that kept it out";
}

TEST_F(OwnUser, MayNotDoWithoutTheFilterEither) {
  for (const auto* way : {"trace its parent", "kill its parent", "become root", "mount", "a raw socket"}) {
    const auto told = attempt({.user = kUser, .filtered = false}, way);
    EXPECT_TRUE(told.text == "EPERM" || told.text == "EACCES") << way << ": " << told.text;
  }
}

TEST_F(OwnUser, HasItsThreadsCounted) {
  EXPECT_EQ(attempt({.user = kUser, .threads = 20}, "many threads").text, "EAGAIN");
  EXPECT_EQ(attempt({.user = kUser, .threads = 2000}, "many threads").text, "done");
}

TEST_F(OwnUser, DiesWithItsParentAllTheSame) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  // A shell is its parent, and is killed.
  const auto shell = spawn({.program = "/bin/sh",
                            .words = {"sh", "-c",
                                      CENOTE_BINARY_DIR "/tests/cage_process " + std::to_string(kUser) +
                                          " filtered '' 0 'wait for a signal'; true"},
                            .output = writing.get()});
  ASSERT_TRUE(shell);
  writing.reset();
  char line[16]{};
  ASSERT_GT(::read(reading.get(), line, sizeof line), 0);
  ASSERT_STREQ(line, "waiting\n");
  ::kill(*shell, SIGKILL);
  ::waitpid(*shell, nullptr, 0);
  // The end of the file comes when the last that holds the pipe is gone.
  EXPECT_EQ(::read(reading.get(), line, sizeof line), 0);
}

}  // namespace
}  // namespace cenote::pool::agent
