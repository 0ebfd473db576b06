// A pool whose disk is full, read-only or slow, and one whose processes are stopped for half a minute: what
// goes on, what is refused and why, and that everything comes back by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/process.h"
#include "tests/multi/agent/cluster.h"
#include "tests/multi/agent/work.h"

namespace cenote::pool::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

/// Whatever starts while it lives has its store on a disk in trouble.
class Disk {
 public:
  Disk() {
    set("");
    ::setenv("DISK_TROUBLE", folder_.file("trouble").c_str(), 1);
    ::setenv("LD_PRELOAD", CENOTE_BINARY_DIR "/tests/libdisk_trouble.so", 1);
  }
  ~Disk() {
    ::unsetenv("LD_PRELOAD");
    ::unsetenv("DISK_TROUBLE");
  }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;
  void set(const std::string& trouble) const {
    const auto path = folder_.file("trouble");
    std::ofstream(path + ".new") << trouble;
    ASSERT_EQ(::rename((path + ".new").c_str(), path.c_str()), 0);
  }

 private:
  TemporaryFolder folder_ = TemporaryFolder::create("trouble").value();
};

struct Held {
  std::unique_ptr<client::Lease> lease;
  std::optional<CountingWork> work;
};

std::optional<Held> hold(client::PoolClient& client, std::uint32_t gpus, seconds ttl) {
  auto granted = client.lease({.gpus = gpus, .ttl = ttl, .wait = std::chrono::minutes(1)}, patience());
  EXPECT_TRUE(granted) << granted.error().message();
  if (!granted) return std::nullopt;
  Held held{std::move(*granted), {}};
  auto work = CountingWork::open(*held.lease, patience());
  EXPECT_TRUE(work) << work.error().message();
  if (!work) return std::nullopt;
  held.work.emplace(std::move(*work));
  return held;
}

class DiskTrouble : public ::testing::Test {
 protected:
  void SetUp() override {
    cluster = Cluster::start();
    ASSERT_NE(cluster, nullptr);
    client = cluster->client();
    held = hold(*client, 1, seconds(4));
    ASSERT_TRUE(held);
  }
  /// Longer than the lease lives without a renewal.
  void refuses_for_longer_than_the_ttl_and_comes_back(const std::string& trouble, const std::string& reason) {
    disk.set(trouble);
    const Deadline outage = Deadline::in(seconds(9));
    while (!outage.passed()) {
      const auto refused = client->lease({.gpus = 1, .ttl = seconds(60)}, patience());
      ASSERT_FALSE(refused) << "it cannot have been logged";
      EXPECT_THAT(refused.error().message(), HasSubstr(reason));
      const auto round = held->work->round();
      ASSERT_TRUE(round) << round.error().message();
      EXPECT_EQ(cluster->leases(), 1U);
      std::this_thread::sleep_for(milliseconds(200));
    }
    disk.set("");
    auto again = client->lease({.gpus = 1, .ttl = seconds(60)}, patience());
    ASSERT_TRUE(again) << again.error().message();
    // Past the old one's end, had nobody renewed it since.
    const Deadline later = Deadline::in(seconds(6));
    while (!later.passed()) {
      ASSERT_TRUE(held->work->round());
      ASSERT_FALSE(held->lease->lost()) << held->lease->lost()->message();
    }
    EXPECT_EQ(cluster->leases(), 2U);
  }

  Disk disk;
  std::unique_ptr<Cluster> cluster;
  std::unique_ptr<client::PoolClient> client;
  std::optional<Held> held;
};

TEST_F(DiskTrouble, AFullOneRefusesWhatIsNewAndCostsNoLease) {
  refuses_for_longer_than_the_ttl_and_comes_back("full", "full");
}

TEST_F(DiskTrouble, AReadOnlyOneRefusesWhatIsNewAndCostsNoLease) {
  refuses_for_longer_than_the_ttl_and_comes_back("read-only", "the decision cannot be logged");
}

// An agent counts as lost after a second of silence (Cluster): every write takes longer.
TEST_F(DiskTrouble, ASlowOneHoldsUpNeitherHeartbeatsNorListingsNorRenewals) {
  disk.set("slow 1500");
  std::thread asking([&] {
    const auto granted = client->lease({.gpus = 1, .ttl = seconds(60)}, patience());
    EXPECT_TRUE(granted) << granted.error().message();
  });
  const Deadline end = Deadline::in(seconds(10));
  Clock::duration longest{};
  while (!end.passed()) {
    const auto begin = Clock::now();
    const auto state = cluster->client()->top(patience());
    longest = std::max(longest, Clock::now() - begin);
    ASSERT_TRUE(state) << state.error().message();
    for (const auto& agent : state->agents) EXPECT_TRUE(agent.alive) << agent.name;
    ASSERT_TRUE(held->work->round());
    ASSERT_FALSE(held->lease->lost()) << held->lease->lost()->message();
  }
  asking.join();
  EXPECT_LT(longest, milliseconds(1500)) << "a listing waited for the disk";
  disk.set("");
}

/// No device has two holders.
void expect_single_holders(client::PoolClient& client) {
  const auto leases = client.leases(patience());
  ASSERT_TRUE(leases) << leases.error().message();
  std::set<std::string> seen;
  for (const auto& lease : *leases)
    for (const auto& device : lease.devices) EXPECT_TRUE(seen.insert(device.uuid).second) << device.uuid;
}

// Each in a pool of its own, all at once: the half minute is waited for once.
TEST(Stopped, ForHalfAMinuteTheBrokerAWorkerAnAgentAndAClient) {
  const auto of_broker = Cluster::start(), of_worker = Cluster::start(), of_agent = Cluster::start(),
             of_client = Cluster::start();
  ASSERT_TRUE(of_broker && of_worker && of_agent && of_client);
  const auto broker_client = of_broker->client(), worker_client = of_worker->client(),
             agent_client = of_agent->client(), other_client = of_client->client();
  auto by_broker = hold(*broker_client, 4, seconds(10));
  auto by_worker = hold(*worker_client, 4, seconds(600));
  auto by_agent = hold(*agent_client, 4, seconds(600));
  ASSERT_TRUE(by_broker && by_worker && by_agent);
  cli::ChildOptions lease_command;
  lease_command.command = {kCenote};
  for (const auto& option : of_client->options()) lease_command.command.push_back(option);
  for (const auto* word : {"lease", "--gpus", "4", "--ttl", "5s"}) lease_command.command.emplace_back(word);
  const UniqueFd words(::memfd_create("words", MFD_CLOEXEC));
  lease_command.output = lease_command.error = words.get();
  auto holder = cli::ChildProcess::start(lease_command);
  ASSERT_TRUE(holder) << holder.error().message();
  ASSERT_TRUE(eventually([&] { return of_client->leases() == 1; }));
  const auto broker = of_broker->processes().broker_pid();
  const auto agent = of_agent->processes().agent_pid("a");
  const auto worker = of_worker->processes().worker_pids("b").at(0);
  const std::vector<pid_t> stopped{broker, agent, worker, holder->pid()};
  for (const auto pid : stopped) ASSERT_EQ(::kill(pid, SIGSTOP), 0);

  const Deadline half_a_minute = Deadline::in(seconds(30));
  while (!half_a_minute.passed()) {
    const auto round = by_broker->work->round();
    ASSERT_TRUE(round) << "work does not need the broker: " << round.error().message();
    // The devices of an agent that is silent are held until it confirms, or its fence: it may run them still.
    const auto state = agent_client->lease({.gpus = 4, .ttl = seconds(60)}, patience());
    ASSERT_FALSE(state) << "granted twice";
    std::this_thread::sleep_for(milliseconds(100));
  }
  EXPECT_EQ(of_client->leases(), 0U) << "a client that is stopped renews nothing";
  auto next_holder = hold(*other_client, 4, seconds(60));
  EXPECT_TRUE(next_holder);
  for (const auto pid : stopped) ::kill(pid, SIGCONT);

  const auto ended = holder->wait(patience());
  ASSERT_TRUE(ended) << "who has lost its lease is told so";
  EXPECT_NE(cli::ChildProcess::exit_code(*ended), 0);
  EXPECT_TRUE(next_holder->work->round()) << "and does no harm to who has the devices now";

  EXPECT_TRUE(eventually([&] { return of_worker->workers().size() < 3; })) << "a stopped worker is killed";
  ASSERT_TRUE(eventually([&] { return of_worker->idle(); })) << "and its lease ends";
  by_worker.reset();
  EXPECT_TRUE(hold(*worker_client, 4, seconds(60)));

  ASSERT_TRUE(eventually([&] { return of_agent->idle(); })) << "the lease ended while its agent was silent";
  by_agent.reset();
  EXPECT_TRUE(hold(*agent_client, 4, seconds(60)));

  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(by_broker->work->round());
    ASSERT_FALSE(by_broker->lease->lost()) << by_broker->lease->lost()->message();
    std::this_thread::sleep_for(milliseconds(100));
  }
  EXPECT_EQ(of_broker->leases(), 1U) << "nobody could renew while the broker was stopped";
  for (auto* client : {broker_client.get(), worker_client.get(), agent_client.get(), other_client.get()})
    expect_single_holders(*client);
}

}  // namespace
}  // namespace cenote::pool::testing
