// Worker processes: started, heard, ended, reaped. Shell scripts stand in for workers.
#include "pool/agent/worker_process.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>
#include <utility>

#include "pool/agent/worker_wire.h"

namespace cenote::pool::agent {
namespace {

using ::testing::HasSubstr;

// What printf(1) must print to say `message` on the socket.
std::string spoken(const WorkerMessage& message) {
  std::string text;
  for (const auto byte : encode_message(message))
    text += fmt::format("\\{:03o}", std::to_integer<unsigned>(byte));
  return text;
}

std::string say_ready(std::string_view address) {
  WorkerMessage message;
  message.address.assign(as_bytes(address).begin(), as_bytes(address).end());
  return "printf '" + spoken(message) + "' >&3; ";
}

class WorkerProcessesTest : public ::testing::Test {
 protected:
  void run(const std::string& script, Clock::duration grace = std::chrono::milliseconds(100),
           Clock::duration silence = std::chrono::minutes(10)) {
    auto made = WorkerProcesses::create(
        {.executable = "/bin/sh", .arguments = {"-c", script, "worker"}, .grace = grace, .silence = silence});
    ASSERT_TRUE(made) << made.error().message();
    host = std::move(*made);
    host->on_exit([this](const std::string&, std::uint64_t generation, const WorkerExit& exit) {
      const std::lock_guard lock(mutex);
      ended[generation] = exit;
      changed.notify_all();
    });
  }
  Result<Bytes> start(std::uint64_t generation = 1, Clock::duration limit = std::chrono::seconds(60)) {
    WorkerSetup setup;
    setup.lease_id = "L1";
    setup.generation = generation;
    return host->start(setup, Deadline::in(limit));
  }
  WorkerExit exit_of(std::uint64_t generation) {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return ended.contains(generation); }));
    return ended[generation];
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::uint64_t, WorkerExit> ended;
  std::unique_ptr<WorkerProcesses> host;  // destroyed first: its thread calls back
};

TEST_F(WorkerProcessesTest, StartsAndHearsWhereItListens) {
  run(say_ready("here") + "exec sleep 1000");
  const auto address = start();
  ASSERT_TRUE(address) << address.error().message();
  EXPECT_EQ(as_text(*address), "here");
}

TEST_F(WorkerProcessesTest, AWorkerThatDiesBeforeItListensFailsTheStart) {
  run("exit 9");
  const auto address = start();
  ASSERT_FALSE(address);
  EXPECT_THAT(address.error().message(), HasSubstr("exit code 9"));
  EXPECT_TRUE(exit_of(1).failed);
}

TEST_F(WorkerProcessesTest, AMissingProgramFailsTheStartAndStillReportsAnExit) {
  auto made = WorkerProcesses::create({.executable = "/nonexistent/cenote"});
  ASSERT_TRUE(made);
  host = std::move(*made);
  host->on_exit([this](const std::string&, std::uint64_t generation, const WorkerExit& exit) {
    const std::lock_guard lock(mutex);
    ended[generation] = exit;
    changed.notify_all();
  });
  EXPECT_FALSE(start());
  exit_of(1);
}

TEST_F(WorkerProcessesTest, AWorkersOwnReasonReachesTheClient) {
  WorkerMessage failed;
  failed.kind = WorkerSays::failed;
  failed.error = Error{ErrorCode::driver_error, "open device", "out of memory"};
  run("printf '" + spoken(failed) + "' >&3; exit 10");
  const auto address = start();
  ASSERT_FALSE(address);
  EXPECT_EQ(address.error().code, ErrorCode::driver_error);
  EXPECT_FALSE(exit_of(1).failed);
}

TEST_F(WorkerProcessesTest, OneThatSaysNothingIsGivenUpAtTheDeadlineAndKilled) {
  run("exec sleep 1000");
  const auto address = start(1, std::chrono::milliseconds(50));
  ASSERT_FALSE(address);
  EXPECT_EQ(address.error().code, ErrorCode::deadline_exceeded);
  exit_of(1);
  EXPECT_TRUE(host->pids().empty());
}

TEST_F(WorkerProcessesTest, ACrashNamesItsSignal) {
  run(say_ready("x") + "exec sleep 1000");
  ASSERT_TRUE(start());
  ::kill(host->pids().at(0), SIGSEGV);
  const auto exit = exit_of(1);
  EXPECT_TRUE(exit.failed);
  EXPECT_THAT(exit.reason, HasSubstr("SEGV"));
}

TEST_F(WorkerProcessesTest, AStoppedWorkerIsKilledAfterItsSilenceAndTheReasonSaysSo) {
  WorkerMessage load;
  load.kind = WorkerSays::load;
  load.use = {{4096, 17, 5}};
  run(say_ready("x") + "while :; do printf '" + spoken(load) + "' >&3; sleep 0.02; done",
      std::chrono::milliseconds(100), std::chrono::seconds(4));
  ASSERT_TRUE(start());
  // It reports for longer than the silence lasts, and lives.
  std::this_thread::sleep_for(std::chrono::milliseconds(4500));
  ASSERT_EQ(host->pids().size(), 1U);
  ::kill(host->pids().at(0), SIGSTOP);
  const auto exit = exit_of(1);
  EXPECT_TRUE(exit.failed);
  EXPECT_THAT(exit.reason, HasSubstr("it did not answer for 4."));
  EXPECT_TRUE(host->pids().empty());
}

TEST_F(WorkerProcessesTest, OneThatEndsWhenAskedIsNotKilled) {
  // cat ends when the agent shuts its side of the socket.
  run(say_ready("x") + "cat <&3 >/dev/null; exit 0", std::chrono::seconds(60));
  ASSERT_TRUE(start());
  host->stop("L1", 1);
  EXPECT_FALSE(exit_of(1).failed);
}

TEST_F(WorkerProcessesTest, OneThatDoesNotEndWhenAskedIsKilledAfterTheGrace) {
  run("trap '' TERM INT HUP; " + say_ready("x") + "exec sleep 1000");
  ASSERT_TRUE(start());
  const auto pid = host->pids().at(0);
  host->stop("L1", 1);
  EXPECT_THAT(exit_of(1).reason, HasSubstr("KILL"));
  EXPECT_NE(::kill(pid, 0), 0) << "reaped before anybody hears of its end";
}

TEST_F(WorkerProcessesTest, LoadReportsAreKept) {
  WorkerMessage load;
  load.kind = WorkerSays::load;
  load.use = {{4096, 17, 5}};
  // The load is said first, so it is known when start() returns.
  run("printf '" + spoken(load) + "' >&3; " + say_ready("x") + "exec sleep 1000");
  ASSERT_TRUE(start());
  ASSERT_EQ(host->load("L1", 1).size(), 1U);
  EXPECT_EQ(host->load("L1", 1)[0].launches, 17U);
}

TEST_F(WorkerProcessesTest, NonsenseFromAWorkerEndsIt) {
  run(say_ready("x") + "printf nonsense >&3; exec sleep 1000");
  static_cast<void>(start());
  exit_of(1);
  EXPECT_TRUE(host->pids().empty());
}

TEST_F(WorkerProcessesTest, ManyStartAndEndAtOnceAndNoneIsLeft) {
  run(say_ready("x") + "exec sleep 1000");
  std::vector<std::thread> starters;
  for (std::uint64_t g = 1; g <= 8; ++g) {
    starters.emplace_back([this, g] {
      EXPECT_TRUE(start(g));
      host->stop("L1", g);
    });
  }
  for (auto& starter : starters) starter.join();
  for (std::uint64_t g = 1; g <= 8; ++g) exit_of(g);
  EXPECT_TRUE(host->pids().empty());
}

TEST_F(WorkerProcessesTest, DestroyingTheHostEndsAndReapsEverything) {
  run(say_ready("x") + "exec sleep 1000");
  ASSERT_TRUE(start());
  const auto pid = host->pids().at(0);
  host.reset();
  EXPECT_NE(::kill(pid, 0), 0);
}

}  // namespace
}  // namespace cenote::pool::agent
