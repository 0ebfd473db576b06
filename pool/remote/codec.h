// Codec: commands to bytes and back. On the wire a command is a header of 8 bytes (u16 opcode, u16 zero, u32
// size of the whole command, a multiple of 8), its fields packed in the order of calls.h, and padding. Little
// endian. Decoding never reads past its input, allocates only to say what is wrong, and accepts no command
// that is not exactly described by the table. Thread-safe: no state.
#pragma once

#include <cstring>
#include <string_view>
#include <type_traits>

#include "pool/remote/calls.h"
#include "runtime/bytes.h"
#include "runtime/result.h"

namespace cenote::pool::remote {

/// The reason with which a worker closes that its agent has ended. A lease ends whole, so it mostly says that
/// another worker of the lease is lost: that one's loss is the cause.
inline constexpr std::string_view ended_by_its_agent = "the worker was told to end";
/// The reason with which a client closes that has no more to do.
inline constexpr std::string_view closed_by_client = "the client closed its session";

inline constexpr std::size_t command_header = 8;

namespace detail {
template <class T>
constexpr bool is_run = std::is_same_v<T, Blob> || std::is_same_v<T, Text>;

struct Measure {
  std::size_t bytes = command_header;
  template <class T>
  void operator()(const char*, const T& value) {
    if constexpr (is_run<T>)
      bytes += 4 + value.size();
    else
      bytes += sizeof(T);
  }
};

struct Store {
  std::byte* at;
  template <class T>
  void operator()(const char*, const T& value) {
    if constexpr (is_run<T>) {
      const auto size = static_cast<std::uint32_t>(value.size());
      std::memcpy(at, &size, 4);
      if (size != 0) std::memcpy(at + 4, value.data(), size);
      at += 4 + size;
    } else {
      std::memcpy(at, &value, sizeof(T));
      at += sizeof(T);
    }
  }
};

struct Load {
  Reader& in;
  template <class T>
  void operator()(const char*, T& value) {
    if constexpr (std::is_same_v<T, Blob>)
      value = in.blob();
    else if constexpr (std::is_same_v<T, Text>)
      value = as_text(in.blob());
    else
      value = in.get<T>();
  }
};

tl::unexpected<Error> malformed(std::uint16_t opcode, const char* why, std::size_t have);
}  // namespace detail

/// Bytes that encode() writes for this command.
template <class C>
std::size_t encoded_size(const C& command) {
  detail::Measure measure;
  visit_fields(command, measure);
  return (measure.bytes + 7) & ~std::size_t{7};
}

/// Writes `command` to the head of `out`; returns its size, 0 when `out` is too small (nothing is then
/// written).
template <class C>
std::size_t encode(const C& command, std::span<std::byte> out) {
  const std::size_t size = encoded_size(command);
  if (size > out.size()) return 0;
  const std::uint32_t head[2] = {static_cast<std::uint32_t>(C::opcode), static_cast<std::uint32_t>(size)};
  std::memcpy(out.data() + size - 8, "\0\0\0\0\0\0\0",
              8);  // the padding; fields then overwrite what is theirs
  std::memcpy(out.data(), head, sizeof head);
  visit_fields(command, detail::Store{out.data() + command_header});
  return size;
}

/// Size of the command at the head of `in`. Errors: protocol_error.
Result<std::size_t> command_size(std::span<const std::byte> in);

/// Decodes the command that fills `in` exactly and calls handler(command), which returns Result<void>.
/// Errors: protocol_error, and what the handler returns.
template <class Handler>
Result<void> dispatch(std::span<const std::byte> in, Handler&& handler) {
  Reader reader(in);
  const auto opcode = reader.get<std::uint16_t>();
  const auto zero = reader.get<std::uint16_t>();
  const auto size = reader.get<std::uint32_t>();
  if (reader.bad() || zero != 0 || size != in.size() || size % 8 != 0)
    return detail::malformed(opcode, "bad header", in.size());
  switch (static_cast<Opcode>(opcode)) {
#define CENOTE_REMOTE_CASE(Struct, name, answered, fields)                                               \
  case Opcode::name: {                                                                                   \
    Struct command;                                                                                      \
    visit_fields(command, detail::Load{reader});                                                         \
    if (reader.bad() || reader.left() >= 8) return detail::malformed(opcode, "wrong length", in.size()); \
    return handler(command);                                                                             \
  }
    CENOTE_REMOTE_CALLS(CENOTE_REMOTE_CASE, CENOTE_REMOTE_NO_FIELD)
#undef CENOTE_REMOTE_CASE
    case Opcode::none:
    case Opcode::count:
      break;
  }
  return detail::malformed(opcode, "unknown opcode", in.size());
}

/// Decodes one command; texts and blobs are views into `in`. Errors: protocol_error.
Result<Command> decode(std::span<const std::byte> in);

/// "launch", for errors and logs; "unknown" for a number without a row.
std::string_view to_string(Opcode opcode);

}  // namespace cenote::pool::remote
