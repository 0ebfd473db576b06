// The executor's moving parts: fronts of flows, a chunk at a time.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/executor.h"
#include "collectives/failure.h"

namespace cenote::collectives {
namespace {

/// The bytes of a place from `offset` on, in memory that the CPU reads: its own, or `room` after a copy.
Result<const std::byte*> readable(const Place& place, std::uint64_t offset, std::size_t bytes,
                                  std::byte* room) {
  if (place.host != nullptr) return place.host + offset;
  CENOTE_TRY(place.device->read(room, place.address + offset, bytes));
  return room;
}

std::byte* room_for(Bytes& bytes, std::size_t size) {
  if (bytes.size() < size) bytes.resize(size);
  return bytes.data();
}

}  // namespace

// A link that fails holds up no other: what has come over them is used first, so that what can be completed
// is. Only then is the first failure told.
Result<bool> Executor::progress() {
  bool any = false;
  std::optional<Error> failure;
  for (bool moved = true; moved;) {
    moved = fabric_->progress();
    CENOTE_ASSIGN(const bool opened, open_gates());
    moved = moved || opened;
    for (auto& [rank, state] : links_) {
      const bool idle = state->sending.empty() && state->receiving.empty() && !state->link->sending() &&
                        !state->link->one_sided();
      if (idle || state->ended) continue;
      auto one = advance_link(*state);
      if (one) {
        moved = moved || *one;
        continue;
      }
      state->ended = true;
      if (!failure) failure = std::move(one).error();
    }
    for (auto& operation : active_) {
      CENOTE_ASSIGN(bool one, advance_local(*operation));
      moved = moved || one;
      moved_since_ = moved_since_ || one;
    }
    any = any || moved;
    // A caller with much to do elsewhere gets its thread back as soon as what it waits for is there.
    if (!failure && !active_.empty() && active_.front()->finished()) break;
  }
  if (failure) return fail(std::move(*failure));
  return any;
}

Result<bool> Executor::open_gates() {
  bool moved = false;
  for (auto& operation : active_) {
    if (!operation->held()) continue;
    CENOTE_ASSIGN(const bool open, operation->gate().map_error([&](Error error) {
      return local_error(*operation, std::move(error));
    }));
    if (!open) continue;
    operation->gate = nullptr;
    moved_since_ = moved = true;
  }
  return moved;
}

bool Executor::take_sent(LinkState& state) {
  bool moved = false;
  while (auto chunk = state.link->take_sent()) {
    static_cast<ActiveOperation*>(chunk->operation)->advance(chunk->instance, chunk->elements);
    moved = true;
  }
  return moved;
}

Result<bool> Executor::advance_link(LinkState& state) {
  bool moved = state.link->pump();
  moved = take_sent(state) || moved;
  CENOTE_ASSIGN(bool received, advance_receiving(state));
  CENOTE_ASSIGN(bool sent, advance_sending(state));
  moved = take_sent(state) || moved;
  // A note that somebody waits is not progress, or ranks that wait would keep each other from saying so.
  moved_since_ = moved_since_ || received || sent;
  if (auto error = lost(state)) return fail(std::move(*error));
  return moved || received || sent;
}

/// The failure of a link over which a chunk of ours will never get.
std::optional<Error> Executor::lost(const LinkState& state) const {
  if (!state.link->lost_chunk() && !state.link->lost_one_sided()) return std::nullopt;
  auto error = state.link->failure();
  const auto* operation = outstanding_.oldest_to(state.link->rank());
  if (error && operation != nullptr && state.link->lost_one_sided())
    return one_sided_error(state, describe_one_sided(*operation), std::move(*error));
  const auto* chunk = state.link->oldest_sent();
  if (!error || chunk == nullptr) return std::nullopt;
  return peer_error(state, *static_cast<const ActiveOperation*>(chunk->operation), "send", std::move(*error));
}

Result<bool> Executor::advance_sending(LinkState& state) {
  bool moved = false;
  while (!state.sending.empty()) {
    const auto front = state.sending.front();
    auto& operation = *front.operation;
    if (operation.held()) break;
    const auto& flow = operation.plan().flows[front.flow];
    const auto number = flow.instances[operation.cursor[front.flow]];
    const auto& instance = operation.plan().instances[number];
    const auto at = operation.posted[number];
    const auto elements = std::min(operation.chunk, instance.length - at);
    if (!operation.plan().ready(instance, at, at + elements, operation.done)) break;
    CENOTE_ASSIGN(bool sent, send_chunk(state, front, number, elements));
    if (!sent) break;
    moved = true;
    operation.posted[number] += elements;
    if (operation.posted[number] < instance.length) continue;
    if (++operation.cursor[front.flow] == flow.instances.size()) state.sending.pop();
  }
  return moved;
}

Result<bool> Executor::send_chunk(LinkState& state, const Waiting& front, std::uint32_t number,
                                  std::uint64_t elements) {
  auto& link = *state.link;
  auto& operation = *front.operation;
  const auto& instance = operation.plan().instances[number];
  const auto bytes = elements * operation.element_bytes;
  const auto offset = (instance.src + operation.posted[number]) * operation.element_bytes;
  const auto& place = operation.place(instance.src_buffer);
  const SentChunk owner{&operation, number, elements};
  const auto sequence = static_cast<std::uint32_t>(operation.sequence);
  auto& introduced = operation.introduced[front.flow];
  const auto gather = [&](std::byte* room) {
    return readable(place, offset, bytes, room).map_error([&](Error error) {
      return local_error(operation, std::move(error));
    });
  };
  const auto blame = [&](Error error) { return peer_error(state, operation, "send", std::move(error)); };
  if (link.fits_message(bytes)) {
    std::array<std::byte, wire::max_data> room;  // NOLINT: read only as far as it is filled
    CENOTE_ASSIGN(const auto* data, gather(room.data()));
    const auto* call = introduced != 0 ? nullptr : &operation.header;
    CENOTE_ASSIGN(bool sent, link.send_data({data, bytes}, sequence, call, owner).map_error(blame));
    if (sent) introduced = 1;
    return sent;
  }
  if (introduced == 0) {
    CENOTE_ASSIGN(bool sent, link.send_call(operation.header, sequence).map_error(blame));
    if (!sent) return false;
    introduced = 1;
  }
  if (!link.can_put()) {
    if (auto error = link.failure()) return fail(blame(std::move(*error)));
    return false;
  }
  auto* room = place.host != nullptr ? nullptr : link.bounce().data();
  CENOTE_ASSIGN(const auto* data, gather(room));
  return link.put({data, bytes}, owner).map_error(blame);
}

Result<bool> Executor::advance_receiving(LinkState& state) {
  bool moved = false;
  while (!state.receiving.empty()) {
    const auto front = state.receiving.front();
    auto& operation = *front.operation;
    if (operation.held()) break;
    const auto& flow = operation.plan().flows[front.flow];
    const auto number = flow.instances[operation.cursor[front.flow]];
    const auto& instance = operation.plan().instances[number];
    const auto at = operation.done[number];
    const auto elements = std::min(operation.chunk, instance.length - at);
    if (!operation.plan().ready(instance, at, at + elements, operation.done)) break;
    CENOTE_ASSIGN(bool received, receive_chunk(state, front, number, elements));
    if (!received) {
      // Only now does a failed endpoint matter: everything that had arrived has been used.
      if (auto error = state.link->failure())
        return fail(peer_error(state, operation, "receive", std::move(*error)));
      break;
    }
    moved = true;
    operation.advance(number, elements);
    if (operation.done[number] < instance.length) continue;
    if (++operation.cursor[front.flow] == flow.instances.size()) state.receiving.pop();
  }
  return moved;
}

Result<bool> Executor::receive_chunk(LinkState& state, const Waiting& front, std::uint32_t number,
                                     std::uint64_t elements) {
  auto& link = *state.link;
  auto& operation = *front.operation;
  const auto& instance = operation.plan().instances[number];
  const auto at = operation.done[number];
  const auto bytes = elements * operation.element_bytes;
  auto& introduced = operation.introduced[front.flow];
  const auto local = [&](Error error) { return local_error(operation, std::move(error)); };
  if (link.fits_message(bytes)) {
    const auto* message = link.front_message();
    if (message == nullptr) {
      if (!link.pump()) return false;
      message = link.front_message();
      if (message == nullptr) return false;
    }
    CENOTE_TRY(same_call(state, operation, message));
    wire::Head head;
    std::memcpy(&head, message, sizeof head);
    if (head.kind != wire::Kind::data || head.size != bytes) {
      return fail(peer_error(
          state, operation, "receive",
          Error{ErrorCode::protocol_error, "", fmt::format("expected {} bytes, got {}", bytes, head.size)}));
    }
    const auto* data =
        message + sizeof head + ((head.flags & wire::with_call) != 0 ? sizeof(wire::CallHeader) : 0);
    CENOTE_TRY(consume(operation, instance, at, elements, {data, bytes}).map_error(local));
    introduced = 1;
    link.pop_message();
    return true;
  }
  if (introduced == 0) {
    const auto* message = link.front_message();
    if (message == nullptr) return false;
    CENOTE_TRY(same_call(state, operation, message));
    introduced = 1;
    link.pop_message();
  }
  const auto staged = link.front_staged(bytes);
  if (staged.empty()) return false;
  CENOTE_TRY(consume(operation, instance, at, elements, staged).map_error(local));
  link.pop_staged(bytes);
  return true;
}

Result<void> Executor::same_call(const LinkState& state, const ActiveOperation& operation,
                                 const std::byte* message) const {
  wire::Head head;
  std::memcpy(&head, message, sizeof head);
  auto theirs = operation.header;
  if ((head.flags & wire::with_call) != 0) std::memcpy(&theirs, message + sizeof head, sizeof theirs);
  if (theirs == operation.header && head.sequence == static_cast<std::uint32_t>(operation.sequence))
    return {};
  return fail(Error{ErrorCode::invalid_argument,
                    fmt::format("{} of rank {}", describe(operation), options_.rank),
                    fmt::format("{}rank {} calls {} (operation {}), rank {} calls {} (operation {})",
                                disagree, options_.rank, wire::text(operation.header), operation.sequence,
                                state.link->rank(), wire::text(theirs), head.sequence)}
                  .with(fmt::format("rank {}", state.link->rank()))
                  .fix(std::string(disagree_remedy)));
}

Result<void> Executor::consume(ActiveOperation& operation, const Instance& instance, std::uint64_t at,
                               std::uint64_t elements, std::span<const std::byte> incoming) {
  const auto dst_offset = (instance.dst + at) * operation.element_bytes;
  const auto& dst = operation.place(instance.dst_buffer);
  const auto* result = incoming.data();
  if (instance.kind == StepKind::reduce) {
    const auto src_offset = (instance.src + at) * operation.element_bytes;
    const auto& src = operation.place(instance.src_buffer);
    if (dst.device != nullptr && dst.device == src.device && dst.device->reduce) {
      return dst.device->reduce(dst.address + dst_offset, src.address + src_offset, incoming.data(), elements,
                                operation.header.type, operation.header.op);
    }
    auto* room = src.host != nullptr ? nullptr : room_for(gather_[0], incoming.size());
    CENOTE_ASSIGN(const auto* own, readable(src, src_offset, incoming.size(), room));
    auto* out = dst.host != nullptr ? dst.host + dst_offset : room_for(gather_[1], incoming.size());
    operation.reduce(out, own, incoming.data(), elements);
    result = out;
  } else if (dst.host != nullptr) {
    std::memcpy(dst.host + dst_offset, incoming.data(), incoming.size());
  }
  if (dst.host != nullptr) return {};
  return dst.device->write(dst.address + dst_offset, result, incoming.size());
}

Result<bool> Executor::advance_local(ActiveOperation& operation) {
  if (operation.local_flow == ~0U || operation.held()) return false;
  const auto& flow = operation.plan().flows[operation.local_flow];
  auto& cursor = operation.cursor[operation.local_flow];
  bool moved = false;
  while (cursor < flow.instances.size()) {
    const auto number = flow.instances[cursor];
    const auto& instance = operation.plan().instances[number];
    const auto at = operation.done[number];
    const auto elements = std::min(operation.chunk, instance.length - at);
    if (!operation.plan().ready(instance, at, at + elements, operation.done)) break;
    CENOTE_TRY(local_chunk(operation, instance, at, elements).map_error([&](Error error) {
      return local_error(operation, std::move(error));
    }));
    moved = true;
    operation.advance(number, elements);
    if (operation.done[number] == instance.length) ++cursor;
  }
  return moved;
}

Result<void> Executor::local_chunk(ActiveOperation& operation, const Instance& instance, std::uint64_t at,
                                   std::uint64_t elements) {
  const bool finish = instance.kind == StepKind::finish;
  if (finish && operation.divide == nullptr) return {};
  const auto bytes = elements * operation.element_bytes;
  const auto& dst = operation.place(instance.dst_buffer);
  const auto& src = finish ? dst : operation.place(instance.src_buffer);
  const auto dst_offset = (instance.dst + at) * operation.element_bytes;
  const auto src_offset = finish ? dst_offset : (instance.src + at) * operation.element_bytes;
  if (finish && dst.device != nullptr && dst.device->divide) {
    return dst.device->divide(dst.address + dst_offset, elements, operation.header.type, options_.size);
  }
  if (!finish && dst.device != nullptr && dst.device == src.device && dst.device->copy)
    return dst.device->copy(dst.address + dst_offset, src.address + src_offset, bytes);
  auto* out = dst.host != nullptr ? dst.host + dst_offset : room_for(gather_[1], bytes);
  if (src.host == nullptr) {
    CENOTE_TRY(src.device->read(out, src.address + src_offset, bytes));
  } else if (!finish) {
    std::memcpy(out, src.host + src_offset, bytes);
  }
  if (finish) operation.divide(out, elements, options_.size);
  if (dst.host != nullptr) return {};
  return dst.device->write(dst.address + dst_offset, out, bytes);
}

}  // namespace cenote::collectives
