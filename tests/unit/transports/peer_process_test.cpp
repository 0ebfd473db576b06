#include "transports/peer_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace cenote::transport {
namespace {

using namespace std::chrono_literals;

/// A process that sleeps until it is ended.
struct Sleeper {
  Sleeper() {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid = ::fork();
    if (pid == 0) {
      const auto own = ProcessMark::own().value();
      (void)!::write(ends[1], &own, sizeof own);
      for (;;) ::pause();
    }
    EXPECT_EQ(::read(ends[0], &mark, sizeof mark), static_cast<ssize_t>(sizeof mark));
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~Sleeper() {
    end();
    ::waitpid(pid, nullptr, 0);
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  void end() const { ::kill(pid, SIGKILL); }
  pid_t pid = -1;
  ProcessMark mark{};
};

bool ends_within(PeerProcess& process, Clock::duration span) {
  const auto deadline = Deadline::in(span);
  while (!deadline.passed()) {
    if (process.ended_long_ago()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

const HostIdentity& here() {
  static const HostIdentity host = HostIdentity::read().value();
  return host;
}

TEST(PeerProcess, ThatIsKilledHasEndedAWhileLaterThoughNobodyReapsIt) {
  const Sleeper sleeper;
  EXPECT_EQ(sleeper.mark.number, sleeper.pid);
  PeerProcess process(here(), here(), sleeper.mark);
  EXPECT_FALSE(ends_within(process, 250ms));
  const auto killed = Clock::now();
  sleeper.end();
  EXPECT_TRUE(ends_within(process, 20s));
  EXPECT_GE(Clock::now() - killed, 300ms);
  EXPECT_FALSE(process.ended_long_ago()) << "it is said once";
}

TEST(PeerProcess, WhatStillComesFromItMakesTheWhileLonger) {
  const Sleeper sleeper;
  PeerProcess process(here(), here(), sleeper.mark);
  sleeper.end();
  const auto until = Clock::now() + 700ms;
  while (Clock::now() < until) {
    process.spoke();
    EXPECT_FALSE(process.ended_long_ago());
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_TRUE(ends_within(process, 20s));
}

TEST(PeerProcess, OfWhomNothingIsKnownNeverEnds) {
  const Sleeper sleeper;
  auto elsewhere = here();
  elsewhere.boot_id[0] = elsewhere.boot_id[0] == 'x' ? 'y' : 'x';
  auto contained = here();
  ++contained.pid_space;
  auto later = sleeper.mark;
  ++later.started;  // the number is another process's by now
  PeerProcess none[] = {PeerProcess(),
                        PeerProcess(here(), elsewhere, sleeper.mark),
                        PeerProcess(here(), contained, sleeper.mark),
                        PeerProcess(here(), here(), later),
                        PeerProcess(here(), here(), {-1, 0}),
                        PeerProcess(here(), here(), ProcessMark::own().value())};
  sleeper.end();
  for (auto& process : none) EXPECT_FALSE(ends_within(process, 450ms));
}

}  // namespace
}  // namespace cenote::transport
