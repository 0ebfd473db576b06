// Both ends of every tool, over shared memory and TCP: what is measured, what is checked, what goes wrong.
#include "perf/tools/session.h"

#include <gmock/gmock.h>

#include <set>

#include "tests/unit/perf/two_ends.h"

namespace cenote::perf::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Work work_of(const Tool& tool) {
  Work work;
  work.iterations = 50;
  work.depth = 8;
  work.sizes =
      tool.verb == Verb::atomic ? std::vector<std::uint64_t>{8} : std::vector<std::uint64_t>{1, 13, 4096};
  return work;
}

void expect_well(const Outcome& outcome) {
  EXPECT_FALSE(outcome.client_error) << outcome.client_error->message();
  EXPECT_FALSE(outcome.server_error) << outcome.server_error->message();
}

class EveryTool : public ::testing::TestWithParam<std::tuple<const Tool*, std::string>> {
 protected:
  const Tool& tool = *std::get<0>(GetParam());
  const std::string& transport = std::get<1>(GetParam());
  Work work = work_of(tool);

  void expect_figures(const Figures& figures, std::uint64_t count) const {
    if (tool.latency) {
      ASSERT_TRUE(figures.latency);
      EXPECT_EQ(figures.latency->samples, count);
      EXPECT_GT(figures.latency->min, 0);
      EXPECT_LE(figures.latency->min, figures.latency->typical);
      EXPECT_LE(figures.latency->typical, figures.latency->p99);
      EXPECT_LE(figures.latency->p99, figures.latency->p999);
      EXPECT_LE(figures.latency->p999, figures.latency->max);
      return;
    }
    ASSERT_TRUE(figures.bandwidth);
    EXPECT_EQ(figures.bandwidth->messages, count);
    EXPECT_GT(figures.bandwidth->average, 0);
    ASSERT_TRUE(figures.bandwidth->peak);
    EXPECT_GE(*figures.bandwidth->peak, figures.bandwidth->average * 0.99);
  }
};

class EveryBandwidth : public EveryTool {};
/// Not the atomics, whose bytes are the values: see AtomicLat.
class EveryToolWithBytes : public EveryTool {};

TEST_P(EveryTool, MeasuresEachSizeAndBothEndsKnowTheFigures) {
  const auto outcome = run_both(tool, transport, work);
  expect_well(outcome);
  ASSERT_EQ(outcome.client.size(), work.sizes.size());
  ASSERT_EQ(outcome.server.size(), work.sizes.size());
  for (std::size_t i = 0; i < work.sizes.size(); ++i) {
    expect_figures(outcome.client[i], 50);
    expect_figures(outcome.server[i], 50);
  }
}

TEST_P(EveryTool, ChecksEveryByteAndFindsThemRight) {
  work.validate = true;
  // Which bytes were looked at, by size: each message's, at one end or the other.
  std::atomic<std::uint64_t> looked = 0;
  Hooks hooks;
  hooks.before_check = [&](std::span<std::byte> bytes) { looked += bytes.size(); };
  const auto outcome = run_both(tool, transport, work, hooks, hooks);
  expect_well(outcome);
  for (const auto& figures : outcome.client) expect_figures(figures, 50);
  if (tool.verb == Verb::atomic) return;  // the values that come back are its bytes
  // A latency's message goes there and back (a read's only back), and its warm-up is checked too.
  const std::uint64_t each = !tool.latency ? 50 : tool.verb == Verb::read ? 100 : 200;
  EXPECT_EQ(looked, each * (1 + 13 + 4096));
}

TEST_P(EveryToolWithBytes, OneWrongByteEndsItWithItsPlaceAtBothEnds) {
  work.validate = true;
  work.sizes = {4096};
  std::atomic<int> messages = 0;
  Hooks hooks;
  hooks.before_check = [&](std::span<std::byte> bytes) {
    if (++messages == 20) bytes[4095] ^= std::byte{1};
  };
  const auto outcome = run_both(tool, transport, work, hooks, hooks);
  ASSERT_TRUE(outcome.client_error);
  ASSERT_TRUE(outcome.server_error);
  const auto where = HasSubstr("byte 4095 of 4096 is 0x");
  EXPECT_THAT(outcome.client_error->message(), where);
  EXPECT_THAT(outcome.server_error->message(), where);
  const bool client_saw = outcome.client_error->code == ErrorCode::internal;
  EXPECT_NE(client_saw, outcome.server_error->code == ErrorCode::internal) << "one saw it, one was told";
}

TEST_P(EveryTool, GoesOnForAsLongAsItIsAskedTo) {
  work.sizes.resize(1);
  work.duration = std::chrono::milliseconds(300);
  work.margin = std::chrono::milliseconds(50);
  // A machine that is busy enough lets nothing at all happen between the margins.
  for (int attempt = 0; attempt < 20; ++attempt) {
    const auto begin = Clock::now();
    const auto outcome = run_both(tool, transport, work);
    ASSERT_GE(Clock::now() - begin, work.duration);
    expect_well(outcome);
    ASSERT_EQ(outcome.client.size(), 1U);
    const auto& figures = outcome.client[0];
    EXPECT_FALSE(figures.bandwidth && figures.bandwidth->peak);
    if ((tool.latency ? figures.latency->samples : figures.bandwidth->messages) > 0) return;
  }
  FAIL() << "it never measured anything";
}

TEST_P(EveryBandwidth, AddsUpBothDirections) {
  for (const bool validate : {false, true}) {
    work.bidirectional = true;
    work.validate = validate;
    const auto outcome = run_both(tool, transport, work);
    expect_well(outcome);
    ASSERT_EQ(outcome.client.size(), work.sizes.size());
    for (std::size_t i = 0; i < work.sizes.size(); ++i) {
      EXPECT_DOUBLE_EQ(outcome.client[i].bandwidth->average, outcome.server[i].bandwidth->average);
      EXPECT_GT(outcome.client[i].bandwidth->average, 0);
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<EveryTool::ParamType>& kind) {
  return std::string(std::get<0>(kind.param)->name) + "_" + std::get<1>(kind.param);
}
const auto transports = ::testing::Values("shm", "tcp");
INSTANTIATE_TEST_SUITE_P(, EveryTool,
                         ::testing::Combine(::testing::ValuesIn(all_tools().begin(), all_tools().end()),
                                            transports),
                         name_of);
INSTANTIATE_TEST_SUITE_P(, EveryBandwidth,
                         ::testing::Combine(::testing::Values(&write_bw, &read_bw, &send_bw), transports),
                         name_of);
INSTANTIATE_TEST_SUITE_P(, EveryToolWithBytes,
                         ::testing::Combine(::testing::Values(&write_bw, &write_lat, &read_bw, &read_lat,
                                                              &send_bw, &send_lat),
                                            transports),
                         name_of);

TEST(AtomicLat, ASumThatAnotherChangedIsFound) {
  Work work = work_of(atomic_lat);
  work.validate = true;
  work.iterations = 1'000'000'000;  // until the word is damaged
  const auto both = setup(atomic_lat, "shm");
  Hooks damage;
  // The server's progress hook runs between any two of its turns.
  std::atomic<std::byte*> word = nullptr;
  damage.progress = [&](const Plan&, std::uint64_t, Clock::time_point) {
    if (word != nullptr) *word.load() ^= std::byte{0x40};
  };
  damage.memory = [&](std::span<std::byte> shared) { word = shared.data(); };
  const auto outcome = run_both(both, both, work, {}, damage);
  ASSERT_TRUE(outcome.client_error);
  EXPECT_THAT(outcome.client_error->message(), AllOf(HasSubstr("validate"), HasSubstr("found")));
}

TEST(Ends, ThatRunDifferentToolsSayWhichAndWhich) {
  const auto outcome = run_both(setup(write_bw, "shm"), setup(read_bw, "shm"), work_of(write_bw));
  ASSERT_TRUE(outcome.client_error);
  ASSERT_TRUE(outcome.server_error);
  EXPECT_THAT(outcome.client_error->message(), AllOf(HasSubstr("read_bw"), HasSubstr("write_bw")));
  EXPECT_THAT(outcome.server_error->message(), AllOf(HasSubstr("read_bw"), HasSubstr("write_bw")));
}

TEST(Ends, ThatShareNoTransportSayWhy) {
  const auto outcome = run_both(setup(write_bw, "shm"), setup(write_bw, "tcp"), work_of(write_bw));
  ASSERT_TRUE(outcome.client_error);
  EXPECT_THAT(outcome.client_error->message(), HasSubstr("shm"));
  EXPECT_EQ(outcome.client_error->peer, "the server");
}

TEST(Ends, ALatencyOfAMessageThatIsTooLongIsRefusedWithTheLimit) {
  Work work = work_of(send_lat);
  work.sizes = {65536};
  const auto outcome = run_both(send_lat, "shm", work);
  ASSERT_TRUE(outcome.client_error);
  EXPECT_THAT(outcome.client_error->message(),
              AllOf(HasSubstr("8192"), HasSubstr("65536"), HasSubstr("write_lat")));
}

TEST(WriteLat, SeesAPutByItsLastByteWhereItIsAskedTo) {
  Work work = work_of(write_lat);
  work.poll_memory = true;
  work.iterations = 600;  // each value of a byte more than once
  for (const std::string transport : {"shm", "tcp"}) {
    const auto outcome = run_both(write_lat, transport, work);
    expect_well(outcome);
    ASSERT_EQ(outcome.client.size(), work.sizes.size());
    for (const auto& figures : outcome.client) EXPECT_EQ(figures.latency->samples, 600U);
  }
}

TEST(WriteLat, CannotPollWhatNoProcessorReads) {
  auto gpu = setup(write_lat, "tcp");
  gpu.memory = "emulated";
  Work work = work_of(write_lat);
  work.poll_memory = true;
  const auto outcome = run_both(gpu, gpu, work);
  ASSERT_TRUE(outcome.client_error);
  EXPECT_EQ(outcome.client_error->code, ErrorCode::not_supported);
}

TEST(Session, ThatCountedNothingIsAnErrorAndNotARowOfZeros) {
  for (const Tool* tool : {&write_bw, &read_lat}) {
    auto work = work_of(*tool);
    work.duration = std::chrono::microseconds(20);
    work.margin = std::chrono::microseconds(10) - std::chrono::nanoseconds(1);
    work.sizes = {1 << 20};
    const auto outcome = run_both(*tool, "tcp", work);
    ASSERT_TRUE(outcome.client_error) << tool->name;
    EXPECT_THAT(outcome.client_error->message(),
                AllOf(HasSubstr("nothing was complete"), HasSubstr("--duration")));
  }
}

// A peer that is late to connect delays what is measured, not its figures.
TEST(Session, StandsOnBothSidesBeforeItIsOpen) {
  constexpr auto late = std::chrono::milliseconds(300);
  Hooks slow;
  slow.memory = [&](std::span<std::byte> /*bytes*/) { std::this_thread::sleep_for(late); };
  auto work = work_of(write_bw);
  work.iterations = 4;
  work.sizes = {4096};
  const auto began = Clock::now();
  const auto outcome = run_both(write_bw, "tcp", work, {}, slow);
  expect_well(outcome);
  const std::chrono::duration<double> all = Clock::now() - began, least = late;
  ASSERT_GE(all, least);
  const auto& figures = *outcome.client.at(0).bandwidth;
  EXPECT_LT(static_cast<double>(figures.messages) / figures.message_rate, least.count() / 2);
}

class LongMessages : public ::testing::TestWithParam<std::string> {
 protected:
  Work work = work_of(send_bw);
  void SetUp() override { work.sizes = {65536, 1 << 20, 8 << 20}; }
};

// More of them than there are places, so that each place is used again.
TEST_P(LongMessages, ArePutWhereTheReceiverTakesThem) {
  work.validate = true;
  std::atomic<std::uint64_t> looked = 0;
  Hooks hooks;
  hooks.before_check = [&](std::span<std::byte> bytes) { looked += bytes.size(); };
  const auto outcome = run_both(send_bw, GetParam(), work, {}, hooks);
  expect_well(outcome);
  ASSERT_EQ(outcome.client.size(), work.sizes.size());
  for (const auto& figures : outcome.client) EXPECT_EQ(figures.bandwidth->messages, 50U);
  EXPECT_EQ(looked, 50U * (65536 + (1 << 20) + (8 << 20)));
}

TEST_P(LongMessages, OneWrongByteEndsItWithItsPlace) {
  work.validate = true;
  Hooks hooks;
  int messages = 0;
  hooks.before_check = [&](std::span<std::byte> bytes) {
    if (++messages == 60) bytes.back() ^= std::byte{1};
  };
  const auto outcome = run_both(send_bw, GetParam(), work, {}, hooks);
  ASSERT_TRUE(outcome.client_error);
  EXPECT_THAT(outcome.client_error->message(), HasSubstr("byte 1048575 of 1048576 is 0x"));
}

TEST_P(LongMessages, GoBothWaysAtOnce) {
  work.bidirectional = true;
  work.sizes = {65536};
  const auto outcome = run_both(send_bw, GetParam(), work);
  expect_well(outcome);
  EXPECT_DOUBLE_EQ(outcome.client[0].bandwidth->average, outcome.server[0].bandwidth->average);
}

INSTANTIATE_TEST_SUITE_P(, LongMessages, ::testing::Values("shm", "tcp"),
                         [](const auto& kind) { return kind.param; });

// What a transport refuses to register is said with its reason; what it takes is measured.
TEST(Ends, MemoryOfACardIsMeasuredOrRefusedWithTheReason) {
  for (const std::string transport : {"shm", "tcp"}) {
    auto gpu = setup(write_bw, transport);
    gpu.memory = "emulated:H200";
    const auto outcome = run_both(gpu, gpu, work_of(write_bw));
    if (!outcome.client_error) continue;
    EXPECT_EQ(outcome.client_error->code, ErrorCode::not_supported);
    EXPECT_THAT(
        outcome.client_error->message(),
        AllOf(HasSubstr(transport + " does not reach memory of emulated:0"), HasSubstr("--memory host")));
  }
}

/// The far end of a socket pair, which does what a test wants of it.
class Stranger {
 public:
  explicit Stranger(Clock::duration silence = std::chrono::seconds(60)) {
    auto [here, there] = socket_pair();
    theirs = std::move(there);
    setup_ = setup(write_bw, "shm");
    setup_.silence = silence;
    session_ = std::thread([this, fd = std::move(here)]() mutable {
      auto session = Session::open(setup_, std::move(fd), "10.0.0.9:4711", false, 0, &cancel);
      if (!session) error = std::move(session).error();
    });
  }
  ~Stranger() {
    if (session_.joinable()) session_.join();
  }
  const std::optional<Error>& outcome() {
    session_.join();
    return error;
  }
  void say(std::string_view bytes) const {
    ASSERT_EQ(::send(theirs.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  CancelFlag cancel;
  UniqueFd theirs;
  std::optional<Error> error;

 private:
  Setup setup_;
  std::thread session_;
};

TEST(Ends, AStrangerIsRefusedByHisFirstWords) {
  Stranger stranger;
  stranger.say("GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n");
  const auto error = stranger.outcome();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->stage, greeting_stage);
  EXPECT_EQ(error->code, ErrorCode::protocol_error);
  EXPECT_EQ(error->peer, "10.0.0.9:4711");
  EXPECT_THAT(error->message(), HasSubstr("is it cenote perf that listens there?"));
}

TEST(Ends, AnotherVersionIsNamed) {
  Stranger stranger;
  FrameChannel channel(std::move(stranger.theirs), 4096);
  channel.queue(Writer().put(Topic::hello).put(std::uint32_t{0x46504e43}).put(std::uint16_t{99}).take());
  channel.flush();
  const auto error = stranger.outcome();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::not_supported);
  EXPECT_THAT(error->message(), AllOf(HasSubstr("version 99"), HasSubstr("version 2")));
}

TEST(Ends, APeerThatLeavesIsNamed) {
  Stranger stranger;
  stranger.theirs.reset();
  const auto error = stranger.outcome();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::peer_failed);
  EXPECT_EQ(error->peer, "10.0.0.9:4711");
}

TEST(Ends, APeerThatSaysNothingIsLostAtTheDeadline) {
  Stranger stranger(std::chrono::milliseconds(300));
  const auto error = stranger.outcome();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::deadline_exceeded);
  EXPECT_THAT(error->message(), AllOf(HasSubstr("10.0.0.9:4711"), HasSubstr("said nothing"),
                                      HasSubstr("another client"), HasSubstr("--timeout")));
}

TEST(Ends, ACancelEndsAWait) {
  Stranger stranger;
  stranger.cancel.raise();
  const auto error = stranger.outcome();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::cancelled);
}

TEST(Plan, ThatDoesNotFitIsRefused) {
  const auto refused = [](const std::function<void(Plan&)>& spoil) {
    Plan plan;
    plan.size = 100;
    plan.slots = 8;
    plan.iterations = 5;
    spoil(plan);
    Writer out;
    encode(out, plan);
    Reader in(out.bytes());
    return !decode_plan(in, 1024);
  };
  EXPECT_FALSE(refused([](Plan&) {}));
  EXPECT_TRUE(refused([](Plan& plan) { plan.slots = 9; }));
  EXPECT_TRUE(refused([](Plan& plan) { plan.size = 0; }));
  EXPECT_TRUE(refused([](Plan& plan) { plan.size = ~std::uint64_t{0}; }));
  EXPECT_TRUE(refused([](Plan& plan) { plan.depth = 0; }));
  EXPECT_TRUE(refused([](Plan& plan) { plan.iterations = 0; }));
  EXPECT_TRUE(refused([](Plan& plan) { plan.duration_ns = 1; }));
}

TEST(Pattern, DiffersFromPlaceToPlaceAndFromMessageToMessage) {
  Bytes first(4096), second(4096);
  fill_pattern(first, 1);
  fill_pattern(second, 2);
  std::size_t alike = 0;
  for (std::size_t i = 0; i < first.size(); ++i) alike += first[i] == second[i] ? 1 : 0;
  EXPECT_LT(alike, first.size() / 64);
  EXPECT_TRUE(check_pattern(first, 1));
  EXPECT_FALSE(check_pattern(first, 2));
}

TEST(Pattern, EveryByteOfEveryLengthIsLookedAt) {
  for (std::size_t size = 1; size <= 33; ++size) {
    Bytes bytes(size);
    fill_pattern(bytes, 7);
    ASSERT_TRUE(check_pattern(bytes, 7));
    for (std::size_t at = 0; at < size; ++at) {
      bytes[at] ^= std::byte{0x80};
      const auto found = check_pattern(bytes, 7);
      ASSERT_FALSE(found) << size << " " << at;
      EXPECT_THAT(found.error().cause, HasSubstr("byte " + std::to_string(at) + " of "));
      bytes[at] ^= std::byte{0x80};
    }
  }
}

}  // namespace
}  // namespace cenote::perf::test
