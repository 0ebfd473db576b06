// What a ledger looks like in memory, for who writes it (ledger.h) and who reads it (ledger_reader.h): a head
// and rows of 64-bit words, at the same place for both. `Word` is an atomic for the one, a number for the
// other.
#pragma once

#include <atomic>
#include <cstdint>

namespace cenote::ledger_page {

/// The memfd's name: /proc/PID/fd shows it.
inline constexpr char memory_name[] = "cenote-ledger";
/// Says what it is, and which layout.
inline constexpr std::uint64_t magic = 0x3130'7267'646c'6e63;  // "cnldgr01"

inline constexpr std::uint32_t rows = 256;
inline constexpr std::uint32_t name_words = 2;      ///< of an operation or a stage: 16 bytes, 0 filled
inline constexpr std::uint32_t failure_words = 64;  ///< 512 bytes, 0 filled

template <class Word>
struct Head {
  Word magic;  ///< written last
  Word pid;    ///< as its own process counts
  Word group, rank, size;
  Word begun;      ///< number of the last collective that began
  Word begun_at;   ///< Clock, as are all times
  Word seen;       ///< when the program last let its operations move and nothing did
  Word not_shown;  ///< operations in flight that found no row
  Word failed;     ///< 1: the three below are there
  Word failed_at;
  Word culprit;  ///< a rank
  Word failure[failure_words];
  Word unused[512 - 12 - failure_words];
};

/// The version is odd while the row is written. A free row has no operation.
template <class Word>
struct Row {
  Word version;
  Word operation[name_words], stage[name_words];
  Word sequence, bytes;
  Word count, detail;  ///< the writer's own
  Word began, in_stage_since;
  Word waits_for;  ///< the rank it waits for; in the upper half, the one at the end of that chain, as far as
                   ///< it was told
  Word unused[4];
};

template <class Word>
struct Page {
  Head<Word> head;
  Row<Word> row[rows];
};

using Written = Page<std::atomic<std::uint64_t>>;
using Copied = Page<std::uint64_t>;
static_assert(sizeof(Row<std::uint64_t>) == 128 && sizeof(Head<std::uint64_t>) == 4096);
static_assert(sizeof(Written) == sizeof(Copied) && std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace cenote::ledger_page
