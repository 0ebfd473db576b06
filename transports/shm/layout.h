// The memory that two processes share, to the byte. Who may write what:
//   Door    by its owner only (peers can map it only for reading): is the owner asleep?
//   Inbox   by the peer only: signals to, messages for, news about the owner's own messages, and at the end
//   why
//           the peer went: memory keeps that when sockets and processes are gone
//   RegionHeader  by the owner only, once, when the region dies
// Nothing read from an Inbox is trusted: it is copied once and checked.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "transports/transport.h"

namespace cenote::transport::shm {

using Word = std::atomic<std::uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8);

inline constexpr std::size_t line_size = 64;
inline constexpr std::size_t page_size = 4096;

/// One per transport. Even: awake; odd: asleep, or about to be. Every sleep has its own number.
struct Door {
  alignas(line_size) Word sleep;
};

/// A message takes whole lines. Each begins with its own sequence number, so a line never holds, where a
/// number is expected, bytes that a sender chose. The first also holds the message's size.
struct alignas(line_size) Line {
  Word sequence;
  std::byte payload[line_size - sizeof(Word)];
};
static_assert(sizeof(Line) == line_size);

inline constexpr std::uint64_t ring_lines = 1024;
static_assert(std::has_single_bit(ring_lines));
inline constexpr std::size_t first_payload = sizeof(Line::payload) - sizeof(std::uint32_t);
inline constexpr std::size_t max_message = 8192;
constexpr std::uint64_t lines_for(std::size_t message) {
  return message <= first_payload
             ? 1
             : 1 + (message - first_payload + sizeof(Line::payload) - 1) / sizeof(Line::payload);
}
static_assert(lines_for(max_message) * 4 < ring_lines);

/// Signals that share the line of `activity`: a put that uses one of them moves one line.
inline constexpr std::uint32_t near_signals = 6;
inline constexpr std::size_t max_reason = 512;

struct Inbox {
  alignas(line_size) Word activity;  ///< changes with every signal and credit
  Word control;                      ///< changes when the peer wrote to the socket
  Word near[near_signals];
  alignas(line_size) Word taken;  ///< lines of the owner's messages that the peer has taken
  alignas(line_size) Word far[signal_slots - near_signals];
  alignas(line_size) Line ring[ring_lines];
  alignas(line_size) Word farewell;  ///< 0: the peer is there; otherwise 1 + the size of its reason
  std::byte reason[max_reason];

  [[nodiscard]] Word& signal(std::uint32_t slot) {
    return slot < near_signals ? near[slot] : far[slot - near_signals];
  }
};
inline constexpr std::size_t inbox_size = (sizeof(Inbox) + page_size - 1) / page_size * page_size;

/// The first page of a region; the rest is the user's.
struct RegionHeader {
  std::atomic<std::uint32_t> revoked;
};

}  // namespace cenote::transport::shm
