// What a peer on the same host that has proved itself may write into the memory it shares with its victim:
// any words, anywhere, while the victim looks. The victim's endpoint takes them or fails; what else it has
// (other memory, which the address sanitizer watches, and another peer) is not touched.
#include <algorithm>

#include "tests/fuzz/fuzzer.h"
#include "tests/unit/transports/mallory.h"

namespace cenote::fuzz {
namespace {

using namespace cenote::transport;
using namespace cenote::transport::test;

/// Stands in an input for the number of the victim's region.
constexpr std::uint32_t some_region = 0x6e656b6f;
constexpr std::size_t words = sizeof(shm::Inbox) / sizeof(shm::Word);

std::uint64_t with_region(std::uint64_t word, std::uint64_t region) {
  if (static_cast<std::uint32_t>(word) != some_region) return word;
  return (word & ~std::uint64_t{~0U}) | region;
}

/// The victim lets the peer write to its region.
void ask_for_region(const Victim& victim, ShmMallory& mallory) {
  Writer body;
  body.put(victim.key().region).put(victim.key().token);
  require(mallory.control.send(shm::PacketType::want_region, body.bytes()).has_value(), "it can be asked");
  require(mallory.read(victim, shm::PacketType::region).fds.size() == 1, "the region is given");
}

void look(const Victim& victim) {
  static Bytes message(shm::max_message);
  victim.transport().progress();
  while (true) {
    const auto came = victim.endpoint->receive(message);
    if (!came || !*came) break;
  }
  std::uint64_t sum = 0;
  for (std::uint32_t slot = 0; slot < signal_slots; ++slot) sum += victim.endpoint->signal(slot);
  (void)sum;
}

/// u16: the first word; u16: how many, and in the upper bits how often the victim looks after them; the
/// words.
void run(std::span<const std::byte> input) {
  static const Kind kind{"shm", [] { return make_shm_transport(); }};
  static Victim victim(kind);
  ShmMallory mallory(victim);
  mallory.finish(victim);
  ask_for_region(victim, mallory);
  auto* const inbox = reinterpret_cast<shm::Word*>(&mallory.inbox());
  Reader in(input);
  while (in.left() >= 2 * sizeof(std::uint16_t)) {
    std::size_t at = in.get<std::uint16_t>();
    const auto how = in.get<std::uint16_t>();
    for (std::size_t left = how & 0xffU; left != 0 && in.left() >= sizeof(std::uint64_t); --left, ++at)
      inbox[at % words].store(with_region(in.get<std::uint64_t>(), victim.key().region),
                              std::memory_order_release);
    for (int turns = how >> 14; turns >= 0; --turns) look(victim);
  }
  look(victim);
  static int runs = 0;
  if (++runs % 64 == 0) victim.expect_others_well();
  require(!::testing::Test::HasFailure(), "its other peer is well");
}

/// Writes `values` from `member` of an inbox on.
void put(Writer& out, std::size_t member, const std::vector<std::uint64_t>& values) {
  out.put(static_cast<std::uint16_t>(member / sizeof(shm::Word)));
  out.put(static_cast<std::uint16_t>(values.size()));
  for (const auto value : values) out.put(value);
}

constexpr std::size_t activity = offsetof(shm::Inbox, activity), puts = offsetof(shm::Inbox, puts),
                      ring = offsetof(shm::Inbox, ring), farewell = offsetof(shm::Inbox, farewell);

}  // namespace

std::vector<Bytes> seeds() {
  Writer small, message, signals, goodbye, control;
  shm::SmallPut head{.offset = 8, .region = some_region, .length = 8, .signal = 3};
  const auto fields = std::bit_cast<shm::SmallPutWords>(head);
  put(small, puts, {1, fields[0], fields[1], 42});
  put(message, ring, {1, 100, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0});
  put(signals, activity, {1, 0, 0, 5, 6, 7, 8, 9});
  put(goodbye, farewell, {5, 0x21657962});
  put(control, activity, {1, 1, 1});
  return {small.take(), message.take(), signals.take(), goodbye.take(), control.take()};
}

}  // namespace cenote::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cenote::fuzz::run(std::as_bytes(std::span(data, size)));
  return 0;
}
