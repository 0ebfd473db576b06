// EventOrder: signals and messages of one peer, brought into their order. Each has a number and may come in
// several parts, one over each rail on which something was written before it: it counts when all parts are
// there and all earlier events have counted.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "runtime/bytes.h"
#include "runtime/result.h"

namespace cenote::transport::verbs {

/// How the 32 bits of an immediate value are used: the signal's slot, parts less one, the event's number.
inline constexpr std::uint32_t number_bits = 22, parts_bits = 3;
inline constexpr std::uint32_t number_mask = (1U << number_bits) - 1;
inline constexpr std::uint32_t parts_mask = (1U << parts_bits) - 1;
/// The slot of a message's parts.
inline constexpr std::uint8_t message_slot = 127;

struct EventPart {
  std::uint32_t number = 0;  ///< modulo 2^22
  std::uint8_t parts = 1;
  std::uint8_t slot = 0;
  bool carries = false;  ///< the message itself
  std::span<const std::byte> message{};

  static EventPart of(std::uint32_t immediate) {
    EventPart part;
    part.number = immediate & number_mask;
    part.parts = static_cast<std::uint8_t>(((immediate >> number_bits) & parts_mask) + 1);
    part.slot = static_cast<std::uint8_t>(immediate >> (number_bits + parts_bits));
    return part;
  }
};
inline std::uint32_t immediate_of(std::uint32_t number, std::uint8_t parts, std::uint8_t slot) {
  return (std::uint32_t{slot} << (number_bits + parts_bits)) | ((parts - 1U) << number_bits) |
         (number & number_mask);
}

class EventOrder {
 public:
  using Deliver = std::function<Result<void>(std::uint8_t slot, std::span<const std::byte> message)>;

  /// True: it is whole and its turn, as nearly all are; it counts as delivered.
  [[nodiscard]] bool is_next(const EventPart& part) { return part.parts == 1 && is_next(part.number); }
  /// The same of one that is whole.
  [[nodiscard]] bool is_next(std::uint32_t number) {
    if (((number ^ (delivered_ + 1)) & number_mask) != 0 || !waiting_.empty()) return false;
    ++delivered_;
    return true;
  }
  /// Any other. Delivers it, and what waited for it, when it is their turn. Errors: protocol_error (one that
  /// no transport sends), those of `deliver`.
  Result<void> take(const EventPart& part, const Deliver& deliver);
  [[nodiscard]] std::uint64_t delivered() const { return delivered_; }

 private:
  struct Waiting {
    std::uint8_t parts = 0, got = 0, slot = 0;
    bool carried = false;
    Bytes message;
  };
  std::uint64_t delivered_ = 0;
  std::map<std::uint64_t, Waiting> waiting_;
};

}  // namespace cenote::transport::verbs
