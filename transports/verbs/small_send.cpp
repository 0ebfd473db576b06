// The usual message, from the call to the card in one go, while nothing else waits. What issue.cpp does in
// general.
#include <cstring>

#include "transports/verbs/verbs_endpoint.h"

namespace cenote::transport::verbs {
namespace {

constexpr std::size_t reserved_blocks = 32;  // messages that wait leave as many to what is in front of them

}  // namespace

inline void VerbsEndpoint::post_message(Lane& lane, std::uint32_t block, std::byte* bytes, std::size_t size) {
  Rail& rail = *lane.rail;
  Piece& piece = rail.next_piece();
  piece = {};
  piece.purpose = Purpose::message;
  piece.parts = 1;
  piece.slot = message_slot;
  piece.event = static_cast<std::uint32_t>(++events_sent_);
  piece.part_number = ++lane.parts_posted;
  piece.length = static_cast<std::uint32_t>(sizeof(MessageHead) + size);
  piece.block = block;
  lane.dirty = false;
  MessageHead head;
  head.number = piece.event;
  head.type = static_cast<std::uint8_t>(MessageType::message);
  std::memcpy(bytes, &head, sizeof head);
  const int failed = rail.send({bytes, piece.length}, core_->blocks.lkey(lane.mine, block));
  if (failed != 0) [[unlikely]]
    post_refused(lane, failed);
}

Result<void> VerbsEndpoint::send(std::span<const std::byte> message) {
  if (failure_) [[unlikely]]
    return failed();
  if (message.size() > max_message)
    return fail(ErrorCode::invalid_argument, "send",
                std::to_string(message.size()) + " bytes are more than one message takes");
  const std::size_t charge = message.size() + message_charge;
  if (window_used_ + charge > message_window || core_->blocks.left() <= reserved_blocks)
    return queue_full("send");
  const std::uint32_t block = core_->blocks.take();
  std::byte* const bytes = core_->blocks.at(block);
  if (!message.empty()) std::memcpy(bytes + sizeof(MessageHead), message.data(), message.size());
  window_used_ += charge;
  ++stats_.sends;
  stats_.bytes_sent += message.size();
  if (open_ != nullptr && open_->rail->has_room()) [[likely]] {
    post_message(*open_, block, bytes, message.size());
    return done();
  }
  Request request;
  request.kind = Kind::message;
  request.block = block;
  request.size = message.size();
  submit(request);
  if (open_ == nullptr) open_ = open_lane();  // for the next
  return done();
}

}  // namespace cenote::transport::verbs
