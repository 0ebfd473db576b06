// The usual small put, from the call to the card in one go: what issue.cpp does in general, for a put that
// fits into a work request, into memory that was written to before, while nothing else waits. Its
// instructions are counted next to those of perftest's loop (./dev bench instructions).
#include "transports/verbs/verbs_endpoint.h"

namespace cenote::transport::verbs {

// Null: what is posted now has to wait, or to look at other lanes first.
Lane* VerbsEndpoint::open_lane() {
  if (core_->device_regions != 0 || staging_) return nullptr;  // bytes of a GPU are for issue.cpp
  if (stage_ != Stage::ready || holds_back() || !waiting_.empty() || !replay_.empty()) return nullptr;
  Lane* open = nullptr;
  for (Lane& lane : lanes_) {
    if (open == nullptr && lane.alive()) {
      open = &lane;
    } else if (lane.writes != 0 || lane.dirty) {
      return nullptr;
    }
  }
  return open;
}

template <bool with_signal>
inline void VerbsEndpoint::post_at_once(Lane& lane, std::span<const std::byte> src, std::uint64_t remote,
                                        std::uint32_t signal, std::uint64_t tag) {
  Rail& rail = *lane.rail;
  const auto event = static_cast<std::uint32_t>(events_sent_ + 1);
  const auto slot = static_cast<std::uint8_t>(signal);
  Piece& piece = rail.next_piece();
  piece.purpose = Purpose::put;
  piece.parts = with_signal ? 1 : 0;
  piece.slot = with_signal ? slot : 0;
  piece.again = false;
  piece.borrows = false;
  piece.plain = true;
  piece.on_device = false;
  piece.unused = 0;
  piece.event = with_signal ? event : 0;
  piece.part_number = with_signal ? lane.parts_posted + 1 : 0;
  piece.length = static_cast<std::uint32_t>(src.size());
  piece.key = latest_key_;
  piece.block = Blocks::none;
  piece.operation = no_operation;
  piece.tag = tag;
  piece.local = const_cast<std::byte*>(src.data());  // only read
  piece.remote = remote;
  if (with_signal) {
    ++events_sent_;
    ++lane.parts_posted;
  }
  ++stats_.puts;
  stats_.bytes_put += src.size();
  ++operations_;
  const std::uint32_t rkey = latest_.rkeys[lane.theirs];
  const int failed = with_signal ? rail.write_inline(src, remote, rkey, immediate_of(event, 1, slot))
                                 : rail.write_inline(src, remote, rkey);
  if (failed != 0) [[unlikely]]
    return post_refused(lane, failed);
  if (!lane.alone) lane.note_write(rail.latest());
}

void VerbsEndpoint::post_refused(Lane& lane, int error) {
  const Piece& piece = lane.rail->next_piece();
  if (!lane.alone && piece.writes()) lane.note_write(piece);
  lane.refused.push_back(piece);
  lane_failed(lane, lane.rail->text() + ": " + cenote::system_error("post to the card", error).message());
}

Result<void> VerbsEndpoint::put(std::span<const std::byte> src, RemoteSlice dst, std::uint32_t signal,
                                std::uint64_t tag) {
  Lane* const lane = open_;
  if (lane == nullptr || full()) [[unlikely]]
    return put_in_general(src, dst, signal, tag);
  const Rail& rail = *lane->rail;
  const bool fits = src.size() - 1 < rail.max_inline();  // and is not empty: else there may be no key
  if (!fits || !rail.has_room() || !latest_.is(*dst.key)) [[unlikely]]
    return put_in_general(src, dst, signal, tag);
  const bool inside = dst.offset <= latest_.size && src.size() <= latest_.size - dst.offset;
  if (!inside) [[unlikely]]
    return put_in_general(src, dst, signal, tag);
  const std::uint64_t remote = latest_.base + dst.offset;
  if (signal == no_signal) {
    post_at_once<false>(*lane, src, remote, signal, tag);
  } else if (signal < signal_slots) {
    post_at_once<true>(*lane, src, remote, signal, tag);
  } else {
    return put_in_general(src, dst, signal, tag);
  }
  return done();
}

void VerbsEndpoint::finish_plain(Rail& rail, std::uint32_t count) {
  while (count != 0 && !rail.idle()) {
    const std::span<const Piece> pieces = rail.oldest(count);
    const std::span<Done> room = done_.room(pieces.size());
    std::size_t plain = 0;
    for (; plain < room.size() && pieces[plain].plain; ++plain)
      room[plain] = Done{pieces[plain].tag, How::done};
    done_.added(plain);
    rail.finish(plain);
    operations_ -= plain;
    count -= static_cast<std::uint32_t>(plain);
    if (plain < room.size()) return;
  }
}

Result<void> VerbsEndpoint::put_in_general(std::span<const std::byte> src, RemoteSlice dst,
                                           std::uint32_t signal, std::uint64_t tag) {
  if (failure_) [[unlikely]]
    return failed();
  if (full()) [[unlikely]]
    return queue_full("put");
  if (signal >= signal_slots && signal != no_signal) [[unlikely]]
    return fail(ErrorCode::invalid_argument, "put", "no signal slot " + std::to_string(signal));
  Request request;
  CENOTE_TRY(check(dst, src.size(), "put", request));
  request.signal = signal;
  request.local = const_cast<std::byte*>(src.data());  // only read
  request.size = src.size();
  request.tag = tag;
  ++stats_.puts;
  stats_.bytes_put += src.size();
  ++operations_;
  submit(request);
  if (open_ == nullptr) open_ = open_lane();  // for the next
  return done();
}

}  // namespace cenote::transport::verbs
