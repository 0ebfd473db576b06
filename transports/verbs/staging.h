// Staging: how the ends of a connection move bytes to GPU memory that no card comes to, and from it. The
// owner of such memory does the copies; a peer puts by messages that carry the bytes and say where they
// belong, and gets by messages that ask for them. They are events like others, so whatever the sender put or
// sends later is told when the bytes are there.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "transports/verbs/pinned.h"

namespace cenote::transport::verbs {

enum class MessageType : std::uint8_t {
  message = 1,
  credit,         ///< value: bytes of messages that were taken
  staged_put,     ///< StagedHead, the bytes
  staged_get,     ///< StagedHead
  staged_answer,  ///< StagedHead with the number of what was asked, the bytes
  staged_room,    ///< value: puts that are done
};

/// Of the number in the key of a region that is reached so. Its first rkeys are a random token.
inline constexpr std::uint64_t staged_mark = std::uint64_t{1} << 63;

struct StagedHead {
  std::uint64_t region = 0;
  std::array<std::uint32_t, 4> token{};
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t number = 0;  ///< of what is asked
};
inline constexpr std::size_t most_staged = max_message - sizeof(StagedHead);  ///< bytes of one message
inline constexpr std::uint32_t staged_window = 64;  ///< puts that a peer may have under way
inline constexpr std::size_t most_asked = 32;       ///< gets

struct Staging {
  /// Bytes in a block, or on their way there from GPU memory.
  struct Chunk {
    std::uint32_t block = Blocks::none;
    std::size_t bytes = 0;
    std::shared_ptr<Pinned> pinned{};  ///< null: they are there
    std::uint64_t copy = 0;
    std::uint64_t number = 0;  ///< of what was asked

    [[nodiscard]] Result<bool> is_ready() const {
      return pinned ? pinned->is_done(copy) : Result<bool>(true);
    }
  };
  /// A get of this side that is to be answered.
  struct Asked {
    std::byte* to = nullptr;
    std::size_t bytes = 0;
    std::uint32_t operation = 0;
    std::shared_ptr<Pinned> pinned{};  ///< set: `to` is GPU memory
  };
  /// A get of the peer's that waits for a slot.
  struct Wanted {
    std::shared_ptr<Pinned> pinned;
    std::uint64_t device = 0;
    std::size_t bytes = 0;
    std::uint64_t number = 0;
  };

  std::deque<Chunk> chunks;  ///< of the request in front
  std::size_t begun = 0;     ///< bytes of it
  std::uint32_t used = 0;    ///< puts that the peer has not said to be done
  std::uint64_t next_number = 1;
  std::map<std::uint64_t, Asked> asked;

  std::uint32_t arrived = 0;  ///< puts of the peer that it has not been told to be done
  std::uint32_t done = 0;     ///< of them
  std::deque<Wanted> wanted;
  std::deque<Chunk> ready;  ///< answers

  [[nodiscard]] bool answers() const { return !wanted.empty() || !ready.empty(); }
  [[nodiscard]] bool copies() const { return answers() || is_copying(chunks); }

 private:
  static bool is_copying(const std::deque<Chunk>& all) {
    if (all.empty()) return false;
    const auto there = all.front().is_ready();
    return there && !*there;
  }
};

}  // namespace cenote::transport::verbs
