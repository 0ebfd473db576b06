// How operations are cut into pieces, where each goes, and when it is done. Small pieces go over the first
// lane that is alive, in order; large ones over whichever is soonest done with them. A signal or message has
// a part on every lane that was written to since that lane's latest part, so that it counts when all of that
// is there.
#include <algorithm>
#include <cstring>

#include "transports/verbs/verbs_endpoint.h"

namespace cenote::transport::verbs {

Result<bool> VerbsEndpoint::issue(Request& request) {
  if (holds_back() || !replay_.empty()) return false;
  auto issued = issue_any(request);
  ring();
  return issued;
}

Result<bool> VerbsEndpoint::issue_any(Request& request) {
  if (request.on_device || request.staged_there) [[unlikely]] {
    CENOTE_ASSIGN(const Registered* here, gpu_memory_of(request));
    if (request.staged_there || (here != nullptr && here->staged())) return issue_staged(request, here);
  }
  switch (request.kind) {
    case Kind::put:
      return issue_put(request);
    case Kind::get:
      return issue_get(request);
    case Kind::atomic:
      return issue_atomic(request);
    default:
      return issue_message(request);
  }
}

Lane* VerbsEndpoint::first_alive() {
  for (Lane& lane : lanes_) {
    if (lane.alive()) return &lane;
  }
  return nullptr;
}

Lane* VerbsEndpoint::lane_for(std::size_t bytes) {
  if (bytes < large_piece || lanes_.size() == 1) return first_alive();
  Lane* best = nullptr;
  const Lane* const first = first_alive();
  for (Lane& lane : lanes_) {
    if (lane.spare && !first->spare) break;  // spares are last
    if (!lane.alive() || lane.under_way >= lane.window() || !lane.rail->has_room()) continue;
    if (best == nullptr || lane.seconds_for(bytes) < best->seconds_for(bytes)) best = &lane;
  }
  return best;
}

std::size_t VerbsEndpoint::piece_of(std::size_t left) const {
  const std::size_t most = lanes_.size() > 1 ? stripe : lanes_.front().rail->nic().max_chunk;
  return std::min(left, most);
}

// Over one lane the card keeps the order; over two nobody does.
bool VerbsEndpoint::conflicts(const Lane& lane, std::uint64_t from, std::size_t bytes) const {
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const Lane& other) {
    return &other != &lane && other.writes != 0 && other.writes_to(from, bytes);
  });
}

std::uint32_t VerbsEndpoint::begin_operation(const Request& request) {
  if (free_cut_.empty()) {
    free_cut_.push_back(static_cast<std::uint32_t>(cut_.size()));
    cut_.emplace_back();
  }
  const std::uint32_t index = free_cut_.back();
  free_cut_.pop_back();
  cut_[index].tag = request.tag;
  cut_[index].used = true;
  return index;
}

Result<bool> VerbsEndpoint::find_memory(Request& request, Piece& piece, unsigned access) {
  if (const Registered* region = core_->registrations->find(piece.local, piece.length); region != nullptr) {
    piece.borrows = true;
    piece.on_device = region->device != nullptr;
    return true;
  }
  if (request.size <= Blocks::size) {
    piece.block = core_->blocks.take();
    if (piece.block == Blocks::none) return false;
    std::byte* const block = core_->blocks.at(piece.block);
    if (piece.purpose == Purpose::put) std::memcpy(block, piece.local, piece.length);
    return true;
  }
  if (request.operation == no_operation) request.operation = begin_operation(request);
  auto& loan = cut_[request.operation].loan;
  if (!loan) {
    CENOTE_ASSIGN(loan, core_->registrations->make(request.local, request.size, access));
  }
  piece.borrows = true;
  return true;
}

bool VerbsEndpoint::make_event(Lane& lane, Piece& piece, std::uint8_t slot) {
  std::uint8_t parts = 1;
  for (const Lane& other : lanes_) {
    if (&other == &lane || !other.dirty) continue;
    if (!other.rail->has_room()) return false;
    ++parts;
  }
  piece.parts = parts;
  piece.slot = slot;
  piece.event = static_cast<std::uint32_t>(++events_sent_);
  return true;
}

void VerbsEndpoint::post_parts(const Lane& lane, const Piece& piece) {
  for (Lane& other : lanes_) {
    if (&other == &lane || !other.dirty) continue;
    Piece part;
    part.purpose = Purpose::part;
    part.parts = piece.parts;
    part.slot = piece.slot;
    part.event = piece.event;
    post(other, part);
  }
}

std::uint32_t VerbsEndpoint::local_key(const Lane& lane, const Piece& piece) const {
  const std::size_t nic = lane.mine;
  if (piece.block != Blocks::none) return core_->blocks.lkey(nic, piece.block);
  if (piece.operation != no_operation && cut_[piece.operation].loan)
    return cut_[piece.operation].loan->regions[nic]->lkey;
  const Registered* region = core_->registrations->find(piece.local, piece.length);
  return region == nullptr ? 0 : region->regions[nic]->lkey;
}

void VerbsEndpoint::post(Lane& lane, Piece& piece) {
  if (!lane.alone) open_ = nullptr;
  Work work;
  work.length = piece.length;
  std::byte* const block = piece.block != Blocks::none ? core_->blocks.at(piece.block) : nullptr;
  work.local = block != nullptr ? block : piece.local;
  switch (piece.purpose) {
    case Purpose::put:
      work.opcode = piece.parts != 0 ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
      break;
    case Purpose::part:
      work.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      break;
    case Purpose::get:
      work.opcode = IBV_WR_RDMA_READ;
      break;
    case Purpose::atomic:
      work.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
      std::memcpy(&work.add, block + sizeof work.add, sizeof work.add);
      break;
    case Purpose::message:
      work.opcode = IBV_WR_SEND;
      break;
    default:
      break;
  }
  const bool leaves = piece.purpose == Purpose::put || piece.purpose == Purpose::message;
  work.inlined = leaves && piece.length != 0 && piece.length <= lane.rail->max_inline() && !piece.on_device;
  if (!work.inlined && piece.length != 0) work.lkey = local_key(lane, piece);
  if (piece.length != 0 && piece.purpose != Purpose::message) {
    work.remote = piece.remote;
    work.rkey = keys_[piece.key].rkeys[lane.theirs];
  }
  if (piece.parts != 0) work.immediate = immediate_of(piece.event, piece.parts, piece.slot);
  lane.posted(piece);
  if (piece.borrows) ++borrowed_;
  if (piece.operation != no_operation && !piece.again) ++cut_[piece.operation].pieces;
  if (auto queued = lane.rail->queue(work, piece); !queued) [[unlikely]]
    refused(lane, queued.error().message());
}

void VerbsEndpoint::ring() {
  for (Lane& lane : lanes_) {
    if (!lane.rail || !lane.rail->has_queued()) continue;
    if (auto rung = lane.rail->ring(); !rung) refused(lane, rung.error().message());
  }
}

/// A card that does not take what there is room for: its rail has failed, and that is replayed with the rest.
void VerbsEndpoint::refused(Lane& lane, const std::string& why) {
  for (const Piece& piece : lane.rail->take_refused()) lane.refused.push_back(piece);
  lane_failed(lane, lane.rail->text() + ": " + why);
}

Result<bool> VerbsEndpoint::issue_put(Request& request) {
  do {
    const std::size_t left = request.size - request.posted, bytes = piece_of(left);
    const bool last = bytes == left;
    Lane* lane = lane_for(bytes);
    if (lane == nullptr || !lane->rail->has_room()) return false;
    Piece piece;
    piece.purpose = Purpose::put;
    piece.remote = request.remote + request.posted;
    if (bytes != 0 && conflicts(*lane, piece.remote, bytes)) return false;
    piece.length = static_cast<std::uint32_t>(bytes);
    piece.local = request.local + request.posted;
    piece.key = request.key;
    piece.tag = request.tag;
    if (bytes > lane->rail->max_inline() || request.on_device) {
      CENOTE_ASSIGN(const bool found, find_memory(request, piece, 0));
      if (!found) return false;
    }
    if (last && request.signal != no_signal &&
        !make_event(*lane, piece, static_cast<std::uint8_t>(request.signal))) {
      if (piece.block != Blocks::none) core_->blocks.give(piece.block);
      return false;
    }
    if (!last && request.operation == no_operation) request.operation = begin_operation(request);
    piece.operation = request.operation;
    post(*lane, piece);
    if (piece.parts > 1) post_parts(*lane, piece);
    if (last && request.operation != no_operation) cut_[request.operation].whole = true;
    request.posted += bytes;
    if (recovering_ != 0) [[unlikely]]
      return last;
  } while (request.posted < request.size);
  return true;
}

Result<bool> VerbsEndpoint::issue_get(Request& request) {
  while (request.posted < request.size) {
    const std::size_t left = request.size - request.posted, bytes = piece_of(left);
    const bool last = bytes == left;
    Lane* lane = lane_for(bytes);
    if (lane == nullptr || !lane->rail->has_room()) return false;
    Piece piece;
    piece.purpose = Purpose::get;
    piece.remote = request.remote + request.posted;
    if (conflicts(*lane, piece.remote, bytes)) return false;
    piece.length = static_cast<std::uint32_t>(bytes);
    piece.local = request.local + request.posted;
    piece.key = request.key;
    piece.tag = request.tag;
    CENOTE_ASSIGN(const bool found, find_memory(request, piece, IBV_ACCESS_LOCAL_WRITE));
    if (!found) return false;
    if (!last && request.operation == no_operation) request.operation = begin_operation(request);
    piece.operation = request.operation;
    post(*lane, piece);
    if (last && request.operation != no_operation) cut_[request.operation].whole = true;
    request.posted += bytes;
    if (recovering_ != 0) return last;
  }
  return true;
}

Result<bool> VerbsEndpoint::issue_atomic(Request& request) {
  Lane* lane = first_alive();
  if (lane == nullptr || !lane->rail->has_room()) return false;
  if (!lane->rail->nic().port.atomics || !their_ports_[lane->theirs].atomics)
    return fail(Error{ErrorCode::not_supported, "atomic add", "a card on the way has no atomics"}.on(
        lane->rail->text()));
  if (conflicts(*lane, request.remote, request.size)) return false;
  Piece piece;
  piece.block = core_->blocks.take();
  if (piece.block == Blocks::none) return false;
  piece.purpose = Purpose::atomic;
  // In its block the addend follows where the old value will come.
  std::memcpy(core_->blocks.at(piece.block) + sizeof request.value, &request.value, sizeof request.value);
  piece.local = static_cast<std::byte*>(static_cast<void*>(request.old));
  piece.length = sizeof request.value;
  piece.key = request.key;
  piece.remote = request.remote;
  piece.tag = request.tag;
  post(*lane, piece);
  return true;
}

Result<bool> VerbsEndpoint::issue_message(Request& request) {
  Lane* lane = first_alive();
  if (lane == nullptr || !lane->rail->has_room()) return false;
  if (request.block == Blocks::none) request.block = core_->blocks.take();  // a credit has brought none
  if (request.block == Blocks::none) return false;
  Piece piece;
  piece.purpose = Purpose::message;
  if (!make_event(*lane, piece, message_slot)) return false;
  piece.block = request.block;
  piece.length = static_cast<std::uint32_t>(sizeof(MessageHead) + request.size);
  MessageHead head;
  head.number = piece.event;
  head.type = static_cast<std::uint8_t>(request.type);
  head.parts = piece.parts;
  head.value = request.value;
  std::memcpy(core_->blocks.at(request.block), &head, sizeof head);
  post(*lane, piece);
  if (piece.parts > 1) post_parts(*lane, piece);
  return true;
}

void VerbsEndpoint::finish_piece(const Piece& piece) {
  if (piece.borrows) --borrowed_;
  if (piece.on_device && piece.purpose == Purpose::get && hold(piece)) [[unlikely]]
    return;
  if (piece.block != Blocks::none) {
    const bool brings = piece.purpose == Purpose::get || piece.purpose == Purpose::atomic;
    if (brings && piece.local != nullptr)
      std::memcpy(piece.local, core_->blocks.at(piece.block), piece.length);
    core_->blocks.give(piece.block);
  }
  if (piece.purpose > Purpose::atomic) return;
  if (piece.purpose == Purpose::get) stats_.bytes_got += piece.length;
  if (piece.operation == no_operation) {
    --operations_;
    finish(piece.tag);
    return;
  }
  Operation& operation = cut_[piece.operation];
  if (--operation.pieces == 0 && operation.whole) finish_operation(piece.operation, false);
}

void VerbsEndpoint::finish_operation(std::uint32_t index, bool failed) {
  --operations_;
  if (failed) {
    finish_failed(cut_[index].tag);
  } else {
    finish(cut_[index].tag);
  }
  cut_[index] = {};
  free_cut_.push_back(index);
}

void VerbsEndpoint::give_up(const Piece& piece) {
  if (piece.block != Blocks::none) core_->blocks.give(piece.block);
  if (piece.purpose <= Purpose::atomic && piece.operation == no_operation) finish_failed(piece.tag);
}

}  // namespace cenote::transport::verbs
