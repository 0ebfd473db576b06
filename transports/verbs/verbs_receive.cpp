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
  core_->happened = true;
  Lane& lane = lanes_[rail.lane];
  ++lane.parts_received;
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    const EventPart part = EventPart::of(be32toh(completion.imm_data));
    if (part.slot < signal_slots && order_.is_next(part)) [[likely]] {
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
  if (head.parts == 0 || head.parts > max_ports) return nonsense("a message of no parts, or too many");
  if (head.type == static_cast<std::uint8_t>(MessageType::message)) {
    const std::size_t charge = bytes.size() - sizeof head + message_charge;
    if (inbox_charge_ + credit_due_ + charge > message_window)
      return nonsense("more messages than it was given room for");
    inbox_charge_ += charge;
  }
  const EventPart part{head.number & number_mask, head.parts, message_slot, true, bytes};
  if (order_.is_next(part)) return deliver(message_slot, bytes);
  return take_part(part);
}

Result<void> VerbsEndpoint::deliver(std::uint8_t slot, std::span<const std::byte> message) {
  if (slot != message_slot) {
    ++signals_[slot];
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
  if (head.type != static_cast<std::uint8_t>(MessageType::message))
    return nonsense("a message that no transport sends");
  const auto size = static_cast<std::uint32_t>(body.size());
  const auto size_bytes = std::as_bytes(std::span(&size, 1));
  if (inbox_read_ == inbox_.size()) {
    inbox_.clear();
    inbox_read_ = 0;
  }
  inbox_.insert(inbox_.end(), size_bytes.begin(), size_bytes.end());
  inbox_.insert(inbox_.end(), body.begin(), body.end());
  ++stats_.received_messages;
  stats_.received_bytes += body.size();
  return done();
}

Result<std::optional<std::size_t>> VerbsEndpoint::receive(std::span<std::byte> out) {
  if (inbox_read_ == inbox_.size()) {
    if (failure_) return failed();
    return std::nullopt;
  }
  std::uint32_t size = 0;
  std::memcpy(&size, inbox_.data() + inbox_read_, sizeof size);
  if (size > out.size())
    return fail(
        ErrorCode::invalid_argument, "receive",
        "the message has " + std::to_string(size) + " bytes, the buffer " + std::to_string(out.size()));
  if (size != 0) std::memcpy(out.data(), inbox_.data() + inbox_read_ + sizeof size, size);
  inbox_read_ += sizeof size + size;
  if (inbox_read_ == inbox_.size()) {
    inbox_.clear();
    inbox_read_ = 0;
  }
  const std::size_t charge = size + message_charge;
  inbox_charge_ -= charge;
  credit_due_ += charge;
  if (credit_due_ >= message_window / 4) return_credit();
  return std::optional<std::size_t>(size);
}

void VerbsEndpoint::return_credit() {
  if (failure_) return;
  Request request;
  request.kind = Kind::credit;
  request.value = std::exchange(credit_due_, 0);
  submit(request);
}

}  // namespace cenote::transport::verbs
