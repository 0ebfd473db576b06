// What travels between two TCP endpoints after the handshake: frames of one header and, for some, a payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace cenote::transport::tcp {

enum class FrameType : std::uint8_t {
  put = 1,    ///< region, token, offset, signal; length bytes follow
  get,        ///< region, token, offset, length
  get_reply,  ///< length bytes follow; replies come in the order of the requests
  add,        ///< region, token, offset; value in `length`
  add_reply,  ///< the old value in `length`
  message,    ///< length bytes follow
  credit,     ///< `length` more bytes of messages may be sent
  close,      ///< a reason of length bytes follows; nothing after it
};

struct Frame {
  FrameType type{};
  std::uint8_t zero[3]{};
  std::uint32_t signal = 0;
  std::uint64_t region = 0;
  std::uint64_t token = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;

  static Frame parse(const std::byte* bytes) {
    Frame frame;
    std::memcpy(&frame, bytes, sizeof frame);
    return frame;
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::as_bytes(std::span(this, 1)); }
};
static_assert(sizeof(Frame) == 40);

inline constexpr std::size_t max_message = 8192;
inline constexpr std::size_t max_reason = 512;

}  // namespace cenote::transport::tcp
