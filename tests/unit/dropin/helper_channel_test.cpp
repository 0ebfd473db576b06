// One socket to a helper for all threads: whatever the helper does, every call ends, with its own answer or
// with the reason.
#include "pool/dropin/helper_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace cenote::pool::dropin {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

Deadline patience() { return Deadline::in(seconds(60)); }

class ChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    helper.reset(ends[1]);
    channel.emplace(UniqueFd(ends[0]), UniqueFd());
  }
  /// The helper's side, by hand.
  Request next_request() const {
    const auto frame = receive_frame(helper.get(), patience());
    EXPECT_TRUE(frame) << frame.error().message();
    auto request = frame ? decode_request(*frame) : Result<Request>(Request{});
    EXPECT_TRUE(request) << request.error().message();
    return request ? *request : Request{};
  }
  void reply(std::uint64_t id, ReplyBody body) const {
    EXPECT_TRUE(send_frame(helper.get(), encode(Reply{id, std::move(body)}), patience()));
  }
  UniqueFd helper;
  std::optional<HelperChannel> channel;
};

TEST_F(ChannelTest, ManyThreadsGetTheirOwnAnswersInWhateverOrderTheyCome) {
  constexpr int kThreads = 8, kRounds = 50;
  std::thread serving([&] {
    std::mt19937 random(7);
    for (int answered = 0; answered < kThreads * kRounds;) {
      std::vector<Request> held{next_request()};
      // Some are held back, so that the order changes; each thread waits, so that not all can be.
      for (auto more = random() % 3;
           more > 0 && answered + static_cast<int>(held.size()) < kThreads * kRounds; --more) {
        pollfd waiting{helper.get(), POLLIN, 0};
        if (::poll(&waiting, 1, 5) > 0) held.push_back(next_request());
      }
      std::ranges::shuffle(held, random);
      for (auto& request : held) {
        auto text = std::get<AdoptAsk>(request.ask).file;
        reply(request.id, LeaseReply{1, std::move(text), {}});
        ++answered;
      }
    }
  });
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        const auto text = std::to_string(t * 1000 + round);
        const auto answer = channel->call(AdoptAsk{text}, patience());
        if (answer && std::get<LeaseReply>(*answer).id == text) ++right;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  serving.join();
  EXPECT_EQ(right, kThreads * kRounds);
}

TEST_F(ChannelTest, AFailureIsTheHelpersOwnError) {
  std::thread serving([&] {
    const auto request = next_request();
    EXPECT_LE(request.timeout_ms, 60'000U);
    EXPECT_GE(request.timeout_ms, 1'000U);
    reply(request.id, FailedReply{{ErrorCode::resource_exhausted, "lease", "no free GPU"}});
  });
  const auto answer = channel->call(LeaseAsk{}, patience());
  serving.join();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::resource_exhausted);
  EXPECT_EQ(answer.error().cause, "no free GPU");
}

TEST_F(ChannelTest, AHelperThatDiesEndsAllWhoWait) {
  constexpr int kThreads = 6;
  std::vector<std::thread> threads;
  std::atomic<int> gone{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      const auto answer = channel->call(ReleaseAsk{1}, patience());
      if (!answer && answer.error().code == ErrorCode::peer_failed) ++gone;
    });
  }
  for (int t = 0; t < kThreads; ++t) next_request();
  helper.reset();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(gone, kThreads);
  const auto lost = channel->lost(1);
  ASSERT_TRUE(lost);
  EXPECT_THAT(lost->message(), HasSubstr("gone"));
  EXPECT_FALSE(channel->call(ReleaseAsk{1}, patience())) << "and whoever comes later";
}

TEST_F(ChannelTest, AnIdleProgramSeesThatTheHelperDied) {
  EXPECT_FALSE(channel->lost(1));
  helper.reset();
  const auto lost = channel->lost(1);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->code, ErrorCode::peer_failed);
}

TEST_F(ChannelTest, ASilentHelperIsADeadline) {
  const auto answer = channel->call(ReleaseAsk{1}, Deadline::in(milliseconds(50)));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::deadline_exceeded);
  // What was asked in vain does not spoil what comes next, nor does its late answer.
  std::thread serving([&] {
    const auto late = next_request();
    const auto next = next_request();
    reply(late.id, FailedReply{{ErrorCode::internal, "late", "late"}});
    reply(next.id, DoneReply{});
  });
  EXPECT_TRUE(channel->call(ReleaseAsk{2}, patience()));
  serving.join();
}

TEST_F(ChannelTest, ALeaseGrantedTooLateIsGivenBack) {
  ASSERT_FALSE(channel->call(LeaseAsk{}, Deadline::in(milliseconds(50))));
  std::optional<Request> third;
  std::thread serving([&] {
    const auto late = next_request();
    const auto next = next_request();
    reply(late.id, LeaseReply{42, "late", {}});
    reply(next.id, DoneReply{});
    third = next_request();
  });
  EXPECT_TRUE(channel->call(ReleaseAsk{2}, patience()));
  serving.join();
  ASSERT_TRUE(third);
  ASSERT_TRUE(std::holds_alternative<ReleaseAsk>(third->ask));
  EXPECT_EQ(std::get<ReleaseAsk>(third->ask).lease, 42U);
  EXPECT_EQ(third->id, 0U) << "nobody waits for the answer";
}

TEST_F(ChannelTest, TheLossOfALeaseIsThatLeasesAlone) {
  reply(0, LostReply{5, {ErrorCode::not_found, "renew lease 7f3a", "it has ended"}});
  const auto lost = channel->lost(5);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->cause, "it has ended");
  EXPECT_FALSE(channel->lost(6));
  channel->forget(5);
  EXPECT_FALSE(channel->lost(5));
  EXPECT_TRUE(std::holds_alternative<ForgetAsk>(next_request().ask));
}

TEST_F(ChannelTest, WhatIsToldByManyThreadsArrivesAllOfIt) {
  constexpr int kThreads = 4, kEach = 10;  // what a socket holds that nobody reads yet
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) channel->tell(ForgetAsk{static_cast<LeaseNumber>(t * kEach + i)});
    });
  }
  for (auto& thread : threads) thread.join();
  std::thread asking(
      [&] { EXPECT_TRUE(channel->call(ReleaseAsk{1}, patience())); });  // takes along what is left
  std::vector<LeaseNumber> heard;
  for (bool asked = false; !asked || heard.size() < kThreads * kEach;) {
    const auto request = next_request();
    if (const auto* forget = std::get_if<ForgetAsk>(&request.ask)) {
      heard.push_back(forget->lease);
    } else {
      reply(request.id, DoneReply{});
      asked = true;
    }
  }
  asking.join();
  std::ranges::sort(heard);
  for (std::size_t i = 0; i < heard.size(); ++i) ASSERT_EQ(heard[i], i);
}

TEST_F(ChannelTest, ATellThatDoesNotFitWaitsForTheNextRequestAndHoldsNobodyUp) {
  // The helper reads nothing: the socket fills up.
  constexpr LeaseNumber kMany = 20'000;
  for (LeaseNumber lease = 0; lease < kMany; ++lease) channel->tell(ForgetAsk{lease});
  std::thread serving([&] {
    LeaseNumber heard = 0;
    while (heard < kMany) {
      const auto request = next_request();
      if (std::holds_alternative<ForgetAsk>(request.ask)) {
        EXPECT_EQ(std::get<ForgetAsk>(request.ask).lease, heard++);
      } else {
        reply(request.id, DoneReply{});
      }
    }
  });
  // Each request takes along what fits.
  std::thread asking([&] {
    while (channel->call(ReleaseAsk{1}, patience())) {
    }
  });
  serving.join();
  helper.reset();  // whoever still asks is told that nobody answers
  asking.join();
}

TEST_F(ChannelTest, NonsenseIsAProtocolErrorForAllWhoWait) {
  std::thread serving([&] {
    next_request();
    EXPECT_TRUE(send_frame(helper.get(), as_bytes("nonsense"), patience()));
  });
  const auto answer = channel->call(ReleaseAsk{1}, patience());
  serving.join();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::protocol_error);
}

TEST_F(ChannelTest, ATextThatNoFrameHoldsIsRefusedAndTheChannelGoesOn) {
  const auto refused = channel->call(AdoptAsk{std::string(max_frame + 1, 'x')}, patience());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  std::thread serving([&] { reply(next_request().id, DoneReply{}); });
  EXPECT_TRUE(channel->call(ReleaseAsk{1}, patience()));
  serving.join();
}

TEST_F(ChannelTest, AChildOfForkIsRefusedAndSaysNothing) {
  const auto child = ::fork();
  if (child == 0) {
    const bool refused = !channel->call(ReleaseAsk{1}, patience()) && channel->lost(1).has_value();
    channel->tell(ForgetAsk{1});
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  channel->tell(ForgetAsk{2});
  EXPECT_EQ(std::get<ForgetAsk>(next_request().ask).lease, 2U) << "the child's word came first";
}

}  // namespace
}  // namespace cenote::pool::dropin
