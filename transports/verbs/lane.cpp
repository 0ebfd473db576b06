#include "transports/verbs/lane.h"

#include <algorithm>

namespace cenote::transport::verbs {
namespace {

constexpr std::size_t least_window = std::size_t{512} * 1024, most_window = std::size_t{16} * 1024 * 1024;
constexpr double window_seconds = 0.008;
constexpr double weight_of_latest = 0.3;
constexpr auto measure_at_least = std::chrono::milliseconds(2);

}  // namespace

void Lane::note_write(const Piece& piece) {
  low = writes == 0 ? piece.remote : std::min(low, piece.remote);
  high = writes == 0 ? piece.remote + piece.length : std::max(high, piece.remote + piece.length);
  ++writes;
  dirty = piece.parts == 0;
}

void Lane::posted(Piece& piece) {
  if (piece.parts != 0) {
    piece.part_number = ++parts_posted;
    dirty = false;
  }
  if (!alone && piece.writes()) note_write(piece);
  if (piece.length < large_piece) return;
  if (under_way == 0) {
    measured_since = Clock::now();
    measured = 0;
  }
  under_way += piece.length;
}

void Lane::finished(const Piece& piece) {
  if (!alone && piece.writes()) --writes;
  if (piece.length < large_piece) return;
  under_way -= piece.length;
  measured += piece.length;
  latest_good = Clock::now();
  const std::chrono::duration<double> busy = latest_good - measured_since;
  if (busy < measure_at_least && (under_way != 0 || busy.count() <= 0)) return;
  rate = (1 - weight_of_latest) * rate + weight_of_latest * static_cast<double>(measured) / busy.count();
  measured_since = latest_good;
  measured = 0;
}

std::size_t Lane::window() const {
  return std::clamp(static_cast<std::size_t>(rate * window_seconds), least_window, most_window);
}

bool Lane::writes_to(std::uint64_t from, std::size_t bytes) const {
  if (writes == 0 || from >= high || from + bytes <= low) return false;
  return rail->any_under_way([&](const Piece& piece) {
    return piece.writes() && from < piece.remote + piece.length && piece.remote < from + bytes;
  });
}

void Lane::forget_traffic() {
  dirty = false;
  under_way = writes = 0;
  parts_posted = parts_received = peer_received = 0;
  peer_down = false;
}

}  // namespace cenote::transport::verbs
