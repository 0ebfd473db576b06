// GPU memory that no card comes to: copies between it and pinned memory, a few at once, each sent as soon as
// it is there; see staging.h.
#include <algorithm>
#include <cstring>

#include "transports/verbs/verbs_endpoint.h"

namespace cenote::transport::verbs {
namespace {

constexpr std::size_t reserved_blocks = 64;  // for what other endpoints send meanwhile
constexpr std::uint32_t told_at_once = staged_window / 4;

tl::unexpected<Error> nonsense(const char* what) {
  return fail(ErrorCode::protocol_error, "read from peer", what);
}

std::uint64_t device_address(const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at); }

}  // namespace

void VerbsEndpoint::note_memory(Request& request) const {
  if (request.kind != Kind::put && request.kind != Kind::get) return;
  const Registered* region = core_->registrations->find(request.local, request.size);
  request.on_device = region != nullptr && region->device != nullptr;
}

Result<const Registered*> VerbsEndpoint::gpu_memory_of(const Request& request) const {
  if (!request.on_device) return nullptr;
  const Registered* here = core_->registrations->find(request.local, request.size);
  if (here != nullptr && here->device != nullptr) return here;
  return fail(ErrorCode::invalid_argument, "reach GPU memory of this side",
              "its region was destroyed before the operation was done");
}

Result<bool> VerbsEndpoint::issue_staged(Request& request, const Registered* here) {
  const bool put = request.kind == Kind::put;
  if (!request.staged_there) return put ? put_from_staged(request, *here) : get_into_staged(request, *here);
  if (here != nullptr && !here->pinned) {
    CENOTE_ASSIGN(here->pinned, core_->pinned_for(here->device));
  }
  return put ? put_to_staged(request, here) : get_from_staged(request, here);
}

Result<void> VerbsEndpoint::begin_chunks(const Request& request, const Registered* here, std::size_t most,
                                         std::size_t head) {
  Staging& state = staging();
  while (state.begun < request.size) {
    Staging::Chunk chunk;
    chunk.bytes = std::min(most, request.size - state.begun);
    const std::byte* from = request.local + state.begun;
    if (here == nullptr) {
      if (core_->blocks.left() <= reserved_blocks) return {};
      chunk.block = core_->blocks.take();
      std::memcpy(core_->blocks.at(chunk.block) + head, from, chunk.bytes);
    } else {
      chunk.pinned = here->pinned;
      chunk.block = Blocks::take(*chunk.pinned);
      if (chunk.block == Blocks::none) return {};
      auto copy =
          chunk.pinned->fetch(core_->blocks.at(chunk.block) + head, device_address(from), chunk.bytes);
      if (!copy) {
        core_->blocks.give(chunk.block);
        return fail(std::move(copy).error());
      }
      chunk.copy = *copy;
    }
    state.begun += chunk.bytes;
    state.chunks.push_back(std::move(chunk));
  }
  return {};
}

Result<bool> VerbsEndpoint::put_from_staged(Request& request, const Registered& here) {
  Staging& state = staging();
  while (request.posted < request.size) {
    if (recovering_ != 0) return false;
    CENOTE_TRY(begin_chunks(request, &here, Pinned::size, 0));
    if (state.chunks.empty()) return false;
    const Staging::Chunk& chunk = state.chunks.front();
    CENOTE_ASSIGN(const bool ready, chunk.is_ready());
    Lane* lane = ready ? lane_for(chunk.bytes) : nullptr;
    if (lane == nullptr || !lane->rail->has_room()) return false;
    Piece piece;
    piece.purpose = Purpose::put;
    piece.remote = request.remote + request.posted;
    if (conflicts(*lane, piece.remote, chunk.bytes)) return false;
    piece.length = static_cast<std::uint32_t>(chunk.bytes);
    piece.block = chunk.block;
    piece.key = request.key;
    piece.tag = request.tag;
    const bool last = request.posted + chunk.bytes == request.size;
    if (last && request.signal != no_signal &&
        !make_event(*lane, piece, static_cast<std::uint8_t>(request.signal)))
      return false;
    if (request.operation == no_operation) request.operation = begin_operation(request);
    piece.operation = request.operation;
    request.posted += chunk.bytes;
    state.chunks.pop_front();
    post(*lane, piece);
    if (piece.parts > 1) post_parts(*lane, piece);
  }
  cut_[request.operation].whole = true;
  state.begun = 0;
  return true;
}

StagedHead VerbsEndpoint::head_of(const Request& request, std::size_t bytes) {
  StagedHead head;
  head.region = request.staged_key.region;
  std::copy_n(request.staged_key.rkeys.begin(), head.token.size(), head.token.begin());
  head.offset = request.remote + request.posted;
  head.bytes = bytes;
  return head;
}

// The bytes go as messages; what ends it, and signals, is a write of nothing behind them.
/// A message of `bytes` that are in `block` already, behind its heads.
Result<bool> VerbsEndpoint::issue_staged_note(MessageType type, std::uint32_t block, const StagedHead& head,
                                              std::size_t bytes) {
  std::memcpy(core_->blocks.at(block) + sizeof(MessageHead), &head, sizeof head);
  Request note;
  note.kind = Kind::message;
  note.type = type;
  note.block = block;
  note.size = sizeof head + bytes;
  return issue_message(note);
}

Result<bool> VerbsEndpoint::put_to_staged(Request& request, const Registered* here) {
  Staging& state = staging();
  constexpr std::size_t before = sizeof(MessageHead) + sizeof(StagedHead);
  while (request.posted < request.size) {
    if (recovering_ != 0) return false;
    CENOTE_TRY(begin_chunks(request, here, most_staged, before));
    if (state.chunks.empty() || state.used >= staged_window) return false;
    const Staging::Chunk& chunk = state.chunks.front();
    CENOTE_ASSIGN(const bool ready, chunk.is_ready());
    if (!ready) return false;
    const StagedHead head = head_of(request, chunk.bytes);
    CENOTE_ASSIGN(const bool posted,
                  issue_staged_note(MessageType::staged_put, chunk.block, head, chunk.bytes));
    if (!posted) return false;
    ++state.used;
    request.posted += chunk.bytes;
    state.chunks.pop_front();
  }
  Lane* lane = recovering_ == 0 ? first_alive() : nullptr;
  if (lane == nullptr || !lane->rail->has_room()) return false;
  Piece piece;
  piece.purpose = Purpose::put;
  piece.tag = request.tag;
  if (request.signal != no_signal && !make_event(*lane, piece, static_cast<std::uint8_t>(request.signal)))
    return false;
  post(*lane, piece);
  if (piece.parts > 1) post_parts(*lane, piece);
  state.begun = 0;
  return true;
}

Result<bool> VerbsEndpoint::get_into_staged(Request& request, const Registered& here) {
  while (request.posted < request.size) {
    if (recovering_ != 0) return false;
    const std::size_t bytes = std::min(Pinned::size, request.size - request.posted);
    Lane* lane = lane_for(bytes);
    if (lane == nullptr || !lane->rail->has_room()) return false;
    Piece piece;
    piece.purpose = Purpose::get;
    piece.remote = request.remote + request.posted;
    if (conflicts(*lane, piece.remote, bytes)) return false;
    piece.block = Blocks::take(*here.pinned);
    if (piece.block == Blocks::none) return false;
    piece.on_device = true;
    piece.length = static_cast<std::uint32_t>(bytes);
    piece.local = request.local + request.posted;
    piece.key = request.key;
    piece.tag = request.tag;
    if (request.operation == no_operation) request.operation = begin_operation(request);
    piece.operation = request.operation;
    request.posted += bytes;
    if (request.posted == request.size) cut_[request.operation].whole = true;
    post(*lane, piece);
  }
  return true;
}

Result<bool> VerbsEndpoint::get_from_staged(Request& request, const Registered* here) {
  Staging& state = staging();
  while (request.posted < request.size) {
    if (recovering_ != 0) return false;
    if (state.asked.size() >= most_asked || core_->blocks.left() <= reserved_blocks) return false;
    StagedHead head = head_of(request, std::min(most_staged, request.size - request.posted));
    head.number = state.next_number;
    const std::uint32_t block = core_->blocks.take();
    CENOTE_ASSIGN(const bool posted, issue_staged_note(MessageType::staged_get, block, head, 0));
    if (!posted) {
      core_->blocks.give(block);
      return false;
    }
    if (request.operation == no_operation) request.operation = begin_operation(request);
    ++cut_[request.operation].pieces;
    state.asked[state.next_number++] = {request.local + request.posted, head.bytes, request.operation,
                                        here == nullptr ? nullptr : here->pinned};
    request.posted += head.bytes;
  }
  cut_[request.operation].whole = true;
  return true;
}

Result<void> VerbsEndpoint::take_staged(MessageType type, std::span<const std::byte> body) {
  if (type == MessageType::staged_room) return nonsense("room without its number");
  StagedHead head;
  if (body.size() < sizeof head) return nonsense("staged bytes without their head");
  std::memcpy(&head, body.data(), sizeof head);
  const auto bytes = body.subspan(sizeof head);
  if (type == MessageType::staged_answer) return take_staged_answer(head, bytes);
  return type == MessageType::staged_put ? take_staged_put(head, bytes) : take_staged_get(head);
}

Result<const Registered*> VerbsEndpoint::staged_region(const StagedHead& head) const {
  const auto found = core_->staged.find(head.region);
  if (found == core_->staged.end() || found->second.token != head.token)
    return fail(ErrorCode::permission_denied, "serve the peer's access to GPU memory",
                "the key's region was destroyed (its lease may have ended), or the key is forged");
  const Registered* region = found->second.memory;
  if (head.bytes == 0 || head.bytes > most_staged || head.offset > region->size ||
      head.bytes > region->size - head.offset)
    return nonsense("staged bytes that do not fit their region");
  return region;
}

Result<void> VerbsEndpoint::take_staged_put(const StagedHead& head, std::span<const std::byte> bytes) {
  CENOTE_ASSIGN(const Registered* region, staged_region(head));
  Staging& state = staging();
  if (bytes.size() != head.bytes || ++state.arrived > staged_window)
    return nonsense("staged bytes of another number, or more than there is room for");
  Held held;
  held.pinned = region->pinned;
  CENOTE_ASSIGN(held.copy, held.pinned->land(device_address(region->data) + head.offset, bytes));
  held.put = true;
  hold(std::move(held));
  return done();
}

Result<void> VerbsEndpoint::take_staged_get(const StagedHead& head) {
  CENOTE_ASSIGN(const Registered* region, staged_region(head));
  Staging& state = staging();
  if (state.wanted.size() + state.ready.size() >= most_asked)
    return nonsense("more gets than there is room for");
  state.wanted.push_back(
      {region->pinned, device_address(region->data) + head.offset, head.bytes, head.number});
  return done();
}

Result<void> VerbsEndpoint::take_staged_answer(const StagedHead& head, std::span<const std::byte> bytes) {
  const auto found = staging_ ? staging_->asked.find(head.number) : decltype(staging_->asked.end()){};
  if (!staging_ || found == staging_->asked.end() || found->second.bytes != bytes.size())
    return nonsense("an answer that nobody asked for");
  const Staging::Asked asked = found->second;
  staging_->asked.erase(found);
  Held held;
  held.operation = asked.operation;
  held.bytes = bytes.size();
  if (!asked.pinned) {
    std::memcpy(asked.to, bytes.data(), bytes.size());
    staged_done(held);
    return done();
  }
  held.pinned = asked.pinned;
  CENOTE_ASSIGN(held.copy, asked.pinned->land(device_address(asked.to), bytes));
  hold(std::move(held));
  return done();
}

void VerbsEndpoint::staged_done(const Held& held) {
  if (held.put) {
    ++staging_->done;
    return;
  }
  stats_.bytes_got += held.bytes;
  Operation& operation = cut_[held.operation];
  if (--operation.pieces == 0 && operation.whole) finish_operation(held.operation, false);
}

// Answers and room go before what this side wants of the peer: each side may wait for the other's.
Result<bool> VerbsEndpoint::serve_staged() {
  if (stage_ != Stage::ready || holds_back() || !replay_.empty()) return false;
  auto served = answer_peer();
  ring();
  return served;
}

Result<bool> VerbsEndpoint::answer_peer() {
  Staging& state = *staging_;
  bool any = false;
  constexpr std::size_t before = sizeof(MessageHead) + sizeof(StagedHead);
  while (!state.wanted.empty()) {
    const Staging::Wanted& wanted = state.wanted.front();
    Staging::Chunk answer;
    answer.bytes = wanted.bytes;
    answer.pinned = wanted.pinned;
    answer.number = wanted.number;
    answer.block = Blocks::take(*answer.pinned);
    if (answer.block == Blocks::none) break;
    std::byte* const block = core_->blocks.at(answer.block);
    CENOTE_ASSIGN(answer.copy, answer.pinned->fetch(block + before, wanted.device, wanted.bytes));
    state.ready.push_back(std::move(answer));
    state.wanted.pop_front();
    any = true;
  }
  while (!state.ready.empty() && recovering_ == 0) {
    const Staging::Chunk& answer = state.ready.front();
    CENOTE_ASSIGN(const bool ready, answer.is_ready());
    if (!ready) break;
    StagedHead head;
    head.bytes = answer.bytes;
    head.number = answer.number;
    CENOTE_ASSIGN(const bool posted,
                  issue_staged_note(MessageType::staged_answer, answer.block, head, answer.bytes));
    if (!posted) break;
    state.ready.pop_front();
    any = true;
  }
  if (state.done < told_at_once || recovering_ != 0) return any;
  Request note;
  note.kind = Kind::message;
  note.type = MessageType::staged_room;
  note.value = state.done;
  CENOTE_ASSIGN(const bool posted, issue_message(note));
  if (!posted) return any;
  state.arrived -= state.done;
  state.done = 0;
  return true;
}

void VerbsEndpoint::drop_staged() {
  for (auto* all : {&staging_->chunks, &staging_->ready}) {
    for (const Staging::Chunk& chunk : *all) {
      if (chunk.pinned) (void)chunk.pinned->finish_all();  // what it says, the end of its region says, too
      core_->blocks.give(chunk.block);
    }
  }
  *staging_ = {};
}

}  // namespace cenote::transport::verbs
