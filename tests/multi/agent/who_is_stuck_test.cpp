// `cenote who-is-stuck` over ranks that are processes: one that is stopped in the middle of an allreduce, one
// that never calls, one that calls something else, one that is gone.
#include <gmock/gmock.h>

#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/process.h"
#include "tests/multi/agent/cluster.h"
#include "tests/multi/collectives/ranks.h"

namespace cenote::collectives {
namespace {

using nlohmann::json;
using pool::testing::eventually;
using pool::testing::run_cenote;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// What one rank does in its group.
using Body = std::function<void(Communicator&)>;

constexpr std::size_t large = 4'000'000;

void reduce(Communicator& communicator, std::size_t count = 1000) {
  Bytes buffer(count * 4);
  (void)finish(communicator, communicator.allreduce(memory_of(buffer), memory_of(buffer), count,
                                                    CENOTE_FLOAT32, CENOTE_SUM));
}

[[noreturn]] void sleep_for_ever() {
  for (;;) ::pause();
}

/// Three processes, each a rank; none checks what the others call.
class WhoIsStuck : public ::testing::Test {
 protected:
  void start(Mode mode, const std::vector<Body>& bodies) {
    for (std::uint32_t r = 0; r < bodies.size(); ++r) {
      ranks.emplace_back([&, r](const std::string& id, const std::function<void()>& up) -> std::string {
        auto options = options_for(mode, r, static_cast<std::uint32_t>(bodies.size()));
        options.id = *UniqueId::parse(id);
        options.check = false;
        options.operation_timeout = std::chrono::minutes(5);
        auto communicator = Communicator::create(options);
        if (!communicator) return communicator.error().message();
        up();
        bodies[r](**communicator);
        sleep_for_ever();
      });
    }
    auto made = BootstrapRoot::create("127.0.0.1");
    ASSERT_TRUE(made.has_value());
    root = std::move(*made);
    for (auto& rank : ranks) rank.tell(root->id().text());
    for (const auto& rank : ranks) ASSERT_TRUE(rank.is_up());
  }

  [[nodiscard]] std::vector<std::string> words(std::vector<std::string> more) const {
    std::vector<std::string> all{"who-is-stuck", "--after", "0.3", "--pid", std::to_string(ranks[0].pid())};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// The verdict on this test's group.
  [[nodiscard]] json verdict() const {
    const auto result = run_cenote(words({"--json"}));
    EXPECT_EQ(result.exit_code, 0) << result.error;
    const auto verdicts = json::parse(result.output)["verdicts"];
    return verdicts.empty() ? json{{"stuck", false}, {"ranks", json::array()}, {"text", ""}} : verdicts[0];
  }
  /// Until the command blames these ranks; its sentence.
  [[nodiscard]] std::string blames(const json& whom) const {
    json last;
    EXPECT_TRUE(eventually([&] {
      last = verdict();
      return last["stuck"] == true && last["ranks"] == whom;
    })) << last.dump();
    return last["text"];
  }
  /// "rank 1 (who_is_stuck_te 1234 on ...": as far as the program's name.
  [[nodiscard]] std::string name(std::uint32_t rank) const {
    return "rank " + std::to_string(rank) + " (who_is_stuck_te " + std::to_string(ranks[rank].pid());
  }

  std::deque<RankProcess> ranks;
  std::unique_ptr<BootstrapRoot> root;
};

const Body reduces_for_ever = [](Communicator& communicator) {
  for (;;) reduce(communicator, large);
};
const Body reduces_once = [](Communicator& communicator) { reduce(communicator); };

TEST_F(WhoIsStuck, ARankThatIsStoppedInTheMiddleOfAnAllreduce) {
  for (const auto mode : {Mode::shm, Mode::tcp}) {
    ranks.clear();
    start(mode, {reduces_for_ever, reduces_for_ever, reduces_for_ever});
    if (HasFatalFailure()) return;
    EXPECT_FALSE(verdict()["stuck"]);
    ranks[1].kill(SIGSTOP);
    EXPECT_THAT(blames({1}),
                AllOf(HasSubstr("allreduce of 4000000 float32 by sum"), HasSubstr(name(1)),
                      HasSubstr("is stopped"), HasSubstr("kill -CONT " + std::to_string(ranks[1].pid()))));
    ranks[1].kill(SIGCONT);
    EXPECT_TRUE(eventually([&] { return verdict()["stuck"] == false; }));
  }
}

TEST_F(WhoIsStuck, ARankThatNeverCalls) {
  start(Mode::shm, {reduces_once, reduces_once, [](Communicator&) {}});
  EXPECT_THAT(blames({2}), AllOf(HasSubstr("operation 2, allreduce of 1000 float32 by sum"),
                                 HasSubstr(name(2)), HasSubstr("has not begun it: its last is 1")));
  const auto shown = run_cenote(words({"--strict"}));
  EXPECT_EQ(shown.exit_code, 1);
  EXPECT_THAT(shown.output, AllOf(HasSubstr("3 ranks of 3"), HasSubstr("nothing in flight"),
                                  HasSubstr("allreduce"), HasSubstr("stuck: operation 2")));
}

TEST_F(WhoIsStuck, ARankThatCallsSomethingElse) {
  start(Mode::tcp, {reduces_once,
                    [](Communicator& communicator) {
                      Bytes buffer(8000);
                      (void)finish(communicator,
                                   communicator.broadcast(memory_of(buffer), 2000, CENOTE_FLOAT32, 1));
                      reduce(communicator);
                    },
                    reduces_once});
  EXPECT_THAT(blames({1}), AllOf(HasSubstr("operation 2, allreduce of 1000 float32 by sum"),
                                 HasSubstr(name(1)), HasSubstr("calls")));
}

TEST_F(WhoIsStuck, ARankThatHasBegunAndComputes) {
  const Body reduces_much = [](Communicator& communicator) { reduce(communicator, large); };
  start(Mode::shm, {reduces_much,
                    [](Communicator& communicator) {
                      static Bytes buffer(large * 4);
                      (void)communicator.allreduce(memory_of(buffer), memory_of(buffer), large,
                                                   CENOTE_FLOAT32, CENOTE_SUM);
                    },
                    reduces_much});
  EXPECT_THAT(blames({1}), AllOf(HasSubstr(name(1)), HasSubstr("has made no call that moves it for")));
}

TEST_F(WhoIsStuck, ARankThatDied) {
  start(Mode::shm, {reduces_once, reduces_once, [](Communicator&) {}});
  ranks[2].kill(SIGKILL);
  EXPECT_THAT(blames({2}), AllOf(HasSubstr("the group has ended"), HasSubstr("rank 2")));
}

TEST_F(WhoIsStuck, RanksOfAnotherMachineComeFromAFile) {
  start(Mode::tcp, {reduces_once, reduces_once, [](Communicator&) {}});
  (void)blames({2});
  const auto folder = TemporaryFolder::create("cenote-test");
  ASSERT_TRUE(folder.has_value());
  const auto path = folder->file("node2.json");
  auto there = json::parse(run_cenote(words({"--json"})).output);
  for (auto& rank : there["ranks"]) {
    rank["host"] = "node2";
    rank["rank"] = rank["rank"].get<int>() + 3;
    rank["size"] = 6;
    if (rank["rank"] == 4) rank["state"] = "T";
  }
  std::ofstream(path) << there.dump();
  const auto merged = run_cenote(words({path, "--json"}));
  ASSERT_EQ(merged.exit_code, 0) << merged.error;
  EXPECT_EQ(json::parse(merged.output)["verdicts"][0]["ranks"], json({2, 4, 5}));
  std::ofstream(path) << "{}";
  const auto refused = run_cenote(words({path}));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.error, HasSubstr(path));
  EXPECT_EQ(run_cenote({"who-is-stuck", folder->file("none.json")}).exit_code, 1);
}

TEST_F(WhoIsStuck, NothingOfAProcessThatHasNone) {
  const auto result = run_cenote({"who-is-stuck", "--pid", std::to_string(::getpid())});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("no communicator"));
  EXPECT_EQ(run_cenote({"who-is-stuck", "--pid", "nobody"}).exit_code, 2);
  EXPECT_EQ(run_cenote({"who-is-stuck", "--after", "nan"}).exit_code, 2);
}

}  // namespace
}  // namespace cenote::collectives
