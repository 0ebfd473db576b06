// What travels between two UCX endpoints: active messages, each one Frame as its header and up to max_chunk
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cenote::transport::ucx {

enum class FrameType : std::uint8_t {
  put = 1,    ///< region, token, offset, signal; `length` bytes come with it
  get,        ///< region, token, offset, length
  get_reply,  ///< `length` bytes come with it, from `offset` of what was asked for; in the order of requests
  add,        ///< region, token, offset; value in `length`
  add_reply,  ///< the old value in `length`
  message,    ///< `length` bytes come with it
  credit,     ///< `length` more bytes of messages may be sent
  nothing,  ///< tells its sender that what went before has left; `length` bytes without meaning come with it
};

inline constexpr std::uint8_t silent = 0xff;  ///< the signal of a put that gives none

struct Frame {
  std::uint64_t session = 0;   ///< which endpoint it is for: random, known to its peer alone
  std::uint32_t sequence = 0;  ///< counts from 0: a frame lost or doubled is noticed
  std::uint32_t taken = 0;     ///< frames that its sender has had from the other side
  FrameType type{};
  std::uint8_t signal = silent;
  std::uint8_t zero[6]{};
  std::uint64_t region = 0;
  std::uint64_t token = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};
static_assert(sizeof(Frame) == 56);

inline constexpr std::size_t max_chunk = 250'000;
inline constexpr std::size_t max_message = 4096;
inline constexpr std::size_t max_reason = 512;

}  // namespace cenote::transport::ucx
