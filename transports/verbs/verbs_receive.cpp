// What comes in: signals and messages. Nothing is believed: sizes, types, numbers and windows are checked;
// what does not fit ends the endpoint.
#include <algorithm>
#include <cstring>

#include "transports/verbs/verbs_endpoint.h"

namespace cenote::transport::verbs {
namespace {

tl::unexpected<Error> nonsense(const char* what) {
  return fail(ErrorCode::protocol_error, "read from peer", what);
}

}  // namespace

void VerbsEndpoint::arrived(const Rail& rail, const ibv_wc& completion, std::span<const std::byte> slot) {
  if (failure_) return;
  Lane& lane = lanes_[rail.lane];
  ++lane.parts_received;
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    const EventPart part = EventPart::of(be32toh(completion.imm_data));
    if (part.slot < signal_slots && order_.is_next(part)) [[likely]] {
      if (core_->gated) [[unlikely]]
        return hold(part.slot, {});
      ++signals_[part.slot];
      return;
    }
    if (auto taken = take_part(part); !taken) break_with(std::move(taken).error());
    return;
  }
  const auto message = slot.first(std::min<std::size_t>(completion.byte_len, slot.size()));
  if (auto taken = take_message(message); !taken) break_with(std::move(taken).error());
}

Result<void> VerbsEndpoint::take_part(const EventPart& part) {
  if (part.slot >= signal_slots && part.slot != message_slot) return nonsense("a signal that is none");
  return order_.take(
      part, [this](std::uint8_t slot, std::span<const std::byte> message) { return deliver(slot, message); });
}

/// Checks what must be known at once: how much room it takes.
Result<void> VerbsEndpoint::take_message(std::span<const std::byte> bytes) {
  MessageHead head;
  if (bytes.size() < sizeof head) return nonsense("a message without its head");
  std::memcpy(&head, bytes.data(), sizeof head);
  const bool plain = head.type == static_cast<std::uint8_t>(MessageType::message) && !core_->gated;
  if (plain && head.parts == 1 && order_.is_next(head.number)) [[likely]] {
    const auto body = bytes.subspan(sizeof head);
    if (!inbox_.charge(body.size())) return nonsense("more messages than it was given room for");
    inbox_.add(body);
    return done();
  }
  if (head.parts == 0 || head.parts > max_ports) return nonsense("a message of no parts, or too many");
  if (head.type == static_cast<std::uint8_t>(MessageType::message) &&
      !inbox_.charge(bytes.size() - sizeof head))
    return nonsense("more messages than it was given room for");
  const EventPart part{head.number & number_mask, head.parts, message_slot, true, bytes};
  return order_.is_next(part) ? deliver(message_slot, bytes) : take_part(part);
}

Result<void> VerbsEndpoint::deliver(std::uint8_t slot, std::span<const std::byte> message) {
  if (slot != message_slot) {
    core_->gated ? hold(slot, {}) : tell(slot, {});
    return done();
  }
  MessageHead head;
  std::memcpy(&head, message.data(), sizeof head);
  const auto body = message.subspan(sizeof head);
  if (head.type == static_cast<std::uint8_t>(MessageType::credit)) {
    if (!body.empty() || head.value > window_used_) return nonsense("more credit than it was sent messages");
    window_used_ -= head.value;
    return done();
  }
  if (head.type == static_cast<std::uint8_t>(MessageType::staged_room)) {
    if (!body.empty() || !staging_ || head.value > staging_->used)
      return nonsense("more room than was taken");
    staging_->used -= static_cast<std::uint32_t>(head.value);
    return done();
  }
  if (head.type > static_cast<std::uint8_t>(MessageType::credit) &&
      head.type < static_cast<std::uint8_t>(MessageType::staged_room))
    return take_staged(static_cast<MessageType>(head.type), body);
  if (head.type != static_cast<std::uint8_t>(MessageType::message))
    return nonsense("a message that no transport sends");
  core_->gated ? hold(slot, body) : tell(slot, body);
  return done();
}

void VerbsEndpoint::tell(std::uint8_t slot, std::span<const std::byte> message) {
  if (slot == message_slot) {
    inbox_.add(message);
  } else {
    ++signals_[slot];
  }
}

Result<std::optional<std::size_t>> VerbsEndpoint::receive(std::span<std::byte> out) {
  if (failure_) [[unlikely]]
    return receive_from(inbox_, out);
  if (inbox_.empty()) return std::nullopt;
  const std::size_t size = inbox_.next();
  if (size > out.size()) [[unlikely]]
    return inbox_.take(out);
  inbox_.take_next(out.data(), size);
  ++stats_.received_messages;
  stats_.received_bytes += size;
  if (const std::size_t credit = inbox_.credit(); credit != 0) [[unlikely]]
    give_credit(credit);
  return size;
}

void VerbsEndpoint::give_credit(std::size_t credit) {
  Request request;
  request.kind = Kind::message;
  request.type = MessageType::credit;
  request.value = credit;
  submit(request);
}

}  // namespace cenote::transport::verbs
