#include "runtime/bootstrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <numeric>
#include <random>
#include <thread>

#include "runtime/bootstrap_wire.h"
#include "runtime/process.h"
#include "runtime/tcp_socket.h"

namespace cenote {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

Deadline soon() { return Deadline::in(60s); }

std::unique_ptr<BootstrapRoot> make_root() {
  auto root = BootstrapRoot::create("127.0.0.1");
  EXPECT_TRUE(root) << root.error().message();
  return std::move(*root);
}

Bytes bytes_of(std::string_view text) {
  const auto view = as_bytes(text);
  return {view.begin(), view.end()};
}

/// What rank r contributes: r % 7 copies of a letter, so that lengths differ and some are empty.
Bytes contribution(std::uint32_t rank) {
  return Bytes(rank % 7, static_cast<std::byte>('a' + static_cast<int>(rank % 26)));
}

/// Runs one thread for each rank, started in a shuffled order; `body` gets a joined group.
void with_ranks(std::uint32_t size, const std::function<void(Bootstrap&)>& body, unsigned seed = 1) {
  const auto root = make_root();
  std::vector<std::uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  std::vector<std::jthread> threads;
  threads.reserve(size);
  for (const auto rank : order) {
    threads.emplace_back([&, rank] {
      auto group = Bootstrap::join(root->id(), rank, size, soon());
      ASSERT_TRUE(group) << group.error().message();
      body(**group);
    });
  }
}

class BootstrapSizes : public testing::TestWithParam<std::uint32_t> {};

TEST_P(BootstrapSizes, EveryRankSeesEveryContributionInEveryRound) {
  const auto size = GetParam();
  std::atomic<std::uint32_t> finished{0};
  with_ranks(
      size,
      [&](Bootstrap& group) {
        EXPECT_EQ(group.size(), size);
        for (int round = 0; round < 3; ++round) {
          const auto all =
              group.allgather(contribution(group.rank() + static_cast<std::uint32_t>(round)), soon());
          ASSERT_TRUE(all) << all.error().message();
          ASSERT_EQ(all->size(), size);
          for (std::uint32_t r = 0; r < size; ++r)
            EXPECT_EQ((*all)[r], contribution(r + static_cast<std::uint32_t>(round)));
          const auto told = group.broadcast(
              bytes_of("round " + std::to_string(round) + " of " + std::to_string(group.rank())), soon());
          ASSERT_TRUE(told) << told.error().message();
          EXPECT_EQ(as_text(*told), "round " + std::to_string(round) + " of 0");
          const auto met = group.barrier(soon());
          ASSERT_TRUE(met) << met.error().message();
        }
        ++finished;
      },
      size);
  EXPECT_EQ(finished, size);
}

INSTANTIATE_TEST_SUITE_P(Bootstrap, BootstrapSizes, testing::Values(1, 2, 3, 8, 9, 10, 17, 33));

TEST(Bootstrap, BarrierLetsNobodyGoBeforeTheLastIsThere) {
  std::atomic<std::uint32_t> arrived{0};
  with_ranks(11, [&](Bootstrap& group) {
    for (std::uint32_t round = 1; round <= 5; ++round) {
      ++arrived;
      ASSERT_TRUE(group.barrier(soon()));
      EXPECT_GE(arrived.load(), round * 11);
      ASSERT_TRUE(group.barrier(soon()));
    }
  });
}

TEST(Bootstrap, CarriesTheLargestContributionsAndRefusesLargerOnes) {
  with_ranks(10, [](Bootstrap& group) {
    const Bytes mine(1U << 20U, static_cast<std::byte>(group.rank()));
    const auto all = group.allgather(mine, soon());
    ASSERT_TRUE(all) << all.error().message();
    EXPECT_EQ(all->back(), Bytes(1U << 20U, std::byte{9}));
  });
  with_ranks(1, [](Bootstrap& group) {
    const auto all = group.allgather(Bytes((1U << 20U) + 1), soon());
    ASSERT_FALSE(all);
    EXPECT_EQ(all.error().code, ErrorCode::invalid_argument);
  });
}

TEST(Bootstrap, BroadcastRunsAheadOfSlowReaders) {
  with_ranks(9, [](Bootstrap& group) {
    for (int i = 0; i < 50; ++i) {
      const auto told = group.broadcast(Bytes(100'000, static_cast<std::byte>(i)), soon());
      ASSERT_TRUE(told) << told.error().message();
      ASSERT_EQ(*told, Bytes(100'000, static_cast<std::byte>(i)));
    }
  });
}

TEST(Bootstrap, JoinNamesTheRanksThatHaveNotArrived) {
  const auto root = make_root();
  std::vector<std::jthread> threads;
  for (const std::uint32_t rank : {0U, 1U, 2U, 4U, 5U, 6U}) {
    threads.emplace_back([&root, rank] {
      const auto group = Bootstrap::join(root->id(), rank, 8, Deadline::in(6s));
      ASSERT_FALSE(group);
      EXPECT_EQ(group.error().code, ErrorCode::deadline_exceeded);
      EXPECT_THAT(group.error().message(), HasSubstr("ranks 3, 7 of 8 have not arrived"));
      EXPECT_THAT(group.error().message(), HasSubstr("more time to form"));
    });
  }
}

TEST(Bootstrap, OrphansOfAMissingParentNameItToo) {
  const auto root = make_root();
  const auto group = Bootstrap::join(root->id(), 9, 10, Deadline::in(3s));
  ASSERT_FALSE(group);
  EXPECT_THAT(group.error().message(), HasSubstr("ranks 0-8 of 10 have not arrived"));
}

TEST(Bootstrap, ARankThatLeftBeforeTheGroupStoodMayComeBack) {
  const auto root = make_root();
  for (const std::uint32_t rank : {0U, 1U}) {
    const auto early = Bootstrap::join(root->id(), rank, 10, Deadline::in(50ms));
    ASSERT_FALSE(early);
    EXPECT_EQ(early.error().code, ErrorCode::deadline_exceeded);
  }
  std::vector<std::jthread> threads;
  for (std::uint32_t rank = 0; rank < 10; ++rank)
    threads.emplace_back([&root, rank] {
      const auto group = Bootstrap::join(root->id(), rank, 10, soon());
      ASSERT_TRUE(group) << group.error().message();
      EXPECT_TRUE((*group)->barrier(soon()));
    });
}

/// Progresses `channel` until a frame of `kind` comes; others are passed over.
Bytes await(FrameChannel& channel, bootstrap::Kind kind) {
  for (const auto deadline = soon(); !deadline.passed() && !channel.closed(); std::this_thread::yield()) {
    channel.flush();
    channel.fill();
    for (auto frame = channel.next(); frame && *frame; frame = channel.next())
      if ((**frame)[0] == static_cast<std::byte>(kind)) return **frame;
  }
  ADD_FAILURE() << "no frame of kind " << static_cast<int>(kind) << ": " << channel.close_cause();
  return {};
}

Writer greeting(bootstrap::Kind kind, const UniqueId& id, std::uint32_t rank, std::uint32_t size) {
  Writer hello;
  hello.put(kind).put(bootstrap::magic);
  for (const auto byte : id.secret) hello.put(byte);
  hello.put(rank).put(size);
  return hello;
}

/// A rank by hand: registered when this returns, for as long as the channel lives.
FrameChannel register_rank(const BootstrapRoot& root, std::uint32_t rank, std::uint32_t size) {
  auto fd = start_connecting({root.id().host, root.id().port});
  EXPECT_TRUE(fd);
  FrameChannel channel(std::move(*fd), 4096);
  channel.queue(greeting(bootstrap::Kind::hello, root.id(), rank, size).put(std::uint16_t{9}).bytes());
  channel.queue(Writer().put(bootstrap::Kind::ask_missing).bytes());
  await(channel, bootstrap::Kind::missing);
  return channel;
}

/// Where the parent of a rank made by hand listens.
SocketAddress parent_of(FrameChannel& rank) {
  rank.queue(Writer().put(bootstrap::Kind::ask_parent).bytes());
  const auto frame = await(rank, bootstrap::Kind::parent_at);
  Reader reader(frame);
  (void)reader.get<bootstrap::Kind>();
  SocketAddress at{reader.text(), 0};
  at.port = reader.get<std::uint16_t>();
  EXPECT_TRUE(reader.finished());
  return at;
}

TEST(Bootstrap, JoinDoesNotNameARankThatGaveUpAmongThoseThatNeverCame) {
  const auto root = make_root();
  (void)register_rank(*root, 1, 3);
  const auto group = Bootstrap::join(root->id(), 0, 3, Deadline::in(1s));
  ASSERT_FALSE(group);
  EXPECT_THAT(group.error().message(), HasSubstr("rank 2 of 3 has not arrived"));
}

TEST(Bootstrap, RefusesASecondRankOfTheSameNumber) {
  const auto root = make_root();
  const auto first = register_rank(*root, 1, 3);
  const auto second = Bootstrap::join(root->id(), 1, 3, soon());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::already_exists);
  EXPECT_THAT(second.error().message(), HasSubstr("rank 1 is already there, from 127.0.0.1"));
}

TEST(Bootstrap, RefusesTheWrongSecretTheWrongSizeAndImpossibleRanks) {
  const auto root = make_root();
  auto forged = root->id();
  forged.secret[15] ^= 1;
  const auto stranger = Bootstrap::join(forged, 0, 2, soon());
  ASSERT_FALSE(stranger);
  EXPECT_EQ(stranger.error().code, ErrorCode::permission_denied);

  const auto honest = register_rank(*root, 0, 2);
  const auto other = Bootstrap::join(root->id(), 1, 3, soon());
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(other.error().message(), HasSubstr("it expects 3 ranks, the others expect 2"));
  const auto impossible = Bootstrap::join(root->id(), 2, 2, soon());
  ASSERT_FALSE(impossible);
  EXPECT_EQ(impossible.error().code, ErrorCode::invalid_argument);
}

TEST(Bootstrap, AGroupThatStandsTakesNobodyMore) {
  const auto root = make_root();
  std::jthread other([&] { ASSERT_TRUE(Bootstrap::join(root->id(), 1, 2, soon())); });
  const auto group = Bootstrap::join(root->id(), 0, 2, soon());
  ASSERT_TRUE(group) << group.error().message();
  other.join();
  const auto late = Bootstrap::join(root->id(), 1, 2, soon());
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::already_exists);
}

TEST(Bootstrap, CancelEndsJoinAndCollectivesAtOnce) {
  const auto root = make_root();
  CancelFlag cancel;
  std::latch waiting(1);
  std::jthread rank1([&] {
    auto group = Bootstrap::join(root->id(), 1, 2, soon(), &cancel);
    ASSERT_TRUE(group) << group.error().message();
    waiting.count_down();
    const auto met = (*group)->barrier(soon());
    ASSERT_FALSE(met);
    EXPECT_EQ(met.error().code, ErrorCode::cancelled);
    const auto again = (*group)->barrier(soon());  // the first failure stays
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().message(), met.error().message());
  });
  auto group = Bootstrap::join(root->id(), 0, 2, soon());
  ASSERT_TRUE(group) << group.error().message();
  waiting.wait();
  cancel.raise();
  rank1.join();
  const auto met = (*group)->barrier(soon());
  ASSERT_FALSE(met);
  EXPECT_EQ(met.error().peer, "rank 1");
  EXPECT_THAT(met.error().message(), HasSubstr("rank 1: cancelled"));

  const auto joined = Bootstrap::join(make_root()->id(), 0, 2, soon(), &cancel);
  ASSERT_FALSE(joined);
}

TEST(Bootstrap, ADeadRankIsNamedByEveryOther) {
  for (const std::uint32_t dead : {0U, 1U, 8U, 9U, 16U}) {
    SCOPED_TRACE(dead);
    const auto root = make_root();
    std::atomic<int> named{0};
    {
      std::vector<std::jthread> threads;
      for (std::uint32_t rank = 0; rank < 17; ++rank)
        threads.emplace_back([&, rank] {
          auto group = Bootstrap::join(root->id(), rank, 17, soon());
          ASSERT_TRUE(group) << group.error().message();
          ASSERT_TRUE((*group)->barrier(soon()));
          if (rank == dead) return;  // gone in the middle
          const auto all = (*group)->allgather(contribution(rank), soon());
          ASSERT_FALSE(all);
          EXPECT_EQ(all.error().code, ErrorCode::peer_failed);
          EXPECT_EQ(all.error().peer, "rank " + std::to_string(dead)) << all.error().message();
          ++named;
        });
    }
    EXPECT_EQ(named, 16);
  }
}

TEST(Bootstrap, ASilentRankIsNamedWhenTheDeadlinePasses) {
  std::latch over(10);
  with_ranks(11, [&](Bootstrap& group) {
    if (group.rank() == 9) return over.wait();  // alive, and never calls; child of rank 1
    const auto met = group.barrier(group.rank() == 0 ? Deadline::in(6s) : soon());
    over.count_down();
    ASSERT_FALSE(met);
    EXPECT_THAT(met.error().message(), HasSubstr("rank 9 of 11 has not taken part"));
    EXPECT_EQ(met.error().code, group.rank() == 0 ? ErrorCode::deadline_exceeded : ErrorCode::peer_failed);
    EXPECT_EQ(met.error().peer, "rank 9");
  });
}

TEST(Bootstrap, DifferentCallsAreReportedNotMixedUp) {
  with_ranks(2, [](Bootstrap& group) {
    auto outcome = group.rank() == 0 ? group.barrier(soon())
                                     : Result<void>(group.allgather({}, soon()).map([](auto&&) {}));
    ASSERT_FALSE(outcome);
    EXPECT_THAT(outcome.error().message(), HasSubstr("the same calls in the same order"));
  });
}

/// Sends `bytes` as a stranger and keeps the connection.
UniqueFd intrude(const SocketAddress& at, std::span<const std::byte> bytes) {
  auto fd = start_connecting(at);
  EXPECT_TRUE(fd);
  FrameChannel channel(std::move(*fd), 1024);
  channel.queue(std::make_shared<const Bytes>(bytes.begin(), bytes.end()));
  for (int i = 0; i < 1000 && channel.unsent() && !channel.closed(); ++i) channel.flush();
  return UniqueFd(::dup(channel.fd()));
}

/// Random bytes, HTTP, a huge length, and every prefix and single-byte corruption of `hello`.
std::vector<UniqueFd> molest(const SocketAddress& at, std::span<const std::byte> hello) {
  std::vector<UniqueFd> intruders;
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) {
    Bytes garbage(random() % 600);
    for (auto& byte : garbage) byte = static_cast<std::byte>(random());
    intruders.push_back(intrude(at, garbage));
  }
  intruders.push_back(intrude(at, as_bytes("GET / HTTP/1.1\r\n\r\n")));
  const std::uint32_t huge = 0xffffffff;
  intruders.push_back(intrude(at, std::as_bytes(std::span(&huge, 1))));
  const auto frame = *make_frame(hello);
  for (std::size_t cut = 0; cut < frame.size(); ++cut) {
    intruders.push_back(intrude(at, std::span(frame).first(cut)));
    auto corrupt = frame;
    corrupt[cut] ^= std::byte{0x55};
    intruders.push_back(intrude(at, corrupt));
  }
  return intruders;
}

TEST(Bootstrap, StrangersGarbageAndPortScannersDoNotDisturbTheRoot) {
  const auto root = make_root();
  auto forged = root->id();
  forged.secret = {};
  const auto hello = greeting(bootstrap::Kind::hello, forged, 1, 3).put(std::uint16_t{9}).take();
  const auto intruders = molest({root->id().host, root->id().port}, hello);
  std::vector<std::jthread> threads;
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    threads.emplace_back([&root, rank] {
      auto group = Bootstrap::join(root->id(), rank, 3, soon());
      ASSERT_TRUE(group) << group.error().message();
      EXPECT_TRUE((*group)->barrier(soon()));
    });
}

TEST(Bootstrap, StrangersDoNotDisturbARankThatWaitsForItsChildren) {
  const auto root = make_root();
  std::jthread rank0([&root] {
    auto group = Bootstrap::join(root->id(), 0, 2, soon());
    ASSERT_TRUE(group) << group.error().message();
    EXPECT_TRUE((*group)->barrier(soon()));
  });
  std::vector<UniqueFd> intruders;
  {
    auto by_hand = register_rank(*root, 1, 2);
    const auto at = parent_of(by_hand);
    auto forged = root->id();
    forged.secret = {};
    intruders = molest(at, greeting(bootstrap::Kind::child_hello, forged, 1, 2).take());
    // The secret alone is not enough: nobody's child, another group's size.
    intruders.push_back(
        intrude(at, *make_frame(greeting(bootstrap::Kind::child_hello, root->id(), 9, 2).take())));
    intruders.push_back(
        intrude(at, *make_frame(greeting(bootstrap::Kind::child_hello, root->id(), 1, 3).take())));
  }
  auto group = Bootstrap::join(root->id(), 1, 2, soon());
  ASSERT_TRUE(group) << group.error().message();
  EXPECT_TRUE((*group)->barrier(soon()));
}

/// Rank 1 of 2, by hand, joined and about to misbehave in the first collective.
void misbehave(const std::function<Bytes(Writer)>& frame, std::string_view cause, ErrorCode code) {
  const auto root = make_root();
  std::jthread rank0([&] {
    auto group = Bootstrap::join(root->id(), 0, 2, soon());
    ASSERT_TRUE(group) << group.error().message();
    const auto all = (*group)->allgather({}, soon());
    ASSERT_FALSE(all);
    EXPECT_EQ(all.error().code, code);
    EXPECT_EQ(all.error().peer, "rank 1");
    EXPECT_THAT(all.error().cause, HasSubstr(cause));
  });
  auto registered = register_rank(*root, 1, 2);
  auto fd = start_connecting(parent_of(registered));
  ASSERT_TRUE(fd);
  FrameChannel link(std::move(*fd), 4096);
  link.queue(greeting(bootstrap::Kind::child_hello, root->id(), 1, 2).bytes());
  link.queue(Writer().put(bootstrap::Kind::ready).bytes());
  await(link, bootstrap::Kind::go);
  Writer header;
  header.put(bootstrap::Kind::contribution).put(std::uint64_t{1}).put(bootstrap::Operation::allgather);
  link.queue(frame(std::move(header)));
  await(link, bootstrap::Kind::abort);  // it is told, too
}

TEST(Bootstrap, APeerThatSendsNonsenseEndsTheCollectiveAndIsNamed) {
  misbehave([](Writer w) { return w.put(0U).take(); }, "not its to send", ErrorCode::protocol_error);
  misbehave([](Writer w) { return w.put(~0U).take(); }, "not its to send", ErrorCode::protocol_error);
  misbehave([](Writer w) { return w.put(std::uint16_t{1}).take(); }, "not its to send",
            ErrorCode::protocol_error);
  misbehave([](Writer w) { return w.put(1U).raw(Bytes((1U << 20U) + 1)).take(); }, "not its to send",
            ErrorCode::protocol_error);
  misbehave([](Writer) { return Bytes(3, std::byte{200}); }, "makes no sense", ErrorCode::protocol_error);
  misbehave([](Writer) { return Bytes(); }, "makes no sense", ErrorCode::protocol_error);
  misbehave(
      [](Writer) {
        return Writer()
            .put(bootstrap::Kind::entry)
            .put(std::uint64_t{1})
            .put(bootstrap::Operation::allgather)
            .take();
      },
      "makes no sense", ErrorCode::protocol_error);
  misbehave([](Writer) { return Bytes((16U << 20U) + 4096); }, "at most", ErrorCode::protocol_error);
}

TEST(Bootstrap, ARootThatIsGoneIsAnErrorAtOnce) {
  const auto id = make_root()->id();
  const auto group = Bootstrap::join(id, 0, 1, soon());
  ASSERT_FALSE(group);
  EXPECT_THAT(group.error().message(), HasSubstr("cannot reach root 127.0.0.1:"));
  EXPECT_THAT(group.error().message(), HasSubstr("still running"));
}

TEST(Bootstrap, ARootThatGivesUpSaysWhoWasMissing) {
  auto root = make_root();
  std::jthread waits([&, id = root->id()] {
    const auto joined = Bootstrap::join(id, 1, 3, soon());
    ASSERT_FALSE(joined);
    EXPECT_EQ(joined.error().code, ErrorCode::peer_failed);
    EXPECT_THAT(joined.error().message(), HasSubstr("given the group up: ranks 0, 2 of 3 have not arrived"));
  });
  std::this_thread::sleep_for(200ms);
  root.reset();
}

TEST(Bootstrap, GroupsAtTheSameTimeDoNotMix) {
  std::vector<std::jthread> groups;
  for (int g = 0; g < 3; ++g)
    groups.emplace_back([g] {
      with_ranks(4, [g](Bootstrap& group) {
        const auto told = group.broadcast(bytes_of("group " + std::to_string(g)), soon());
        ASSERT_TRUE(told) << told.error().message();
        EXPECT_EQ(as_text(*told), "group " + std::to_string(g));
      });
    });
}

TEST(UniqueId, SurvivesItsTextForm) {
  const auto root = make_root();
  const auto text = root->id().text();
  EXPECT_EQ(text.find_first_of(" \t\n"), std::string::npos);
  const auto id = UniqueId::parse(text);
  ASSERT_TRUE(id) << id.error().message();
  EXPECT_EQ(id->host, root->id().host);
  EXPECT_EQ(id->port, root->id().port);
  EXPECT_EQ(id->secret, root->id().secret);
  const UniqueId v6{"fe80::1", 7, {}};
  EXPECT_EQ(UniqueId::parse(v6.text())->host, "fe80::1");
}

TEST(UniqueId, RefusesWhatIsNoId) {
  const std::string secret(32, 'a');
  for (const auto& text :
       {std::string(), std::string("x"), "host:1/" + secret + "00", "host:1/" + secret.substr(2),
        "host/" + secret, ":1/" + secret, "host:0/" + secret, "host:65536/" + secret, "host:1x/" + secret,
        "host:-1/" + secret, "a b:1/" + secret, "::1:5/" + secret, "host:1/" + secret.substr(1) + "g"})
    EXPECT_FALSE(UniqueId::parse(text)) << text;
}

TEST(RankList, NamesGapsAndRunsAndAbbreviates) {
  using bootstrap::list_ranks;
  EXPECT_EQ(list_ranks(8, [](auto r) { return r == 3; }), "rank 3 of 8");
  EXPECT_EQ(list_ranks(8, [](auto r) { return r == 3 || r == 7; }), "ranks 3, 7 of 8");
  EXPECT_EQ(list_ranks(16, [](auto r) { return r > 3 && r < 9; }), "ranks 4-8 of 16");
  EXPECT_EQ(list_ranks(4, [](auto) { return false; }), "");
  EXPECT_EQ(list_ranks(100, [](auto r) { return r % 2 == 0; }),
            "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 38 more of 100");
}

}  // namespace
}  // namespace cenote
