// The agent's core under all the threads that an agent has: those of its service, which clients keep waiting,
// the host's, the ticker's and the heartbeat loop's.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "tests/unit/agent/fake_broker.h"
#include "tests/unit/agent/leases.h"

namespace cenote::pool::agent {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using testing::FakeBroker;
using testing::FakeHost;
using testing::kNow;
using testing::Parties;

class AgentThreads : public ::testing::Test {
 protected:
  AgentThreads() {
    RegistrationTerms terms;
    terms.broker_key = parties.broker.public_key();
    core.registered(terms);
  }
  /// A thread of the agent: until finish().
  template <class Work>
  void keep(const Work& work) {
    repeat(agent, over, work);
  }
  /// A client's call: ends before the agent's threads do, for it waits for what they do.
  template <class Work>
  void keep_calling(const Work& work) {
    repeat(clients, clients_over, work);
  }
  template <class Work>
  static void repeat(std::vector<std::thread>& threads, const std::atomic<bool>& enough, const Work& work) {
    threads.emplace_back([&enough, work] {
      while (!enough) {
        work();
        std::this_thread::yield();
      }
    });
  }
  Result<SessionReply> open(const std::string& lease, std::uint64_t epoch) {
    const auto token = parties.token(lease, epoch, epoch % 2 == 0 ? "gpu-0" : "gpu-1");
    const auto claim = parties.sign(token);
    return core.open(claim.claim(), as_bytes(lease), Deadline::in(std::chrono::seconds(60)));
  }
  void close(const std::string& lease) {
    const auto proof = make_proof(parties.client, "close", lease, "a", kNow);
    static_cast<void>(core.close(lease, proof->signature, kNow, Deadline::in(std::chrono::seconds(60))));
  }
  void finish() {
    clients_over = true;
    for (auto& thread : clients) thread.join();
    over = true;
    for (auto& thread : agent) thread.join();
  }

  Parties parties;
  FakeHost host;
  AgentCore core{
      CoreOptions{.agent = "a", .devices = testing::two_devices(), .now_unix_ms = [] { return kNow; }}, host};
  FakeBroker broker{parties.broker.public_key()};
  std::atomic<bool> clients_over{false}, over{false};
  std::atomic<std::uint64_t> epochs{0};
  std::vector<std::thread> clients, agent;
};

TEST_F(AgentThreads, ClientsWorkersAndABrokerThatComesAndGoesAllAtOnce) {
  std::atomic<int> ended{0};
  HeartbeatLoop loop(
      core, broker, {.first_retry = milliseconds(1), .longest_retry = milliseconds(2), .least_interval = {}});
  loop.start();
  keep([&] { host.reap(core); });
  keep([&] { core.tick(); });
  keep([&] { broker.change([&] { broker.down = !broker.down; }); });
  keep([&] {  // workers die by themselves
    std::unique_lock lock(host.mutex_);
    if (host.live.empty()) return;
    const auto dead = host.live.extract(host.live.begin()).value();
    lock.unlock();
    core.worker_ended(dead.lease, dead.generation, {true, "crashed"});
  });
  for (int client = 0; client < 3; ++client) {
    keep_calling([&] {
      const auto epoch = ++epochs;
      const auto lease = "L" + std::to_string(epoch);
      const auto opened = open(lease, epoch);
      if (!opened) return;
      std::thread closing([&] { close(lease); });
      const auto end = core.await_end(lease, opened->channel, Deadline::in(hours(1)), [] { return false; });
      closing.join();
      EXPECT_TRUE(end.over);
      ++ended;
    });
  }
  while (ended < 20) std::this_thread::yield();
  finish();
  core.shut_down(Deadline::in(Clock::duration::zero()));
  host.reap(core);
  EXPECT_TRUE(core.report().live.empty());
}

TEST_F(AgentThreads, AShutDownEndsAllWhoWaitForSessionsAndLetsNobodyIn) {
  std::vector<std::future<SessionEnd>> waiting;
  for (std::uint64_t epoch = 2; epoch <= 3; ++epoch) {
    const auto lease = "L" + std::to_string(epoch);
    const auto opened = open(lease, epoch);
    ASSERT_TRUE(opened) << opened.error().message();
    for (int i = 0; i < 4; ++i) {
      waiting.push_back(std::async(std::launch::async, [this, lease, channel = opened->channel] {
        return core.await_end(lease, channel, Deadline::in(hours(1)), [] { return false; });
      }));
    }
  }
  keep([&] { host.reap(core); });
  epochs = 10;
  for (int client = 0; client < 2; ++client) {
    keep_calling([&] {
      const auto epoch = ++epochs;
      static_cast<void>(open("L" + std::to_string(epoch), epoch));
    });
  }
  core.shut_down(Deadline::in(std::chrono::seconds(60)));
  EXPECT_TRUE(core.report().live.empty());
  for (auto& one : waiting) EXPECT_TRUE(one.get().failed);
  finish();
  EXPECT_TRUE(host.live.empty());
}

TEST_F(AgentThreads, ALeaseThatEndsWhileItsWorkerIsAboutToStartLeavesNoWorker) {
  host.before_start = [&] { core.ordered({.end_leases = {"L2"}}); };
  EXPECT_FALSE(open("L2", 2));
  host.before_start = {};
  host.reap(core);
  EXPECT_TRUE(host.live.empty());
  EXPECT_TRUE(core.report().live.empty());
  EXPECT_TRUE(open("L4", 4)) << "its device is free";
}

TEST_F(AgentThreads, WhoNoLongerWantsNewsIsNotInTheMidstOfThem) {
  ASSERT_TRUE(open("L2", 2));
  std::promise<void> inside, go_on;
  std::atomic<bool> done{false};
  core.on_news([&] {
    inside.set_value();
    go_on.get_future().wait();
    done = true;
  });
  std::thread host_thread([&] { core.worker_ended("L2", 1, {true, "crashed"}); });
  inside.get_future().wait();
  auto leaving = std::async(std::launch::async, [&] {
    core.on_news({});
    return done.load();
  });
  static_cast<void>(leaving.wait_for(milliseconds(100)));
  go_on.set_value();
  EXPECT_TRUE(leaving.get()) << "it may be destroyed now";
  host_thread.join();
}

}  // namespace
}  // namespace cenote::pool::agent
