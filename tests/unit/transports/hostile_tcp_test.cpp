// What a TCP peer that has proved itself may send, and what becomes of it.
#include <algorithm>
#include <random>

#include "tests/unit/transports/mallory.h"

namespace cenote::transport::test {
namespace {

using tcp::Frame;
using tcp::FrameType;

const Kind& tcp_kind() {
  static const Kind kind{"tcp", [] { return make_tcp_transport(); }};
  return kind;
}

constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();

Frame frame(FrameType type, const RegionKey& key = {}, std::uint64_t offset = 0, std::uint64_t length = 0) {
  Frame out;
  out.type = type;
  out.signal = no_signal;
  out.region = key.region;
  out.token = key.token;
  out.offset = offset;
  out.length = length;
  return out;
}

struct Case {
  std::string what;
  Frame bad;
  ErrorCode code = ErrorCode::protocol_error;
};

std::vector<Case> cases(const RegionKey& key) {
  std::vector<Case> all;
  for (const int type : {0, 9, 200, 255})
    all.push_back({"type " + std::to_string(type), frame(static_cast<FrameType>(type), key, 0, 8)});
  for (const int i : {0, 1, 2}) {
    Frame bad = frame(FrameType::put, key, 0, 8);
    bad.zero[i] = 1;
    all.push_back({"reserved byte " + std::to_string(i), bad});
  }
  for (const std::uint32_t signal : {signal_slots, signal_slots + 1, no_signal - 1, 1U << 31}) {
    Frame bad = frame(FrameType::put);
    bad.signal = signal;
    all.push_back({"signal " + std::to_string(signal), bad});
  }
  const std::pair<std::uint64_t, std::uint64_t> misfits[] = {{4096, 1}, {4097, 1},     {0, 4097},
                                                             {most, 1}, {most, 2},     {most - 7, 16},
                                                             {8, most}, {8, most - 7}, {0, most}};
  for (const auto& [offset, length] : misfits) {
    const std::string where = " at " + std::to_string(offset) + " of " + std::to_string(length);
    all.push_back({"put" + where, frame(FrameType::put, key, offset, length)});
    all.push_back({"get" + where, frame(FrameType::get, key, offset, length)});
  }
  all.push_back({"get of nothing", frame(FrameType::get, key, 0, 0)});
  for (const std::uint64_t offset :
       {std::uint64_t{4089}, std::uint64_t{4096}, std::uint64_t{4}, most, most - 7})
    all.push_back({"add at " + std::to_string(offset), frame(FrameType::add, key, offset, 1)});
  for (const FrameType type : {FrameType::put, FrameType::get, FrameType::add}) {
    RegionKey unknown = key, forged = key;
    ++unknown.region;
    ++forged.token;
    all.push_back({"unknown region", frame(type, unknown, 0, 8), ErrorCode::permission_denied});
    all.push_back({"forged token", frame(type, forged, 0, 8), ErrorCode::permission_denied});
  }
  all.push_back({"data nobody asked for", frame(FrameType::get_reply, {}, 0, 8)});
  all.push_back({"empty data nobody asked for", frame(FrameType::get_reply)});
  all.push_back({"an old value nobody asked for", frame(FrameType::add_reply)});
  for (const std::uint64_t length : {std::uint64_t{tcp::max_message + 1}, most})
    all.push_back({"message of " + std::to_string(length), frame(FrameType::message, {}, 0, length)});
  for (const std::uint64_t length : {std::uint64_t{tcp::max_reason + 1}, most})
    all.push_back({"reason of " + std::to_string(length), frame(FrameType::close, {}, 0, length)});
  for (const std::uint64_t length : {std::uint64_t{1}, most})
    all.push_back({"credit of " + std::to_string(length), frame(FrameType::credit, {}, 0, length)});
  return all;
}

TEST(HostileTcp, EveryMalformedFrameFailsItsEndpointAndNothingElse) {
  Victim victim(tcp_kind());
  const Bytes before(victim.memory->bytes().begin(), victim.memory->bytes().end());
  for (const Case& c : cases(victim.key())) {
    const TcpMallory mallory(victim);
    ASSERT_EQ(mallory.write(c.bad.bytes()), sizeof(Frame));
    mallory.write(pattern(64, 1));
    victim.expect_failed(c.code, c.what);
    EXPECT_TRUE(same(victim.memory->bytes(), before)) << c.what;
    victim.endpoint.reset();
  }
  victim.expect_others_well();
}

TEST(HostileTcp, AnswersOfTheWrongKindOrSizeFail) {
  const Frame answers[] = {frame(FrameType::get_reply, {}, 0, 15), frame(FrameType::get_reply, {}, 0, 17),
                           frame(FrameType::get_reply, {}, 0, most), frame(FrameType::get_reply),
                           frame(FrameType::add_reply)};
  Victim victim(tcp_kind());
  for (const Frame& answer : answers) {
    const TcpMallory mallory(victim);
    Bytes dst(16, std::byte{7});
    const RemoteKey key = mallory.key();
    ASSERT_TRUE(victim.endpoint->get(dst, {&key, 0}, 1));
    mallory.write(answer.bytes());
    mallory.write(pattern(64, 1));
    victim.expect_failed(ErrorCode::protocol_error, "answer");
    EXPECT_TRUE(same(dst, Bytes(16, std::byte{7})));
    Completion done;
    ASSERT_EQ(victim.endpoint->poll(std::span(&done, 1)), 1U);
    EXPECT_TRUE(done.error);
    victim.endpoint.reset();
  }
  victim.expect_others_well();
}

/// Sends the frame again and again, reading nothing, until the victim has had enough of it.
void flood(Victim& victim, const Frame& bad, const std::string& what) {
  const TcpMallory mallory(victim);
  Bytes many;
  for (int i = 0; i < 100; ++i) many.insert(many.end(), bad.bytes().begin(), bad.bytes().end());
  std::size_t at = 0;
  const bool ended = victim.until([&] {
    at = (at + mallory.write(std::span(many).subspan(at))) % many.size();
    return victim.endpoint->failure().has_value();
  });
  ASSERT_TRUE(ended) << what;
  victim.expect_failed(ErrorCode::protocol_error, what);
  victim.endpoint.reset();
}

TEST(HostileTcp, FloodsAreEndedBeforeTheyTakeMemory) {
  Victim victim(tcp_kind());
  flood(victim, frame(FrameType::message), "empty messages");
  flood(victim, frame(FrameType::get, victim.key(), 0, 4096), "large gets");
  flood(victim, frame(FrameType::get, victim.key(), 0, 8), "small gets");
  flood(victim, frame(FrameType::add, victim.key(), 0, 0), "adds");
  victim.expect_others_well();
}

/// Dials the victim's listener, says that, and waits until the victim has heard it.
void say_as_stranger(const Victim& victim, std::span<const std::byte> bytes) {
  const UniqueFd fd = dial_tcp(victim);
  ASSERT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  ::shutdown(fd.get(), SHUT_WR);
  ASSERT_TRUE(victim.until([&] {
    std::byte buffer[64];
    const auto got = ::recv(fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }));
}

TEST(HostileTcp, NoteOfWhoDoesNotKnowTheConnectionIsIgnored) {
  Victim victim(tcp_kind());
  Reader in(victim.pair.left->address());
  const auto friendly = AddressHeader::unpack(in, "tcp").value();
  Reader own(victim.transport().address());
  const auto self = AddressHeader::unpack(own, "tcp").value();
  const std::string text = "it closed, they say";
  // It knows who talks to whom and even the secret, but not the nonces of their connection.
  for (const Side side : {Side::dialer, Side::acceptor}) {
    tcp::Note note{friendly.id, 0, {}, {}};
    note.text.assign(as_bytes(text).begin(), as_bytes(text).end());
    Hello guess;
    guess.dialer = std::max(friendly.id, self.id);
    note.proof = tcp::proof_of_note(side, self.secret, {}, guess, std::min(friendly.id, self.id), note.text);
    Bytes packed = note.pack();
    say_as_stranger(victim, packed);
    packed.resize(packed.size() - 3);
    say_as_stranger(victim, packed);
    packed[14] = std::byte{255};
    say_as_stranger(victim, packed);
  }
  victim.expect_others_well();
}

TEST(HostileTcp, RandomStreamsHarmNobody) {
  Victim victim(tcp_kind());
  int failed = 0;
  for (std::uint32_t seed = 0; seed < 1000; ++seed) {
    std::mt19937 random(seed);
    const TcpMallory mallory(victim);
    const RemoteKey key = mallory.key();
    Bytes dst(16);
    (void)victim.endpoint->get(dst, {&key, 0}, 1);
    for (int i = 0; i < 20 && !victim.endpoint->failure(); ++i) {
      Frame next =
          frame(static_cast<FrameType>(1 + random() % 8), victim.key(), random() % 4096, random() % 64);
      if (random() % 4 == 0) {
        auto* bytes = reinterpret_cast<std::byte*>(&next);
        bytes[random() % sizeof next] = static_cast<std::byte>(random());
      }
      mallory.write(next.bytes());
      if (random() % 2 == 0) mallory.write(pattern(random() % 80, seed));
      victim.transport().progress();
      std::byte buffer[tcp::max_message];
      (void)victim.endpoint->receive(buffer);
    }
    if (const auto failure = victim.endpoint->failure()) {
      ++failed;
      EXPECT_EQ(failure->peer, "mallory");
    }
    victim.endpoint.reset();
  }
  EXPECT_GT(failed, 500);
  victim.expect_others_well();
}

}  // namespace
}  // namespace cenote::transport::test
