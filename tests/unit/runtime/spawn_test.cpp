#include "runtime/spawn.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <sstream>

#include "runtime/unique_fd.h"

namespace cenote {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Pipe {
  UniqueFd read, write;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) == 0) {
      read = UniqueFd(ends[0]);
      write = UniqueFd(ends[1]);
    }
  }
  /// Everything that arrives until the last writer is gone.
  std::string text() {
    write.reset();
    std::string all;
    char piece[4096];
    for (ssize_t got = 0; (got = ::read(read.get(), piece, sizeof piece)) > 0;)
      all.append(piece, static_cast<std::size_t>(got));
    return all;
  }
};

SpawnOptions shell(const std::string& script) {
  SpawnOptions options;
  options.program = "/bin/sh";
  options.words = {"sh", "-c", script};
  return options;
}

/// What it prints; empty and a failure if it cannot be started or ends badly.
std::string output_of(SpawnOptions options) {
  Pipe pipe;
  options.output = pipe.write.get();
  const auto pid = spawn(options);
  EXPECT_TRUE(pid) << pid.error().message();
  if (!pid) return {};
  auto text = pipe.text();
  int status = 0;
  EXPECT_EQ(::waitpid(*pid, &status, 0), *pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  return text;
}

TEST(Spawn, GivesTheWordsAndTheEnvironmentOfThisProcess) {
  ASSERT_EQ(::setenv("SPAWN_PROBE", "seen", 1), 0);
  auto options = shell("echo \"$0|$1|$SPAWN_PROBE\"");
  options.words.insert(options.words.end(), {"zero", "one two"});
  EXPECT_EQ(output_of(options), "zero|one two|seen\n");
}

TEST(Spawn, GivesTheNamedEnvironmentAndNothingElse) {
  ASSERT_EQ(::setenv("SPAWN_PROBE", "seen", 1), 0);
  auto options = shell("echo \"$GIVEN|$SPAWN_PROBE\"");
  options.environment = {"GIVEN=a=b"};
  EXPECT_EQ(output_of(options), "a=b|\n");
}

TEST(Spawn, NamesTheEnvironmentOfThisProcess) {
  ASSERT_EQ(::setenv("SPAWN_PROBE", "a=b", 1), 0);
  EXPECT_THAT(own_environment(), testing::Contains("SPAWN_PROBE=a=b"));
}

TEST(Spawn, HandsOnNoDescriptorButTheOneThatIsPassed) {
  const UniqueFd stray(::open("/dev/zero", O_RDONLY));  // not O_CLOEXEC
  const UniqueFd passed(::open("/dev/full", O_RDWR | O_CLOEXEC));
  const std::string list = "for fd in /proc/$$/fd/*; do echo \"$(basename $fd)=$(readlink $fd)\"; done";
  auto options = shell(list);
  EXPECT_THAT(output_of(options), Not(HasSubstr("/dev/zero")));
  options.pass = passed.get();
  const auto shown = output_of(options);
  EXPECT_THAT(shown, HasSubstr("3=/dev/full\n"));
  EXPECT_THAT(shown, HasSubstr("0=/dev/null\n"));
  EXPECT_THAT(shown, Not(HasSubstr("/dev/zero")));
}

TEST(Spawn, GivesNullForWhatIsNotWanted) {
  auto options = shell("readlink /proc/$$/fd/2");
  options.error = spawn_null;
  EXPECT_EQ(output_of(options), "/dev/null\n");
}

TEST(Spawn, UnblocksSignalsAndGivesBackTheirDefaultActions) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
  const auto handled = std::signal(SIGUSR1, SIG_IGN);
  const auto shown = output_of(
      shell("while read -r name mask; do case $name in SigBlk:|SigIgn:) echo \"0x$mask\" ;; esac; done "
            "</proc/self/status"));
  std::signal(SIGUSR1, handled);
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
  std::istringstream lines(shown);
  lines >> std::hex;
  std::uint64_t are_blocked = ~0ULL, are_ignored = ~0ULL;
  ASSERT_TRUE(lines >> are_blocked >> are_ignored) << shown;
  constexpr std::uint64_t ours = 0x7fffffff;  // the two above are the C library's own
  EXPECT_EQ(are_blocked & ours, 0U);
  EXPECT_EQ(are_ignored & ours, 0U);
}

TEST(Spawn, StandsInAGroupOfItsOwnUnlessItSharesTheTerminal) {
  const std::string group = "read -r stat </proc/self/stat; set -- $stat; echo \"$5\"";
  auto options = shell(group);
  EXPECT_NE(output_of(options), std::to_string(::getpgrp()) + "\n");
  options.own_group = false;
  EXPECT_EQ(output_of(options), std::to_string(::getpgrp()) + "\n");
}

TEST(Spawn, SaysWhatCouldNotBeStarted) {
  auto options = shell("true");
  options.program = "/no/such/program";
  const auto failed = spawn(options);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().native, ENOENT);
  EXPECT_THAT(failed.error().message(), HasSubstr("start /no/such/program failed: No such file"));
}

TEST(Spawn, LooksInPathOnlyWhenItIsTold) {
  auto options = shell("echo found");
  options.program = "sh";
  EXPECT_FALSE(spawn(options));
  options.in_path = true;
  EXPECT_EQ(output_of(options), "found\n");
}

}  // namespace
}  // namespace cenote
