// The wire of the bootstrap: kinds of frames, the shape of the tree, and how ranks are written for people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "runtime/frame_channel.h"
#include "runtime/result.h"

namespace cenote::bootstrap {

inline constexpr std::uint32_t magic = 0x31424e43;  // "CNB1"
inline constexpr std::uint32_t fan_out = 8;
inline constexpr std::uint32_t max_size = 1U << 20U;
inline constexpr std::size_t max_contribution = std::size_t{1} << 20U;
inline constexpr std::size_t max_broadcast = std::size_t{16} << 20U;
inline constexpr std::size_t max_greeting =
    256;  ///< bytes of a frame from somebody who has not shown the secret
inline constexpr std::size_t max_reply = 4096;  ///< bytes of a frame between root and rank
inline constexpr std::uint32_t no_rank = ~0U;

enum class Kind : std::uint8_t {
  // rank -> root
  hello = 1,    ///< magic, secret, rank, size, port that the rank listens on
  ask_parent,   ///< the parent's address again, please: the one given does not answer
  ask_missing,  ///< who has not arrived?
  done,         ///< this rank has joined; the connection may end
  search,       ///< magic, secret: is this the root of that group? From who does not know the port yet
  // root -> rank
  refused = 16,  ///< code, cause
  parent_at,     ///< host, port
  missing,       ///< text: "ranks 3, 7 of 8 have not arrived"
  lost,          ///< rank, cause: it had registered, and is gone
  here,          ///< yes, and it still forms
  // child -> parent
  child_hello = 32,  ///< magic, secret, rank, size
  ready,             ///< the whole subtree is connected
  contribution,      ///< sequence, operation, rank, bytes
  // parent -> child
  go = 48,  ///< everybody is connected
  entry,    ///< sequence, operation, rank, bytes
  release,  ///< sequence, operation: the barrier is over
  data,     ///< sequence, operation, bytes
  // both ways in the tree
  abort = 64,  ///< sequence, rank at fault, cause
};

enum class Operation : std::uint8_t { allgather = 1, broadcast, barrier };
std::string to_string(Operation operation);

constexpr std::uint32_t parent_of(std::uint32_t rank) { return (rank - 1) / fan_out; }
/// Whether `rank` is `top` or stands below it.
constexpr bool in_subtree(std::uint32_t rank, std::uint32_t top) {
  while (rank > top) rank = parent_of(rank);
  return rank == top;
}

/// "ranks 3, 7-9 of 16", "rank 3 of 16": those for which `is_missing` holds, the first few; "" when none.
std::string list_ranks(std::uint32_t size, const std::function<bool(std::uint32_t)>& is_missing);
/// "have not arrived" or "has not arrived", to go with list_ranks.
std::string have(const std::string& ranks);

}  // namespace cenote::bootstrap
