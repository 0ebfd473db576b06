// The main job while its processes die at random moments: what goes on, what ends with whose name, and that
// nothing is granted twice, lost or left behind. By the demo's own --kill, and by somebody it does not know
// of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "pool/broker/journal.h"
#include "pool/store/sqlite.h"
#include "tests/fault_row.h"
#include "tests/multi/agent/demo_process.h"
#include "tests/multi/agent/limits.h"

namespace cenote::pool::testing {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

using FloatMilliseconds = std::chrono::duration<double, std::milli>;
constexpr FloatMilliseconds kClientTtl = std::chrono::seconds(5);

void expect_trained(const DemoProcess& demo) {
  const auto figures = demo.figures();
  ASSERT_TRUE(figures.is_object()) << demo.output() << demo.error();
  EXPECT_GE(figures["test_accuracy"], 0.95);
  EXPECT_EQ(figures["weights_bit_equal"], true);
}

/// The broker's log, decision by decision: who holds each device at every moment.
class Log {
 public:
  explicit Log(const std::string& folder) {
    auto store = open_sqlite_store(folder + "/broker/broker.db");
    EXPECT_TRUE(store) << store.error().message();
    if (!store) return;
    auto found = (*store)->recover();
    EXPECT_TRUE(found) << found.error().message();
    EXPECT_EQ(found->snapshot_sequence, 0U) << "short enough to be read from its beginning";
    for (const auto& record : found->records) replay(record);
    EXPECT_EQ(records, found->records.size());
  }
  State state;
  std::size_t records = 0, terms = 0, grants = 0;
  std::vector<EndCause> ends;  ///< of leases, in the order in which they ended

 private:
  void replay(const Record& record) {
    const auto command = decode_command(record.command);
    ASSERT_TRUE(command) << command.error().message();
    terms += std::holds_alternative<command::StartTerm>(*command) ? 1 : 0;
    if (const auto* grant = std::get_if<command::Grant>(&*command)) {
      ++grants;
      // Seen from outside of the state machine that is to be checked: a set of our own.
      for (const auto& share : grant->shares)
        EXPECT_TRUE(held_.emplace(share.device, grant->lease_id).second)
            << share.device << " was granted to " << grant->lease_id << " while " << held_[share.device]
            << " held it";
    }
    if (const auto* end = std::get_if<command::End>(&*command)) ends.push_back(end->cause);
    const auto events = apply(state, *command, record.unix_ms);
    ASSERT_TRUE(events) << events.error().message();
    for (const auto& event : *events) {
      if (event.kind == Event::Kind::device_freed) held_.erase(event.device);
    }
    ++records;
  }
  std::map<std::string, std::string> held_;  ///< device, lease
};

std::string kept_folder(const DemoProcess& demo) {
  const auto left = demo.left();
  EXPECT_EQ(left.size(), 1U);
  return left.empty() ? "" : demo.temporary() + "/" + left.front();
}

TEST(DemoKill, ABrokerThatDiesAgainAndAgainCostsNeitherTheTrainingNorTheLease) {
  constexpr int kKills = 4;
  DemoProcess demo({"--kill", "broker", "--kills", std::to_string(kKills), "--keep"});
  ASSERT_EQ(demo.end(), 0) << demo.output() << demo.error();
  expect_trained(demo);
  const auto kills = demo.figures()["kills"];
  ASSERT_EQ(kills.size(), static_cast<std::size_t>(kKills));
  for (const auto& kill : kills) {
    EXPECT_EQ(kill["victim"], "broker");
    EXPECT_GT(kill["steps_away"], 0) << "training went on";
    EXPECT_GT(kill["away_ms"], 0);
    EXPECT_THAT(kill["refusal"].get<std::string>(), HasSubstr("no free GPU: 4 of 4 leased"));
    for (const auto* other : {"heard_ms", "error", "freed_ms", "workers_gone"})
      EXPECT_FALSE(kill.contains(other)) << other;
  }
  const Log log(kept_folder(demo));
  EXPECT_EQ(log.terms, kKills + 1U);
  cenote::test::tried({"The demo", "the broker is killed while it trains", kKills,
                       "the training goes on, and its lease is kept", "so"});
  EXPECT_EQ(log.grants, 1U) << "one lease, from the beginning to the end";
  EXPECT_THAT(log.ends, ElementsAre(EndCause::released)) << "no restart lost it";
}

// The demo does not know: somebody kills its broker, and starts the same command line again.
TEST(DemoKill, ABrokerKilledAndRestartedFromOutsideIsNoticedByNobody) {
  const auto seed = std::random_device{}();
  std::mt19937 random{seed};
  const auto moment = [&](int most_ms) {
    std::this_thread::sleep_for(milliseconds(std::uniform_int_distribution<int>(0, most_ms)(random)));
  };
  DemoProcess demo({"--epochs", "60", "--keep"});
  ASSERT_TRUE(demo.has_said("training on four GPUs")) << demo.output() << demo.error();
  const auto victim = demo.child_named("broker");
  ASSERT_GT(victim, 0);
  auto words = DemoProcess::command_line(victim);
  words.front() = kCenote;                                   // it was /proc/self/exe, which is this test here
  for (const auto* option : {"--die-with", "--ready-fd"}) {  // its parent is another, and waits for nothing
    const auto at = std::ranges::find(words, option);
    ASSERT_NE(at, words.end());
    words.erase(at, at + 2);
  }
  cli::ChildProcess broker;
  unsigned kills = 0;
  for (; kills < 3 && demo.child().running(); ++kills) {
    moment(300);
    // Only once by its number, which is its own while the demo has not reaped it.
    if (kills == 0) {
      ::kill(victim, SIGKILL);
      ASSERT_TRUE(eventually([&] { return !cli::is_running(victim); }));
    }
    broker = {};  // the one before, by SIGKILL
    moment(300);
    cli::ChildOptions options;
    options.command = words;
    options.without = "CENOTE_";
    auto started = cli::ChildProcess::start(options);
    ASSERT_TRUE(started) << started.error().message();
    broker = std::move(*started);
  }
  ASSERT_EQ(demo.end(), 0) << "seed " << seed << demo.output() << demo.error();
  EXPECT_GT(kills, 0U);
  EXPECT_TRUE(broker.running()) << "it came up on the folder and the port of the one that was killed";
  broker.end(std::chrono::seconds(10));
  expect_trained(demo);
  const Log log(kept_folder(demo));
  EXPECT_GE(log.terms, 2U);
  EXPECT_EQ(log.grants, 1U);
  EXPECT_THAT(log.ends, ElementsAre(EndCause::released)) << "no restart lost it, seed " << seed;
}

void expect_named_and_freed(const json& kill, const std::string& victim) {
  EXPECT_THAT(kill["victim"].get<std::string>(), HasSubstr(victim));
  const auto name = kill["victim"].get<std::string>();
  const auto node = name.substr(name.rfind(' ') + 1);
  EXPECT_THAT(
      kill["error"].get<std::string>(),
      AllOf(ContainsRegex("rank [0-3] \\(lease [0-9a-f]+ gpu [0-3] "), HasSubstr(" on " + node + ")")));
  EXPECT_EQ(kill["workers_gone"], 3) << "of all three agents";
  for (const auto* other : {"away_ms", "steps_away", "epochs_away", "refusal"})
    EXPECT_FALSE(kill.contains(other)) << other;
}

void expect_heard_soon(const json& kills) {
  std::vector<double> heard_ms;
  for (const auto& kill : kills) {
    heard_ms.push_back(kill["heard_ms"]);
    EXPECT_LE(heard_ms.back(), FloatMilliseconds(kHeardByAll).count()) << kill["victim"];
  }
  EXPECT_LE(median(heard_ms), FloatMilliseconds(kHeardByHalf).count()) << kills;
}

TEST(DemoKill, AWorkerThatDiesIsNamedWithItsRankAndItsLeaseIsFree) {
  DemoProcess demo({"--kill", "worker", "--kills", "3", "--epochs", "12"});
  ASSERT_EQ(demo.end(), 0) << demo.output() << demo.error();
  expect_trained(demo);
  const auto kills = demo.figures()["kills"];
  ASSERT_EQ(kills.size(), 3U);
  for (const auto& kill : kills) expect_named_and_freed(kill, "worker of node");
  expect_heard_soon(kills);
  EXPECT_THAT(demo.left(), IsEmpty());
}

TEST(DemoKill, AnAgentThatDiesIsNamedWithItsRankAndServesAgainWhenItIsBack) {
  DemoProcess demo({"--kill", "agent", "--kills", "3", "--epochs", "12"});
  ASSERT_EQ(demo.end(), 0) << demo.output() << demo.error();
  expect_trained(demo);
  const auto kills = demo.figures()["kills"];
  ASSERT_EQ(kills.size(), 3U);
  for (const auto& kill : kills) expect_named_and_freed(kill, "agent node");
  expect_heard_soon(kills);
  EXPECT_THAT(demo.left(), IsEmpty());
}

TEST(DemoKill, TheLeaseOfAClientThatDiesIsReclaimedOnceItsTimeToLiveIsOver) {
  DemoProcess demo({"--kill", "client", "--kills", "3", "--epochs", "12"});
  ASSERT_EQ(demo.end(), 0) << demo.output() << demo.error();
  expect_trained(demo);
  const auto kills = demo.figures()["kills"];
  ASSERT_EQ(kills.size(), 3U);
  std::vector<double> freed_ms;
  for (const auto& kill : kills) {
    freed_ms.push_back(kill["freed_ms"]);
    EXPECT_EQ(kill["workers_gone"], 3) << "which its lease had kept until then";
    for (const auto* other : {"step", "away_ms", "refusal", "heard_ms", "error"})
      EXPECT_FALSE(kill.contains(other)) << other;
  }
  // Expiry, drift and a heartbeat.
  EXPECT_LE(median(freed_ms), (kClientTtl + kHeardByHalf).count()) << kills;
  EXPECT_GT(demo.figures()["grant_ms"], 0);
  EXPECT_THAT(demo.left(), IsEmpty());
}

TEST(DemoKill, AWorkerKilledFromOutsideEndsTheDemoWithOneLineThatNamesDeviceAndRank) {
  const auto seed = std::random_device{}();
  std::mt19937 random{seed};
  for (int kill = 0; kill < 3; ++kill) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    DemoProcess demo({"--epochs", "10000"});
    ASSERT_TRUE(demo.has_said("training on four GPUs"));
    const auto node = "node" + std::to_string(1 + kill);
    const auto workers = children_of(demo.child_named(node));
    ASSERT_EQ(workers.size(), 1U);
    auto everything = children_of(demo.child().pid());
    for (const auto agent : std::vector(everything)) {
      for (const auto worker : children_of(agent)) everything.push_back(worker);
    }
    std::this_thread::sleep_for(milliseconds(std::uniform_int_distribution<int>(0, 300)(random)));
    ::kill(workers.front(), SIGKILL);
    EXPECT_EQ(demo.end(), 1);
    const auto error = demo.error();
    EXPECT_THAT(error, AllOf(StartsWith("cenote demo: "), HasSubstr(" on " + node + ")"),
                             ContainsRegex("rank [0-3] ")));
    EXPECT_LE(std::ranges::count(error, '\n'), 2) << "one line, and one more that says what to do: " << error;
    for (const auto pid : everything) EXPECT_TRUE(eventually([&] { return !alive(pid); })) << pid;
    EXPECT_THAT(demo.left(), IsEmpty());
    EXPECT_FALSE(std::filesystem::exists(demo.figures_path()));
  }
}

}  // namespace
}  // namespace cenote::pool::testing
