// Inbox: messages that have come and wait to be taken, and the window that bounds them. The sender counts
// what is under way against message_window and stops when it is full; the receiver says from time to time how
// much was taken. Both count a message as its bytes and message_charge. Not thread-safe.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "runtime/bytes.h"
#include "runtime/result.h"

namespace cenote::transport {

inline constexpr std::size_t message_window = std::size_t{128} * 1024;
inline constexpr std::size_t message_charge = 16;

class Inbox {
 public:
  /// Room for a message of that size is taken; false: the peer was not allowed to send it.
  [[nodiscard]] bool charge(std::size_t bytes) {
    charged_ += bytes + message_charge;
    return charged_ <= message_window;
  }
  /// One that was charged; copied.
  void add(std::span<const std::byte> message) {
    const auto size = static_cast<std::uint32_t>(message.size());
    if (empty()) {
      read_ = end_ = 0;
    } else if (read_ > message_window) {
      std::memmove(bytes_.data(), bytes_.data() + read_, end_ - read_);
      end_ -= std::exchange(read_, 0);
    }
    if (bytes_.size() - end_ < sizeof size + size) bytes_.resize(2 * (end_ + sizeof size + size));
    std::memcpy(bytes_.data() + end_, &size, sizeof size);
    if (size != 0) std::memcpy(bytes_.data() + end_ + sizeof size, message.data(), size);
    end_ += sizeof size + size;
  }
  [[nodiscard]] bool empty() const { return read_ == end_; }
  /// Bytes of messages, those already taken included.
  [[nodiscard]] std::size_t held() const { return end_; }
  /// Bytes of the oldest. Not empty().
  [[nodiscard]] std::size_t next() const {
    std::uint32_t size = 0;
    std::memcpy(&size, bytes_.data() + read_, sizeof size);
    return size;
  }
  /// The oldest, of next() bytes, into `out`, which has room for them.
  void take_next(std::byte* out, std::size_t size) {
    if (size != 0) std::memcpy(out, bytes_.data() + read_ + sizeof(std::uint32_t), size);
    read_ += sizeof(std::uint32_t) + size;
    charged_ -= size + message_charge;
    due_ += size + message_charge;
  }
  /// The oldest into `out`: its size. Not empty(). Errors: invalid_argument (longer than `out`; it stays).
  Result<std::optional<std::size_t>> take(std::span<std::byte> out) {
    const std::size_t size = next();
    if (size > out.size())
      return fail(
          ErrorCode::invalid_argument, "receive",
          "the message has " + std::to_string(size) + " bytes, the buffer " + std::to_string(out.size()));
    take_next(out.data(), size);
    return size;
  }
  /// What the peer is to be told was taken; 0: too little to speak of.
  [[nodiscard]] std::size_t credit() { return due_ >= message_window / 4 ? std::exchange(due_, 0) : 0; }

 private:
  Bytes bytes_;              ///< u32 size, bytes, of each; then room
  std::size_t read_ = 0;     ///< where the oldest begins
  std::size_t end_ = 0;      ///< of the latest
  std::size_t charged_ = 0;  ///< held here, as the peer counts it
  std::size_t due_ = 0;      ///< taken, not said so
};

}  // namespace cenote::transport
