// The broker's log, and the state machine behind it: any bytes decode to a command or to an error; a command
// that is refused leaves the state as it was; what is accepted has one encoding, which decodes to the same.
#include <algorithm>

#include "pool/state/state.h"
#include "tests/fuzz/fuzzer.h"

namespace cenote::fuzz {
namespace {

using namespace cenote::pool;

/// The log of a short life: u16 length, u16 milliseconds since the last one, the command.
Bytes log_of(const std::vector<Command>& commands) {
  Writer log;
  for (const auto& command : commands) {
    const auto bytes = encode(command);
    log.put(static_cast<std::uint16_t>(bytes.size())).put(std::uint16_t{1000}).raw(bytes);
  }
  return log.take();
}

void run(std::span<const std::byte> bytes) {
  Reader log(bytes);
  State state;
  std::int64_t now = 0;
  for (int taken = 0; log.left() > 0 && taken < 64; ++taken) {
    const auto length = log.get<std::uint16_t>();
    now += log.get<std::uint16_t>();
    const auto one = log.raw(std::min<std::size_t>(length, log.left()));
    const auto command = decode_command(one);
    if (!command) continue;
    require(std::ranges::equal(encode(*command), one), "a command has one encoding");
    const auto before = encode(state);
    if (!apply(state, *command, now)) {
      require(encode(state) == before, "a refused command changes nothing");
      continue;
    }
    const auto after = decode_state(encode(state));
    require(after && *after == state, "a state is decoded to itself");
  }
}

}  // namespace

std::vector<Bytes> seeds() {
  const DeviceSpec gpu{.uuid = "g0", .model = "H200", .memory_bytes = 1U << 30U, .ordinal = 0};
  const command::Grant grant{
      .lease_id = "l0",
      .request_id = "r0",
      .client = "alice",
      .client_key = {1},
      .expires_ms = 60'000,
      .note = {},
      .reason = "best fit",
      .shares = {{.device = "g0", .agent = "a", .memory_bytes = 1U << 30U, .epoch = 1}}};
  const Command start = command::StartTerm{1, 30'000, 1'000};
  const Command joins = command::RegisterAgent{"a", "host:1", "a1", {gpu}};
  return {
      log_of({start}),
      log_of({start, joins, grant}),
      log_of({start, joins, grant, command::Renew{"l0", 90'000, 5}, command::End{"l0"},
              command::Confirm{"l0", "a"}}),
      log_of({start, joins, grant, command::LoseAgent{"a"}, command::RecoverAgent{"a"},
              command::End{"l0", EndCause::failed, "worker was killed"}, command::Reclaim{"l0"}}),
      log_of({start, joins, grant, command::RegisterAgent{"a", "host:1", "a2", {gpu}}}),
      log_of({start, joins, grant, command::StartTerm{2, 30'000, 1'000}, command::Renew{"l0", 90'000, 5}})};
}

}  // namespace cenote::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cenote::fuzz::run(std::as_bytes(std::span(data, size)));
  return 0;
}
