// The usual small get, from the call to the card in one go: into memory that is registered, from memory that
// was last used too, while nothing else waits. What issue.cpp does in general.
#include "transports/verbs/verbs_endpoint.h"

namespace cenote::transport::verbs {

Result<void> VerbsEndpoint::get(std::span<std::byte> dst, RemoteSlice src, std::uint64_t tag) {
  Lane* const lane = open_;
  if (lane == nullptr || full() || !lane->rail->has_room() || dst.size() - 1 >= large_piece - 1)
    return get_in_general(dst, src, tag);
  if (!latest_.is(*src.key) || src.offset > latest_.size || dst.size() > latest_.size - src.offset)
    return get_in_general(dst, src, tag);
  const Registered* const here = core_->registrations->find(dst.data(), dst.size());
  if (here == nullptr) return get_in_general(dst, src, tag);
  Rail& rail = *lane->rail;
  Piece& piece = rail.next_piece();
  piece = {};
  piece.purpose = Purpose::get;
  piece.borrows = true;
  piece.length = static_cast<std::uint32_t>(dst.size());
  piece.key = latest_key_;
  piece.tag = tag;
  piece.local = dst.data();
  piece.remote = latest_.base + src.offset;
  ++stats_.gets;
  ++operations_;
  ++borrowed_;
  const std::uint32_t lkey = here->regions[lane->mine]->lkey;
  if (const int failed = rail.read(dst, lkey, piece.remote, latest_.rkeys[lane->theirs]); failed != 0)
      [[unlikely]]
    post_refused(*lane, failed);
  return done();
}

Result<void> VerbsEndpoint::get_in_general(std::span<std::byte> dst, RemoteSlice src, std::uint64_t tag) {
  if (failure_) return failed();
  if (full()) return queue_full("get");
  if (dst.empty()) {
    finish(tag);
    core_->happened = true;
    return {};
  }
  Request request;
  CENOTE_TRY(check(src, dst.size(), "get", request));
  request.kind = Kind::get;
  request.local = dst.data();
  request.size = dst.size();
  request.tag = tag;
  ++stats_.gets;
  ++operations_;
  submit(request);
  if (open_ == nullptr) open_ = open_lane();  // for the next
  return {};
}

}  // namespace cenote::transport::verbs
