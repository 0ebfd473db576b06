// Processes killed at random moments: what goes on, what ends, and that nothing is granted twice or left
// behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "pool/broker/journal.h"
#include "pool/store/sqlite.h"
#include "tests/fault_row.h"
#include "tests/multi/agent/cluster.h"
#include "tests/multi/agent/limits.h"
#include "tests/multi/agent/work.h"

namespace cenote::pool::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// No lease ends by itself while a test waits: what it waits for must free the devices.
constexpr auto kLongTtl = seconds(3600);

class KillTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RecordProperty("seed", std::to_string(seed));
    cluster = Cluster::start();
    ASSERT_NE(cluster, nullptr);
    client = cluster->client();
    ASSERT_NE(client, nullptr);
  }
  /// A moment, drawn: not to wait for anything, but to hit the others anywhere.
  void random_moment(int most_ms) {
    std::this_thread::sleep_for(milliseconds(std::uniform_int_distribution<int>(0, most_ms)(random)));
  }
  /// Devices of a lease that ended are free once their agents have confirmed it, so this may take a while.
  std::unique_ptr<client::Lease> lease(std::uint32_t gpus, seconds ttl = kLongTtl) {
    auto granted = client->lease({.gpus = gpus, .ttl = ttl, .wait = patience().left()}, patience());
    EXPECT_TRUE(granted) << granted.error().message();
    return granted ? std::move(*granted) : nullptr;
  }

  const unsigned seed = std::random_device{}();
  std::mt19937 random{seed};
  std::unique_ptr<Cluster> cluster;
  std::unique_ptr<client::PoolClient> client;
};

// Two clients take and give back single GPUs while the broker dies again and again: whoever holds a device is
// its only holder.
class Churn {
 public:
  explicit Churn(std::unique_ptr<client::PoolClient> client)
      : client_(std::move(client)), thread_([this] { run(); }) {}
  ~Churn() { finish(); }
  void finish() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  static std::mutex held_mutex;
  static std::set<std::string> held;
  std::atomic<int> grants{0}, doubles{0};

 private:
  void run() {
    while (!stop_) {
      // Asked until it is answered: a grant whose answer the kill swallowed is not left behind.
      auto lease = client_->lease({.gpus = 1, .ttl = kLongTtl}, patience());
      if (!lease) continue;
      ++grants;
      const auto uuid = (*lease)->info().devices.front().uuid;
      {
        const std::lock_guard lock(held_mutex);
        if (!held.insert(uuid).second) ++doubles;
      }
      // Held for a moment, so that a second grant would meet the first.
      std::this_thread::sleep_for(milliseconds(5));
      {
        // From here on somebody else may be granted it.
        const std::lock_guard lock(held_mutex);
        held.erase(uuid);
      }
      static_cast<void>((*lease)->release(patience()));
    }
  }
  std::unique_ptr<client::PoolClient> client_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};
std::mutex Churn::held_mutex;
std::set<std::string> Churn::held;

TEST_F(KillTest, ABrokerKilledAndRestartedLosesNoLeaseAndGrantsNothingTwice) {
  const auto held = lease(2);
  ASSERT_NE(held, nullptr);
  auto work = CountingWork::open(*held, patience());
  ASSERT_TRUE(work) << work.error().message();
  std::set<std::string> mine;
  for (const auto& device : held->info().devices) mine.insert(device.uuid);
  {
    const std::lock_guard lock(Churn::held_mutex);
    Churn::held = mine;
  }
  Churn first(cluster->client()), second(cluster->client());
  for (int kill = 0; kill < 6; ++kill) {
    random_moment(150);
    cluster->processes().kill_broker();
    const auto outage = Clock::now() + milliseconds(std::uniform_int_distribution<int>(0, 300)(random));
    do {
      const auto done = work->round();
      ASSERT_TRUE(done) << "work goes on while there is no broker: " << done.error().message() << ", seed "
                        << seed;
    } while (Clock::now() < outage);
    const auto started = cluster->processes().start_broker(patience());
    ASSERT_TRUE(started) << started.error().message();
    const auto there = cluster->processes().wait_agents(3, patience());
    ASSERT_TRUE(there) << there.error().message();
    ASSERT_TRUE(work->round());
  }
  first.finish();
  second.finish();
  EXPECT_EQ(first.doubles + second.doubles, 0) << "seed " << seed;
  EXPECT_GT(first.grants + second.grants, 0) << "nothing was granted meanwhile, so nothing was shown";
  EXPECT_FALSE(held->lost()) << held->lost()->message();

  // The broker's list, the agents' word, and the store agree.
  ASSERT_TRUE(eventually([&] { return cluster->leases() == 1; }));
  ASSERT_TRUE(eventually([&] {
    const auto state = client->top(patience());
    std::set<std::string> busy;
    for (const auto& agent : state->agents) {
      for (const auto& device : agent.devices) {
        if (!device.lease_id.empty()) busy.insert(device.uuid);
      }
    }
    return busy == mine;
  }));
  const auto id = held->info().id;
  cluster->processes().kill_broker();
  auto store = open_sqlite_store(cluster->processes().folder() + "/broker/broker.db");
  ASSERT_TRUE(store) << store.error().message();
  const auto journal = Journal::open(std::move(*store), 1'000'000);
  ASSERT_TRUE(journal) << journal.error().message();
  for (const auto& [uuid, device] : journal->state().devices) {
    EXPECT_LE(device.holders.size(), mine.contains(uuid) ? 1U : 0U) << uuid;
    for (const auto& holder : device.holders) EXPECT_EQ(holder.lease, id);
  }
}

TEST_F(KillTest, ABrokerThatIsGoneForLongerThanTheTtlLosesNoLease) {
  // Agents look for a broker ever more seldom: it gives them time to find it again.
  cluster = Cluster::start({"broker.agent_dead=30s"});
  ASSERT_NE(cluster, nullptr);
  client = cluster->client();
  const auto held = lease(2, seconds(1));
  ASSERT_NE(held, nullptr);
  auto work = CountingWork::open(*held, patience());
  ASSERT_TRUE(work) << work.error().message();
  const auto now_ms = [] {
    return std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  cluster->processes().kill_broker();
  const auto expired = held->info().expires_unix_ms + 2'000;  // also by a renewal that was in flight
  do {
    const auto done = work->round();
    ASSERT_TRUE(done) << done.error().message();
  } while (now_ms() < expired);
  const auto started = cluster->processes().start_broker(patience());
  ASSERT_TRUE(started) << started.error().message();
  ASSERT_TRUE(eventually([&] { return held->lost() || held->info().expires_unix_ms > now_ms(); }))
      << "it is renewed";
  EXPECT_FALSE(held->lost()) << held->lost()->message();
  EXPECT_TRUE(work->round());
  EXPECT_EQ(cluster->leases(), 1U);
}

TEST_F(KillTest, AKilledWorkerIsNamedToItsClientAndItsLeaseIsFreed) {
  const std::vector<std::string> names{"a", "b", "c"};
  std::vector<Clock::duration> heard_after;
  for (int kill = 0; kill < 6; ++kill) {
    const auto held = lease(4);
    ASSERT_NE(held, nullptr);
    auto work = CountingWork::open(*held, patience());
    ASSERT_TRUE(work) << work.error().message();
    ASSERT_EQ(cluster->workers().size(), 3U);
    const auto name = names[random() % names.size()];
    const auto its_workers = children_of(cluster->processes().agent_pid(name));
    ASSERT_EQ(its_workers.size(), 1U);
    std::atomic<bool> killed{false};
    Clock::time_point when;
    std::thread killer([&] {
      random_moment(100);
      when = Clock::now();
      ::kill(its_workers.front(), SIGKILL);
      killed = true;
    });
    Result<void> result;
    while (result) result = work->round();
    const auto heard = Clock::now();
    killer.join();
    heard_after.push_back(heard - when);
    EXPECT_LE(heard_after.back(), kHeardByAll) << "seed " << seed;
    EXPECT_THAT(result.error().message(),
                AllOf(HasSubstr("lease " + held->info().id + " gpu "), HasSubstr(" on " + name + ")")))
        << "the one that was killed, and none that ended because of it, seed " << seed;
    EXPECT_TRUE(eventually([&] { return cluster->idle(); }))
        << "the lease is freed and no worker is left, seed " << seed;
  }
  EXPECT_LE(median(heard_after), kHeardByHalf) << "seed " << seed;
  cenote::test::tried({"The pool", "a worker is killed at work", heard_after.size(),
                       "its GPU is named to the client, and its lease freed", "so"});
}

TEST_F(KillTest, AKilledAgentTakesItsWorkersAlongAndItsLeasesAreFreed) {
  const std::vector<std::string> names{"a", "b", "c"};
  std::vector<Clock::duration> heard_after;
  for (int kill = 0; kill < 5; ++kill) {
    const auto held = lease(4);
    ASSERT_NE(held, nullptr);
    auto work = CountingWork::open(*held, patience());
    ASSERT_TRUE(work) << work.error().message();
    const auto name = names[random() % names.size()];
    const auto agent = cluster->processes().agent_pid(name);
    const auto its_workers = children_of(agent);
    ASSERT_EQ(its_workers.size(), 1U);
    Clock::time_point when;
    std::thread killer([&] {
      random_moment(100);
      when = Clock::now();
      ::kill(agent, SIGKILL);
    });
    Result<void> result;
    while (result) result = work->round();
    const auto heard = Clock::now();
    killer.join();
    cluster->processes().kill_agent(name);  // reaps it
    heard_after.push_back(heard - when);
    EXPECT_LE(heard_after.back(), kHeardByAll) << "seed " << seed;
    EXPECT_THAT(result.error().message(), HasSubstr(" on " + name + ")")) << "seed " << seed;
    EXPECT_TRUE(eventually([&] { return !alive(its_workers.front()); })) << "a worker outlived its agent";
    EXPECT_TRUE(eventually([&] { return cluster->idle(); })) << "seed " << seed;
    const auto back = cluster->processes().start_agent(name, patience());
    ASSERT_TRUE(back) << back.error().message();
    ASSERT_TRUE(cluster->processes().wait_agents(3, patience()));
  }
  EXPECT_LE(median(heard_after), kHeardByHalf) << "seed " << seed;
  cenote::test::tried({"The pool", "an agent is killed at work", heard_after.size(),
                       "its GPU is named to the client, and its workers end", "so"});
}

TEST_F(KillTest, AKilledClientsLeaseIsReclaimedOnceItsTimeToLiveIsOver) {
  // Long enough that a client which is starved for a moment does not lose it.
  constexpr auto kTtl = seconds(6);
  std::vector<Clock::duration> reclaimed_after;
  for (int kill = 0; kill < 3; ++kill) {
    cli::ChildOptions options;
    options.command = {kCenote};
    for (const auto& option : cluster->options()) options.command.push_back(option);
    for (const auto* word : {"lease", "--gpus", "4", "--ttl", "6s", "--wait"})
      options.command.emplace_back(word);
    const UniqueFd output(::memfd_create("output", MFD_CLOEXEC));
    options.output = output.get();
    auto holder = cli::ChildProcess::start(options);
    ASSERT_TRUE(holder) << holder.error().message();
    ASSERT_TRUE(eventually([&] { return cluster->leases() == 1; }));
    random_moment(4000);  // also past the first renewals
    ASSERT_EQ(cluster->leases(), 1U) << "while its client lives it is renewed, seed " << seed;
    holder->end(Clock::duration::zero());
    const auto when = Clock::now();
    ASSERT_TRUE(eventually([&] { return cluster->idle(); })) << "seed " << seed;
    reclaimed_after.push_back(Clock::now() - when);
    const auto again = lease(4);
    ASSERT_NE(again, nullptr) << "all devices are free again";
    EXPECT_TRUE(again->release(patience()));
    ASSERT_TRUE(eventually([&] { return cluster->idle(); }));
  }
  // Expiry, drift and a heartbeat.
  EXPECT_LE(median(reclaimed_after), kTtl + kHeardByHalf) << "seed " << seed;
  cenote::test::tried({"The pool", "a client is killed", reclaimed_after.size(),
                       "its lease ends with its time to live, and all GPUs are free", "so"});
}

TEST_F(KillTest, APoolWhoseOwnerIsKilledLeavesNothing) {
  cli::ChildOptions options;
  options.command = {kCenote, "demo", "--epochs", "10000"};
  const UniqueFd output(::memfd_create("output", MFD_CLOEXEC));
  options.output = output.get();
  options.error = output.get();
  auto demo = cli::ChildProcess::start(options);
  ASSERT_TRUE(demo);
  std::vector<pid_t> children;
  ASSERT_TRUE(eventually([&] {
    children = children_of(demo->pid());
    return children.size() >= 5;  // guardian, broker, three agents
  }));
  std::vector<pid_t> all = children;
  for (const auto child : children) {
    for (const auto grandchild : children_of(child)) all.push_back(grandchild);
  }
  random_moment(500);
  demo->end(Clock::duration::zero());
  for (const auto pid : all) EXPECT_TRUE(eventually([&] { return !alive(pid); })) << pid << ", seed " << seed;
}

}  // namespace
}  // namespace cenote::pool::testing
