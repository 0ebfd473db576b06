// What a UCX peer that has proved itself may send, and what becomes of it. Only what UCX hands over is ours
// to judge: active messages, and what comes over the socket beside them.
#include <algorithm>
#include <random>

#include "tests/unit/transports/ucx/mallory.h"

namespace cenote::transport::test {
namespace {

using ucx::Frame;
using ucx::FrameType;

constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();

class HostileUcxPeer : public Conformance {
 protected:
  HostileUcxPeer() : victim_(GetParam()), ucx_(GetParam().name == "ucx_shm" ? "posix" : "tcp") {}
  /// The victim's end has failed so, and its memory is as it was.
  void expect_ended(const UcxMallory& mallory, ErrorCode code, const std::string& what) {
    mallory.expect_failed(code, what);
    EXPECT_TRUE(same(victim_.memory->bytes(), before_)) << what;
    victim_.endpoint.reset();
  }

  Victim victim_;
  HostileUcx ucx_;
  const Bytes before_{victim_.memory->bytes().begin(), victim_.memory->bytes().end()};
};
CENOTE_CONFORMANCE(HostileUcxPeer);

Frame frame(FrameType type, const RegionKey& key = {}, std::uint64_t offset = 0, std::uint64_t length = 0) {
  Frame out;
  out.type = type;
  out.region = key.region;
  out.token = key.token;
  out.offset = offset;
  out.length = length;
  return out;
}

struct Case {
  std::string what;
  Frame bad;
  std::size_t bytes = 0;  ///< that come with it
  ErrorCode code = ErrorCode::protocol_error;
};

void add_malformed(std::vector<Case>& all, const RegionKey& key) {
  for (const int type : {0, 9, 200, 255})
    all.push_back({"type " + std::to_string(type), frame(static_cast<FrameType>(type), key)});
  for (const int i : {0, 3, 5}) {
    Frame bad = frame(FrameType::put, key, 0, 8);
    bad.zero[i] = 1;
    all.push_back({"reserved byte " + std::to_string(i), bad, 8});
  }
  for (const int signal : {64, 65, 128, 254}) {
    Frame bad = frame(FrameType::put);
    bad.signal = static_cast<std::uint8_t>(signal);
    all.push_back({"signal " + std::to_string(signal), bad});
  }
  for (const std::uint32_t taken : {1000U, 0x7fffffffU}) {
    Frame bad = frame(FrameType::put, key, 0, 8);
    bad.taken = taken;
    all.push_back({std::to_string(taken) + " taken frames", bad, 8});
  }
  const std::pair<std::uint64_t, std::size_t> lengths[] = {{7, 8}, {8, 7}, {8, 0}, {0, 8}, {most, 8}};
  for (const FrameType type : {FrameType::put, FrameType::message, FrameType::nothing}) {
    for (const auto& [said, brought] : lengths)
      all.push_back({std::to_string(brought) + " bytes for " + std::to_string(said),
                     frame(type, key, 0, said), brought});
  }
  for (const FrameType type : {FrameType::get, FrameType::add, FrameType::add_reply, FrameType::credit})
    all.push_back({"bytes with a frame that has none", frame(type, key, 0, 8), 8});
  const std::size_t large = ucx::max_chunk + 1;
  all.push_back({"more bytes than a frame has", frame(FrameType::nothing, {}, 0, large), large});
}

void add_misfits(std::vector<Case>& all, const RegionKey& key) {
  const std::pair<std::uint64_t, std::size_t> misfits[] = {{4096, 1}, {4097, 1},      {4090, 7}, {0, 4097},
                                                           {most, 1}, {most - 7, 16}, {most, 2}};
  for (const auto& [offset, length] : misfits) {
    const std::string where = " at " + std::to_string(offset) + " of " + std::to_string(length);
    all.push_back({"put" + where, frame(FrameType::put, key, offset, length), length});
    all.push_back({"get" + where, frame(FrameType::get, key, offset, length)});
  }
  for (const std::uint64_t length : {most, most - 7, std::uint64_t{1} << 63})
    all.push_back({"get of " + std::to_string(length), frame(FrameType::get, key, 8, length)});
  all.push_back({"get of nothing", frame(FrameType::get, key, 0, 0)});
  for (const std::uint64_t offset :
       {std::uint64_t{4089}, std::uint64_t{4096}, std::uint64_t{4}, most, most - 7})
    all.push_back({"add at " + std::to_string(offset), frame(FrameType::add, key, offset, 1)});
  for (const FrameType type : {FrameType::put, FrameType::get, FrameType::add}) {
    const std::size_t bytes = type == FrameType::put ? 8 : 0;
    RegionKey unknown = key, forged = key;
    ++unknown.region;
    ++forged.token;
    all.push_back({"unknown region", frame(type, unknown, 0, 8), bytes, ErrorCode::permission_denied});
    all.push_back({"forged token", frame(type, forged, 0, 8), bytes, ErrorCode::permission_denied});
  }
}

void add_unasked(std::vector<Case>& all) {
  all.push_back({"data nobody asked for", frame(FrameType::get_reply, {}, 0, 8), 8});
  all.push_back({"empty data nobody asked for", frame(FrameType::get_reply)});
  all.push_back({"an old value nobody asked for", frame(FrameType::add_reply)});
  const std::size_t large = ucx::max_message + 1;
  all.push_back({"a message of " + std::to_string(large), frame(FrameType::message, {}, 0, large), large});
  for (const std::uint64_t length : {std::uint64_t{1}, most})
    all.push_back({"credit of " + std::to_string(length), frame(FrameType::credit, {}, 0, length)});
}

TEST_P(HostileUcxPeer, EveryMalformedFrameFailsItsEndpointAndNothingElse) {
  std::vector<Case> cases;
  add_malformed(cases, victim_.key());
  add_misfits(cases, victim_.key());
  add_unasked(cases);
  for (const Case& c : cases) {
    UcxMallory mallory(victim_, ucx_);
    mallory.introduce();
    ASSERT_TRUE(mallory.send(c.bad, pattern(c.bytes, 1))) << c.what;
    expect_ended(mallory, c.code, c.what);
  }
  victim_.expect_others_well();
}

TEST_P(HostileUcxPeer, FrameThatIsLostDoubledOrOutOfItsTurnFails) {
  for (const std::uint32_t second : {0U, 2U, 0x80000000U, 0xffffffffU}) {
    UcxMallory mallory(victim_, ucx_);
    mallory.introduce();
    Frame next = frame(FrameType::nothing);
    ASSERT_TRUE(mallory.send(next, {}, true));
    next.sequence = second;
    ASSERT_TRUE(mallory.send(next, {}, true));
    expect_ended(mallory, ErrorCode::protocol_error, "second frame " + std::to_string(second));
  }
  victim_.expect_others_well();
}

TEST_P(HostileUcxPeer, AnswersOfTheWrongKindPlaceOrSizeFail) {
  const Case answers[] = {{"more", frame(FrameType::get_reply, {}, 0, 17), 17},
                          {"none", frame(FrameType::get_reply), 0},
                          {"another place", frame(FrameType::get_reply, {}, 8, 8), 8},
                          {"a place far off", frame(FrameType::get_reply, {}, most, 8), 8},
                          {"an old value", frame(FrameType::add_reply), 0}};
  for (const Case& c : answers) {
    UcxMallory mallory(victim_, ucx_);
    mallory.introduce();
    Bytes dst(16, std::byte{7});
    const RemoteKey key = mallory.key();
    ASSERT_TRUE(victim_.endpoint->get(dst, {&key, 0}, 1));
    ASSERT_TRUE(mallory.send(c.bad, pattern(c.bytes, 1)));
    mallory.expect_failed(ErrorCode::protocol_error, c.what);
    EXPECT_TRUE(same(dst, Bytes(16, std::byte{7}))) << c.what;
    Completion done;
    ASSERT_EQ(victim_.endpoint->poll(std::span(&done, 1)), 1U);
    EXPECT_TRUE(done.error);
    victim_.endpoint.reset();
  }
  victim_.expect_others_well();
}

TEST_P(HostileUcxPeer, FloodsAreEndedBeforeTheyTakeMemory) {
  const Frame floods[] = {frame(FrameType::message), frame(FrameType::get, victim_.key(), 0, 4096),
                          frame(FrameType::get, victim_.key(), 0, 8), frame(FrameType::add, victim_.key())};
  for (const Frame& bad : floods) {
    UcxMallory mallory(victim_, ucx_);
    mallory.introduce();
    const Deadline deadline = soon();
    while (!victim_.endpoint->failure() && !deadline.passed()) {
      int sent = 0;
      while (sent < 10'000 && mallory.send_at_once(bad)) ++sent;
      if (sent == 0) (void)ucx_.worker.progress();  // which reads some of the answers, too
      while (victim_.transport().progress()) {
      }
    }
    const std::string what = "flood of frames of type " + std::to_string(static_cast<int>(bad.type));
    expect_ended(mallory, ErrorCode::protocol_error, what);
  }
  victim_.expect_others_well();
}

TEST_P(HostileUcxPeer, MessageOfAnotherShapeOrSessionReachesNobody) {
  UcxMallory mallory(victim_, ucx_);
  mallory.introduce();
  ASSERT_TRUE(mallory.send(frame(FrameType::put, victim_.key(), 0, 8), pattern(8, 5)));
  Frame strange = frame(FrameType::put, victim_.key(), 8, 8);
  for (const std::uint64_t session : {std::uint64_t{0}, mallory.session() + 1, most}) {
    strange.session = session;
    ASSERT_TRUE(
        mallory.until([&] { return ucx_.link->post(strange, pattern(8, 6), ucx::Payload::copied) != 0; }));
  }
  // The good one behind them comes, and of theirs nothing.
  Frame last = frame(FrameType::put, victim_.key(), 16, 8);
  last.signal = 3;
  ASSERT_TRUE(mallory.send(last, pattern(8, 7)));
  ASSERT_TRUE(mallory.until([&] { return victim_.endpoint->signal(3) == 1 || victim_.endpoint->failure(); }));
  EXPECT_FALSE(victim_.endpoint->failure()) << victim_.endpoint->failure()->message();
  const auto memory = victim_.memory->bytes();
  EXPECT_TRUE(same(memory.first(8), pattern(8, 5)));
  EXPECT_TRUE(same(memory.subspan(8, 8), Bytes(8)));
  EXPECT_TRUE(same(memory.subspan(16, 8), pattern(8, 7)));
  victim_.endpoint.reset();
  victim_.expect_others_well();
}

TEST_P(HostileUcxPeer, EveryMalformedPacketOnTheSocketFailsItsEndpointAndNothingElse) {
  const auto number = [](std::uint32_t value) { return Bytes(Writer().put(value).bytes()); };
  Writer farewell;
  farewell.put(std::uint32_t{6 + ucx::max_reason + 1}).put(std::uint8_t{2});
  farewell.put(std::uint32_t{0}).put(std::uint8_t{0}).raw(Bytes(ucx::max_reason + 1));
  const std::pair<const char*, Bytes> raw[] = {{"size 0", number(0)},
                                               {"size 8193", number(8193)},
                                               {"the largest size", number(~0U)},
                                               {"too long a reason", Bytes(farewell.bytes())}};
  for (const auto& [what, bytes] : raw) {
    UcxMallory mallory(victim_, ucx_);
    mallory.introduce();
    mallory.say_raw(bytes);
    expect_ended(mallory, ErrorCode::protocol_error, what);
  }
  for (const std::uint8_t type : {0, 1, 3, 255}) {  // 1: a second introduction
    UcxMallory mallory(victim_, ucx_);
    mallory.introduce();
    mallory.say(type, pattern(100, type));
    expect_ended(mallory, ErrorCode::protocol_error, "packet of type " + std::to_string(type));
  }
  for (const std::size_t size : {0, 3, 7, 8}) {  // of an introduction: no address is left
    UcxMallory mallory(victim_, ucx_);
    mallory.say(1, pattern(size, 9));
    expect_ended(mallory, ErrorCode::protocol_error, "introduction of " + std::to_string(size));
  }
  for (const std::size_t size : {0, 4}) {
    UcxMallory mallory(victim_, ucx_);
    mallory.introduce();
    mallory.say(2, pattern(size, 9));
    expect_ended(mallory, ErrorCode::protocol_error, "farewell of " + std::to_string(size));
  }
  victim_.expect_others_well();
}

// It announces frames that never come: the victim waits for them, but not for ever.
TEST_P(HostileUcxPeer, FarewellThatAnnouncesFramesThatNeverComeEndsAllTheSame) {
  UcxMallory mallory(victim_, ucx_);
  mallory.introduce();
  Writer body;
  body.put(std::uint32_t{0x7fffffff}).put(std::uint8_t{0}).raw(as_bytes(std::string_view("bye")));
  mallory.say(2, body.bytes());
  expect_ended(mallory, ErrorCode::peer_failed, "farewell");
  victim_.expect_others_well();
}

TEST_P(HostileUcxPeer, RandomFramesHarmNobody) {
  int failed = 0;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    UcxMallory mallory(victim_, ucx_);
    mallory.introduce();
    const RemoteKey key = mallory.key();
    Bytes dst(16);
    (void)victim_.endpoint->get(dst, {&key, 0}, 1);
    for (int i = 0; i < 20 && !victim_.endpoint->failure(); ++i) {
      const std::size_t bytes = random() % 64;
      Frame next =
          frame(static_cast<FrameType>(1 + random() % 8), victim_.key(), random() % 4096 / 8 * 8, bytes);
      if (random() % 4 == 0) {
        auto* raw = reinterpret_cast<std::byte*>(&next);
        raw[random() % sizeof next] = static_cast<std::byte>(random());
      }
      const bool carries = next.type != FrameType::get && next.type != FrameType::add &&
                           next.type != FrameType::add_reply && next.type != FrameType::credit;
      ASSERT_TRUE(mallory.send(next, pattern(carries ? bytes : 0, seed)));
      (void)ucx_.worker.progress();
      victim_.transport().progress();
      std::byte buffer[ucx::max_message];
      (void)victim_.endpoint->receive(buffer);
    }
    if (const auto failure = victim_.endpoint->failure()) {
      ++failed;
      EXPECT_EQ(failure->peer, "mallory");
    }
    victim_.endpoint.reset();
  }
  EXPECT_GT(failed, 100);
  victim_.expect_others_well();
}

}  // namespace
}  // namespace cenote::transport::test
