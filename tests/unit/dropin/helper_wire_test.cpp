// What libcenote-pool and its helper say to each other: it comes back as it was, and no bytes of the other
// side do more than end in protocol_error.
#include "pool/dropin/helper_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>

#include "pool/dropin/session_wire.h"
#include "runtime/unique_fd.h"

namespace cenote::pool::dropin {
namespace {

using ::testing::ElementsAre;

template <class T>
T through(const Ask& ask) {
  const auto read = decode_request(encode(Request{7, 1500, ask}));
  EXPECT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->id, 7U);
  EXPECT_EQ(read->timeout_ms, 1500U);
  return std::get<T>(read->ask);
}

template <class T>
T through(const ReplyBody& body) {
  const auto read = decode_helper_reply(encode(Reply{9, body}));
  EXPECT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->id, 9U);
  return std::get<T>(read->body);
}

const Error kError{ErrorCode::resource_exhausted, "lease", "no free GPU", "gpu 1", "head:4700", "wait", 8};

void expect_same(const Error& a, const Error& b) {
  EXPECT_EQ(a.code, b.code);
  EXPECT_EQ(a.message(), b.message());
  EXPECT_EQ(a.native, b.native);
}

TEST(HelperWire, RequestsComeThrough) {
  EXPECT_THAT(through<ConnectAsk>(ConnectAsk{3, {"a=b", "c="}}).settings, ElementsAre("a=b", "c="));
  EXPECT_EQ(through<ConnectAsk>(ConnectAsk{3, {}}).protocol, 3U);
  const auto lease = through<LeaseAsk>(LeaseAsk{4, "H200", 1U << 30U, 2500, "night"});
  EXPECT_EQ(lease.gpus, 4U);
  EXPECT_EQ(lease.model, "H200");
  EXPECT_EQ(lease.memory_bytes, 1U << 30U);
  EXPECT_EQ(lease.ttl_ms, 2500U);
  EXPECT_EQ(lease.note, "night");
  EXPECT_EQ(through<AdoptAsk>(AdoptAsk{"{}"}).file, "{}");
  const Bytes address{std::byte{1}, std::byte{2}};
  EXPECT_EQ(through<OpenAsk>(OpenAsk{5, address}).fabric_address, address);
  EXPECT_EQ(through<ReleaseAsk>(ReleaseAsk{6}).lease, 6U);
  EXPECT_EQ(through<ForgetAsk>(ForgetAsk{8}).lease, 8U);
}

TEST(HelperWire, RepliesComeThrough) {
  EXPECT_EQ(through<ReadyReply>(ReadyReply{4711}).pid, 4711);
  const auto granted =
      through<LeaseReply>(LeaseReply{3, "7f3a", {{"u", "H200", "a", 99}, {"v", "T4", "b", 1}}});
  EXPECT_EQ(granted.lease, 3U);
  EXPECT_EQ(granted.id, "7f3a");
  ASSERT_EQ(granted.gpus.size(), 2U);
  EXPECT_EQ(granted.gpus[1].model, "T4");
  EXPECT_EQ(granted.gpus[0].memory_bytes, 99U);
  const auto workers =
      through<WorkersReply>(WorkersReply{{{Bytes(3), 2, "agent-b", {"gpu 0", "gpu 1"}}}}).workers;
  ASSERT_EQ(workers.size(), 1U);
  EXPECT_EQ(workers[0].fabric_address.size(), 3U);
  EXPECT_EQ(workers[0].channel, 2U);
  EXPECT_THAT(workers[0].device_names, ElementsAre("gpu 0", "gpu 1"));
  through<DoneReply>(DoneReply{});
  expect_same(through<FailedReply>(FailedReply{kError}).error, kError);
  const auto lost = through<LostReply>(LostReply{12, kError});
  EXPECT_EQ(lost.lease, 12U);
  expect_same(lost.error, kError);
}

TEST(HelperWire, AMessageCutShortOrTooLongIsAProtocolError) {
  const auto whole = encode(Reply{1, LeaseReply{3, "7f3a", {{"u", "H200", "a", 99}}}});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const auto read = decode_helper_reply(std::span(whole).first(length));
    ASSERT_FALSE(read) << length;
    EXPECT_EQ(read.error().code, ErrorCode::protocol_error);
  }
  auto longer = encode(Request{1, 1, ReleaseAsk{1}});
  longer.push_back({});
  EXPECT_FALSE(decode_request(longer));
}

TEST(HelperWire, AnUnknownKindIsAProtocolError) {
  auto request = encode(Request{1, 1, ReleaseAsk{1}});
  request[12] = std::byte{200};  // after id and timeout
  EXPECT_FALSE(decode_request(request));
  auto reply = encode(Reply{1, DoneReply{}});
  reply[8] = std::byte{200};
  EXPECT_FALSE(decode_helper_reply(reply));
}

TEST(HelperWire, NoBytesDoHarm) {
  std::mt19937 random(20261130);
  const auto one = encode(Reply{1, WorkersReply{{{Bytes(3), 2, "agent-b", {"gpu 0", "gpu 1"}}}}});
  const auto other = encode(Request{1, 1, ConnectAsk{1, {"a=b", "c=d"}}});
  for (int i = 0; i < 20'000; ++i) {
    auto bytes = i % 2 == 0 ? one : other;
    for (auto changes = random() % 4 + 1; changes > 0; --changes)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    bytes.resize(bytes.size() - random() % 3);
    static_cast<void>(decode_helper_reply(bytes));
    static_cast<void>(decode_request(bytes));
  }
}

class FramesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    near.reset(ends[0]);
    far.reset(ends[1]);
  }
  void send(std::span<const std::byte> bytes) {
    ASSERT_EQ(::send(far.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  UniqueFd near, far;
  FrameBuffer frames;
};

TEST_F(FramesTest, ArriveInPieces) {
  Writer out;
  out.text("first").text("second").text("");
  const auto bytes = out.take();
  std::vector<std::string> whole;
  for (const auto byte : bytes) {
    send(std::span(&byte, 1));
    ASSERT_TRUE(frames.read(near.get()).value());
    const auto frame = frames.next();
    ASSERT_TRUE(frame);
    if (*frame) whole.emplace_back(as_text(**frame));
  }
  EXPECT_THAT(whole, ElementsAre("first", "second", ""));
  EXPECT_FALSE(frames.read(near.get()).value()) << "nothing more has arrived, and nobody waits for it";
}

TEST_F(FramesTest, ALengthBeyondTheLimitIsAProtocolError) {
  const auto claim = static_cast<std::uint32_t>(max_frame + 1);
  send(std::as_bytes(std::span(&claim, 1)));
  ASSERT_TRUE(frames.read(near.get()).value());
  const auto frame = frames.next();
  ASSERT_FALSE(frame);
  EXPECT_EQ(frame.error().code, ErrorCode::protocol_error);
}

TEST_F(FramesTest, AClosedConnectionIsAFailedPeer) {
  far.reset();
  const auto read = frames.read(near.get());
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::peer_failed);
}

}  // namespace
}  // namespace cenote::pool::dropin
