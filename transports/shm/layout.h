// The memory that two processes share, to the byte. Who may write what:
//   Door    by its owner only (peers can map it only for reading): is the owner asleep?
//   Inbox   by the peer only: small puts to, signals to, messages for, news about what the owner sent, and at
//           the end why the peer went: memory keeps that when sockets and processes are gone
//   RegionHeader  by the owner only, once, when the region dies
// Nothing read from an Inbox is trusted: it is copied once and checked.
#pragma once

#include <array>
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

/// A small put stands in one line: the bytes, where they belong, and the signal that follows them. The
/// receiver copies it before it looks at it, and puts the bytes there itself.
struct SmallPut {
  std::uint64_t offset = 0;
  std::uint32_t region = 0;
  std::uint16_t taken = 0;  ///< low bits of the sender's count of small puts that it has taken
  std::uint8_t length = 0;
  std::uint8_t signal = 0;
};
using SmallPutWords = std::array<std::uint64_t, sizeof(SmallPut) / sizeof(Word)>;

/// `sequence` is the put's number, from 1, and is written last.
struct alignas(line_size) PutLine {
  Word sequence;
  std::array<Word, std::tuple_size_v<SmallPutWords>> put;
  std::array<Word, 5> payload;
};
static_assert(sizeof(PutLine) == line_size);
inline constexpr std::size_t max_small = sizeof(PutLine::payload);
inline constexpr std::uint64_t put_lines = 64;
static_assert(std::has_single_bit(put_lines));

/// Signals that share the line of `activity`: a put that uses one of them moves one line.
inline constexpr std::uint32_t near_signals = 5;
inline constexpr std::size_t max_reason = 512;

struct Inbox {
  alignas(line_size) Word activity;  ///< changes with every signal and credit
  Word control;     ///< changes when the peer wrote to the socket, or wants to know what was taken
  Word puts_taken;  ///< the owner's small puts that the peer has taken
  Word near[near_signals];
  alignas(line_size) PutLine puts[put_lines];
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
