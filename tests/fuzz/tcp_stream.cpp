// What a peer who knows the secret sends over TCP after the handshake: any bytes. The victim's endpoint takes
// them or fails; what else it has (other memory, which the address sanitizer watches, and another peer) is
// not touched.
#include "tests/fuzz/fuzzer.h"
#include "tests/unit/transports/mallory.h"

namespace cenote::fuzz {
namespace {

using namespace cenote::transport;
using namespace cenote::transport::test;
using tcp::Frame;
using tcp::FrameType;

/// Stands in an input for what is random: the token of the victim's region.
constexpr std::uint64_t some_token = 0x6e656b6f7420612d;

Frame frame(FrameType type, std::uint64_t offset = 0, std::uint64_t length = 0,
            std::uint32_t signal = no_signal) {
  Frame made;
  made.type = type;
  made.signal = signal;
  made.region = 1;
  made.token = some_token;
  made.offset = offset;
  made.length = length;
  return made;
}

void run(std::span<const std::byte> input) {
  static const Kind kind{"tcp", [] { return make_tcp_transport(); }};
  static Victim victim(kind);
  const RegionKey key = victim.key();
  Bytes bytes(input.begin(), input.end());
  for (std::size_t at = 0; at + sizeof some_token <= bytes.size(); at += sizeof some_token) {
    if (std::memcmp(&bytes[at], &some_token, sizeof some_token) == 0)
      std::memcpy(&bytes[at], &key.token, sizeof key.token);
  }
  const TcpMallory mallory(victim);
  Bytes message(tcp::max_message);
  const auto taken = [&] {
    auto came = victim.endpoint->receive(message);
    return came && *came;
  };
  for (std::size_t sent = 0; sent < bytes.size() && !victim.endpoint->failure();) {
    sent += mallory.write(std::span(bytes).subspan(sent));
    victim.transport().progress();
    while (taken()) {
    }
  }
  for (int i = 0; i < 4; ++i) victim.transport().progress();
  while (taken()) {
  }
  static int runs = 0;
  if (++runs % 256 == 0) victim.expect_others_well();
  require(!::testing::Test::HasFailure(), "its other peer is well");
}

Bytes stream(const std::vector<std::pair<Frame, std::size_t>>& frames) {
  Writer out;
  for (const auto& [head, payload] : frames) out.raw(head.bytes()).raw(Bytes(payload, std::byte{'x'}));
  return out.take();
}

}  // namespace

std::vector<Bytes> seeds() {
  return {stream({{frame(FrameType::put, 0, 64, 3), 64}, {frame(FrameType::put, 4088, 8), 8}}),
          stream({{frame(FrameType::get, 8, 4000), 0}, {frame(FrameType::add, 16, 5), 0}}),
          stream({{frame(FrameType::message, 0, 100), 100}, {frame(FrameType::message), 0}}),
          stream({{frame(FrameType::put, 0, 0, 1), 0}, {frame(FrameType::close, 0, 4), 4}}),
          stream({{frame(FrameType::get_reply, 0, 8), 8}, {frame(FrameType::credit, 0, 8), 0}})};
}

}  // namespace cenote::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cenote::fuzz::run(std::as_bytes(std::span(data, size)));
  return 0;
}
