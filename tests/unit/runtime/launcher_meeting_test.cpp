// Ranks of a launcher that carries no data find each other by ports that they all know; a rank a thread.
#include "runtime/launcher_meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "runtime/bootstrap_find.h"
#include "runtime/frame_channel.h"
#include "runtime/tcp_socket.h"

namespace cenote::launcher {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

Deadline soon() { return Deadline::in(30s); }

Place place_of(std::uint32_t rank, std::uint32_t ranks, const std::string& job = "a test") {
  return {Kind::torchrun, rank, ranks, rank, ranks, "localhost", job};
}

/// What a rank that meets the others and joins them is told.
Result<void> take_part(const Place& place, const MeetingOptions& options, Deadline deadline = soon()) {
  CENOTE_ASSIGN(const auto meeting, meet(place, nullptr, options, deadline));
  CENOTE_ASSIGN(const auto group, Bootstrap::join(meeting.id, place.rank, place.ranks, deadline));
  CENOTE_ASSIGN(const auto all, group->allgather(as_bytes(place.job), deadline));
  for (const auto& job : all)
    if (as_text(job) != place.job)
      return fail(ErrorCode::internal, "meet", "a rank of " + std::string(as_text(job)));
  return group->barrier(deadline);
}

/// A listener that takes connections and says `answer`, whatever it is asked.
class Stranger {
 public:
  Stranger(std::uint16_t port, std::string answer)
      : listener_(listen_on({"127.0.0.1", port}, 8).value()),
        answer_(std::move(answer)),
        thread_([this] { serve(); }) {}

 private:
  void serve() {
    std::vector<FrameChannel> held;
    while (!stop_.raised()) {
      if (auto fd = accept_from(listener_.get()); fd && *fd) {
        held.emplace_back(std::move(*fd), 4096);
        if (!answer_.empty()) held.back().queue(as_bytes(answer_));
        held.back().flush();
      }
      std::this_thread::sleep_for(1ms);
    }
  }
  struct Stop {
    CancelFlag& flag;
    ~Stop() { flag.raise(); }
  };
  UniqueFd listener_;
  std::string answer_;
  CancelFlag stop_;
  std::jthread thread_;
  Stop stop_first_{stop_};
};

TEST(GroupKey, DiffersBetweenJobsAndGroupsAndIsTheSameForAllRanks) {
  EXPECT_EQ(group_key("a", "b").secret, group_key("a", "b").secret);
  EXPECT_EQ(group_key("a", "b").ports, group_key("a", "b").ports);
  std::set<std::array<std::uint8_t, 16>> secrets;
  std::set<std::uint16_t> first;
  for (int job = 0; job < 300; ++job) {
    for (const auto* group : {"world", "b"}) {
      const auto key = group_key("slurm here " + std::to_string(job) + ".0 ", group);
      EXPECT_TRUE(secrets.insert(key.secret).second);
      first.insert(key.ports[0]);
      const std::set<std::uint16_t> ports(key.ports.begin(), key.ports.end());
      EXPECT_EQ(ports.size(), key.ports.size());
      EXPECT_GE(*ports.begin(), 61000);
    }
  }
  EXPECT_GT(first.size(), 500U);
  EXPECT_NE(group_key("a", "bc").secret, group_key("ab", "c").secret);
}

TEST(Meeting, RanksThatComeInAnyOrderMeet) {
  std::vector<std::jthread> ranks;
  for (std::uint32_t rank : {2U, 1U, 3U, 0U}) {
    ranks.emplace_back([rank] {
      const auto met = take_part(place_of(rank, 4, "any order"), {});
      EXPECT_TRUE(met) << met.error().message();
    });
    std::this_thread::sleep_for(30ms);
  }
}

TEST(Meeting, TwoJobsOnOneMachineDoNotMeetEvenAtTheSamePorts) {
  // The second job's first port is the first job's: what a search asks there is refused, and it goes on.
  const auto other = BootstrapRoot::create_at("127.0.0.1", std::array{group_key("job b", "world").ports[0]},
                                              group_key("job a", "world").secret);
  ASSERT_TRUE(other) << other.error().message();
  std::vector<std::jthread> ranks;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([rank] {
      const auto met = take_part(place_of(rank, 3, "job b"), {});
      EXPECT_TRUE(met) << met.error().message();
    });
  }
}

TEST(Meeting, TwoGroupsOfOneJobFormAtOnce) {
  std::vector<std::jthread> ranks;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    for (const auto* group : {"world", "rows"}) {
      ranks.emplace_back([rank, group] {
        const auto met = take_part(place_of(rank, 2, "two groups"), {.group = group});
        EXPECT_TRUE(met) << met.error().message();
      });
    }
  }
}

TEST(Meeting, WhoListensAtTheFirstPortsAndIsNoneOfOursIsPassedOver) {
  const auto ports = group_key("strangers", "world").ports;
  const Stranger mute(ports[0], "");
  const Stranger talks(ports[1], "HTTP/1.1 400 Bad Request");
  std::jthread root([] { EXPECT_TRUE(take_part(place_of(0, 2, "strangers"), {})); });
  const auto met = take_part(place_of(1, 2, "strangers"), {});
  EXPECT_TRUE(met) << met.error().message();
}

TEST(Meeting, ARankZeroThatNeverComesIsNamedWithWhatWasMet) {
  const auto ports = group_key("alone", "world").ports;
  const auto other = BootstrapRoot::create_at("127.0.0.1", std::array{ports[2]}, {});
  ASSERT_TRUE(other);
  const auto began = Clock::now();
  const auto met = take_part(place_of(1, 2, "alone"), {}, Deadline::in(300ms));
  ASSERT_FALSE(met);
  EXPECT_EQ(met.error().code, ErrorCode::deadline_exceeded);
  EXPECT_THAT(
      met.error().message(),
      AllOf(HasSubstr("rank 0 has not arrived"), HasSubstr(std::to_string(ports[0])),
            HasSubstr("Connection refused"),
            HasSubstr(std::to_string(ports[2]) + " (a group of another job)"), HasSubstr("launcher_port")));
  EXPECT_LT(Clock::now() - began, 5s);
}

TEST(Meeting, AnotherRankThatNeverComesIsNamed) {
  std::jthread one([] { (void)take_part(place_of(1, 3, "two of three"), {}, Deadline::in(500ms)); });
  const auto met = take_part(place_of(0, 3, "two of three"), {}, Deadline::in(500ms));
  ASSERT_FALSE(met);
  EXPECT_EQ(met.error().code, ErrorCode::deadline_exceeded);
  EXPECT_THAT(met.error().message(), HasSubstr("rank 2 of 3 has not arrived"));
}

TEST(Meeting, ASetPortIsTheOnlyOne) {
  const auto free_port = local_address(listen_on({"127.0.0.1", 0}, 1)->get())->port;
  std::jthread one([free_port] { EXPECT_TRUE(take_part(place_of(1, 2, "set"), {.port = free_port})); });
  const auto met = take_part(place_of(0, 2, "set"), {.port = free_port});
  EXPECT_TRUE(met) << met.error().message();
  const auto taken = listen_on({"127.0.0.1", 0}, 1).value();
  const auto refused = take_part(place_of(0, 2), {.port = local_address(taken.get())->port});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::already_exists);
  EXPECT_THAT(refused.error().message(), HasSubstr("launcher_port"));
}

TEST(Meeting, AGroupThatStandsIsWaitedForUntilItsPortsAreFree) {
  // A rank that is through may form the next group of the same name while rank 0 still holds the first root.
  const auto key = group_key("again", "world");
  auto root = BootstrapRoot::create_at("127.0.0.1", key.ports, key.secret).value();
  ASSERT_TRUE(Bootstrap::join(root->id(), 0, 1, soon()));
  std::atomic<bool> ended{false};
  std::jthread next([&] {
    const auto found = bootstrap::find_root("127.0.0.1", key.ports, key.secret, soon());
    EXPECT_TRUE(found) << found.error().message();
    EXPECT_TRUE(ended);
  });
  std::this_thread::sleep_for(100ms);
  ended = true;
  root.reset();
  root = BootstrapRoot::create_at("127.0.0.1", key.ports, key.secret).value();
  next.join();
}

TEST(Meeting, NamesOfGroupsArePlain) {
  for (const auto* group : {"", "a b", "a/b", "a\n"}) {
    const auto met = meet(place_of(0, 2), nullptr, {.group = group}, soon());
    ASSERT_FALSE(met) << group;
    EXPECT_EQ(met.error().code, ErrorCode::invalid_argument);
  }
  EXPECT_FALSE(meet(place_of(0, 2), nullptr, {.group = std::string(65, 'a')}, soon()));
}

TEST(Meeting, ARankZeroWhoseMachineHasNoAddressIsToldWhatToSet) {
  auto place = place_of(0, 2);
  place.local_ranks = 1;
  place.root_host = "no such machine";
  const auto unknown = meet(place, nullptr, {}, soon());
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::not_found);
  EXPECT_THAT(unknown.error().message(), AllOf(HasSubstr("no such machine"), HasSubstr("as host")));
  const auto met = meet(place, nullptr, {.host = "127.0.0.1"}, soon());
  ASSERT_TRUE(met) << met.error().message();
  EXPECT_EQ(met->id.host, "127.0.0.1");
}

TEST(Pmix, WithoutItsLibraryOrItsServerSaysWhatIsMissing) {
  const auto absent = Pmix::open("libnot-there.so.2");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::not_supported);
  EXPECT_THAT(absent.error().message(), AllOf(HasSubstr("libnot-there.so.2"), HasSubstr("libpmix2")));
  const auto other = Pmix::open("libfmt.so.9");
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message(), HasSubstr("has no function PMIx_Init"));
}

}  // namespace
}  // namespace cenote::launcher
