// Lane: a rail to the peer and what an endpoint knows of it: how it stands, how fast it is, what is under
// way. Its rail may die and be made anew; the lane stays.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transports/verbs/rail.h"

namespace cenote::transport::verbs {

struct Lane {
  enum class State : std::uint8_t {
    proving,  ///< of the first connection
    alive,
    failing,   ///< its rail is about to be taken down
    down,      ///< here; the peer has not said that its end is down
    gone,      ///< on both sides
    reviving,  ///< a new rail is being proved
  };

  std::unique_ptr<Rail> rail;
  State state = State::proving;
  std::size_t mine = 0, theirs = 0;  ///< ports by index
  std::vector<GidPair> candidates;
  std::size_t candidate = 0;  ///< that was proved
  RailOffer offer;
  bool spare = false;   ///< carries data only when no other is alive
  bool parked = false;  ///< taken down while it was well, and not tried since
  bool proved = false, mine_done = false, mine_ok = false;
  std::string why;  ///< what ended it, or its latest attempt

  // Recovery.
  std::uint32_t parts_posted = 0;    ///< of events, on this rail
  std::uint32_t parts_received = 0;  ///< from the peer
  std::uint32_t peer_received = 0;   ///< what the peer says of parts_posted
  bool peer_down = false;
  std::vector<Piece> refused;  ///< what the card did not take: after all that is under way
  std::vector<Piece> orphans;  ///< not known to be done when it died, in order
  Clock::time_point retry_at{}, latest_good{};
  Clock::duration pause = std::chrono::seconds(1);  ///< before the next attempt to revive it

  // Traffic.
  bool alone = true;          ///< the only lane: what of it others would have to know is not kept
  bool dirty = false;         ///< written to since its latest part of an event
  std::size_t under_way = 0;  ///< bytes of large pieces
  std::size_t writes = 0;     ///< pieces under way that write, between low and high there
  std::uint64_t low = 0, high = 0;
  double rate = 1e9;         ///< bytes a second, as completions of large pieces show
  std::size_t measured = 0;  ///< bytes done since
  Clock::time_point measured_since{};

  [[nodiscard]] bool alive() const { return state == State::alive; }
  void posted(Piece& piece);
  /// What the other lanes have to know of a write; posted() calls it.
  void note_write(const Piece& piece);
  void finished(const Piece& piece);
  /// Bytes that may be under way before others are tried: a few milliseconds' worth.
  [[nodiscard]] std::size_t window() const;
  /// Seconds until `bytes` more would be done.
  [[nodiscard]] double seconds_for(std::size_t bytes) const {
    return static_cast<double>(under_way + bytes) / rate;
  }
  /// Whether something under way writes where [from, from + bytes) is.
  [[nodiscard]] bool writes_to(std::uint64_t from, std::size_t bytes) const;
  /// Nothing is under way, and nothing is known of how it was.
  void forget_traffic();
};

/// From this size on a piece goes over whatever lane is soonest done with it; smaller ones go over the first.
inline constexpr std::size_t large_piece = 8193;
/// Larger operations are cut where there are several lanes; a multiple of 128.
inline constexpr std::size_t stripe = std::size_t{128} * 1024;

}  // namespace cenote::transport::verbs
