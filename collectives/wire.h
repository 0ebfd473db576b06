// What the ranks of a communicator say to each other by Endpoint::send. Little endian, fixed layout. Bulk
// data does not come this way: it is put into the receiver's staging ring and announced by a signal.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "collectives/schedule.h"
#include "transports/transport.h"

namespace cenote::collectives::wire {

enum class Kind : std::uint8_t {
  hello = 1,    ///< Hello: where to put chunks
  data = 2,     ///< a chunk that fits a message; with_call: a CallHeader stands before it
  call = 3,     ///< CallHeader, before the first chunk of an operation that does not fit a message
  stalled = 4,  ///< Stalled: I wait, and for whom
};

inline constexpr std::uint8_t with_call = 1;

struct Head {
  Kind kind = Kind::data;
  std::uint8_t flags = 0;
  std::uint16_t size = 0;  ///< payload bytes of data
  std::uint32_t sequence = 0;
};

/// What a rank believes that the group is doing; ranks that disagree find out before a byte is combined.
struct CallHeader {
  std::uint64_t count = 0;
  std::uint64_t algorithm = 0;  ///< hash of its name
  std::uint32_t root = 0;
  std::uint8_t operation = 0;
  std::uint8_t type = 0;
  std::uint8_t op = 0;
  std::uint8_t reserved = 0;
  bool operator==(const CallHeader&) const = default;
};

struct Hello {
  transport::RemoteKey key{};
};

struct Stalled {
  CallHeader call{};
  std::uint32_t waits_for = 0;  ///< the rank that, as far as the sender knows, holds everybody up
  std::uint32_t reserved = 0;
};

static_assert(sizeof(Head) == 8 && sizeof(CallHeader) == 24 && sizeof(Stalled) == 32);

/// Bytes of a message in front of its data.
inline constexpr std::size_t overhead = sizeof(Head) + sizeof(CallHeader);
inline constexpr std::size_t max_data = 1024;
inline constexpr std::size_t max_message = overhead + max_data;
static_assert(sizeof(Head) + sizeof(Hello) <= max_message);

/// Signal slots of an endpoint.
inline constexpr std::uint32_t chunk_signal = 0;     ///< the sender: one more chunk lies in your staging ring
inline constexpr std::uint32_t credit_signal = 1;    ///< the receiver: one more chunk of yours is consumed
inline constexpr std::uint32_t greeting_signal = 2;  ///< one more window is made at the peer
inline constexpr std::uint32_t user_signal = 32;     ///< the first of those that programs use
inline constexpr std::uint32_t user_signals = transport::signal_slots - user_signal;

/// The call but for its count, as one number that is not 0; and back, with that count.
std::uint64_t packed(const CallHeader& call);
CallHeader unpacked(std::uint64_t number, std::uint64_t count);

/// "allreduce of 12 float32 by sum"
std::string text(const CallHeader& call);

}  // namespace cenote::collectives::wire
