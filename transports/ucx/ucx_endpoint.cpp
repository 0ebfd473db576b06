#include "transports/ucx/ucx_endpoint.h"

#include <algorithm>

namespace cenote::transport::ucx {
namespace {

constexpr std::size_t copy_limit = 1024;  // UCX keeps a copy of smaller payloads that have to wait

bool carries_bytes(FrameType type) {
  return type == FrameType::put || type == FrameType::get_reply || type == FrameType::message;
}

}  // namespace

bool UcxEndpoint::aim(Frame& frame, const RemoteSlice& slice, std::uint64_t length, const char* stage) {
  frame.offset = slice.offset;
  frame.length = length;
  if (length == 0) return true;
  const auto key = RegionKey::unpack(*slice.key);
  if (!key || key->owner != peer_.header.id) [[unlikely]] {
    break_with(Error{ErrorCode::permission_denied, stage, "the key is not one of this peer's regions"});
    return false;
  }
  if (slice.offset > key->size || length > key->size - slice.offset) [[unlikely]] {
    break_with(Error{ErrorCode::invalid_argument, stage,
                     "offset " + std::to_string(slice.offset) + " and length " + std::to_string(length) +
                         " do not fit a region of " + std::to_string(key->size) + " bytes"});
    return false;
  }
  frame.region = key->region;
  frame.token = key->token;
  return true;
}

Result<void> UcxEndpoint::put(std::span<const std::byte> src, RemoteSlice dst, std::uint32_t signal,
                              std::uint64_t tag) {
  if (failure_) [[unlikely]]
    return failed();
  if (full()) [[unlikely]]
    return queue_full("put");
  if (signal >= signal_slots && signal != no_signal) [[unlikely]]
    return fail(ErrorCode::invalid_argument, "put", "no signal slot " + std::to_string(signal));
  Frame frame;
  frame.type = FrameType::put;
  if (!aim(frame, dst, src.size(), "put")) [[unlikely]]
    return failed();
  if (signal != no_signal) frame.signal = static_cast<std::uint8_t>(signal);
  ++stats_.puts;
  stats_.bytes_put += src.size();
  if (!put_at_once(frame, src, tag)) post(Operation{frame, src.data(), 0, true, tag, {}});
  return done();
}

// A small put that leaves at once, as nearly all do, takes no queue.
bool UcxEndpoint::put_at_once(Frame& frame, std::span<const std::byte> src, std::uint64_t tag) {
  if (src.size() > Link::short_limit || stage_ != Stage::ready || !out_.empty() || !sent_.empty())
    return false;
  if (post_frame(frame, src, Payload::copied) == 0) return false;
  core_->happened = true;
  if (link_->left() >= last_number_) {
    left_frames_ = posted_frames_;
    finish(tag);
  } else {
    ++tagged_;
    sent_.push(Sent{last_number_, posted_frames_, true, tag});
  }
  return true;
}

Result<void> UcxEndpoint::get(std::span<std::byte> dst, RemoteSlice src, std::uint64_t tag) {
  if (failure_) return failed();
  if (full()) return queue_full("get");
  if (dst.empty()) {
    finish(tag);
    core_->happened = true;
    return {};
  }
  Frame frame;
  frame.type = FrameType::get;
  if (!aim(frame, src, dst.size(), "get")) return failed();
  awaited_.push(Awaited{FrameType::get, dst, 0, nullptr, tag});
  post(Operation{frame});
  return {};
}

Result<void> UcxEndpoint::atomic_add(RemoteSlice dst, std::uint64_t value, std::uint64_t* old,
                                     std::uint64_t tag) {
  if (failure_) return failed();
  if (full()) return queue_full("atomic add");
  Frame frame;
  frame.type = FrameType::add;
  if (!aim(frame, dst, sizeof value, "atomic add")) return failed();
  if (dst.offset % sizeof value != 0) {
    break_with(Error{ErrorCode::invalid_argument, "atomic add",
                     "offset " + std::to_string(dst.offset) + " is not a multiple of 8"});
    return failed();
  }
  frame.length = value;
  awaited_.push(Awaited{FrameType::add, {}, 0, old, tag});
  post(Operation{frame});
  return {};
}

Result<void> UcxEndpoint::send(std::span<const std::byte> message) {
  if (failure_) [[unlikely]]
    return failed();
  if (message.size() > max_message)
    return fail(ErrorCode::invalid_argument, "send",
                std::to_string(message.size()) + " bytes are more than one message takes");
  const std::size_t charge = message.size() + message_charge;
  if (window_used_ + charge > message_window) return queue_full("send");
  window_used_ += charge;
  ++stats_.sends;
  stats_.bytes_sent += message.size();
  Operation operation;
  operation.frame.type = FrameType::message;
  operation.frame.length = message.size();
  operation.source = message.data();
  post(std::move(operation));
  return {};
}

// What is not tagged has its bytes from who is told nothing of when they leave.
void UcxEndpoint::post(Operation&& operation) {
  if (operation.tagged) ++tagged_;
  core_->happened = true;
  if (stage_ == Stage::ready && out_.empty() && advance(operation)) return;
  if (operation.frame.type == FrameType::message && operation.frame.length != 0) {
    operation.own.assign(operation.source, operation.source + operation.frame.length);
    operation.source = nullptr;
  }
  out_.push(std::move(operation));
}

bool UcxEndpoint::advance(Operation& operation) {
  const bool carries = carries_bytes(operation.frame.type);
  const std::uint64_t length = carries ? operation.frame.length : 0;
  while (true) {
    Frame frame = operation.frame;
    std::span<const std::byte> data;
    if (const std::uint64_t now = std::min<std::uint64_t>(length - operation.sent, core_->worker.chunk());
        carries) {
      const std::byte* from = operation.source == nullptr ? operation.own.data() : operation.source;
      if (frame.type == FrameType::get_reply) {
        if (operation.own.empty())
          from = core_->regions->reach(frame.region, frame.token, frame.offset, length);
        if (from == nullptr && !fault_)
          fault_ = Error{ErrorCode::permission_denied, "answer a get",
                         "the region was destroyed while it was being read"};
        if (from == nullptr) return false;
        frame.offset = operation.sent;
      } else {
        frame.offset += operation.sent;
      }
      if (now != 0) data = {from + operation.sent, now};
      frame.length = now;
      if (operation.sent + now != length) frame.signal = silent;
    }
    const bool refers = frame.type == FrameType::put && data.size() > copy_limit;
    if (post_frame(frame, data, refers ? Payload::referred : Payload::copied) == 0) return false;
    operation.sent += data.size();
    const bool whole = operation.sent == length;
    sent_.push(Sent{last_number_, posted_frames_, whole && operation.tagged, operation.tag});
    if (whole) return true;
  }
}

std::uint64_t UcxEndpoint::post_frame(Frame& frame, std::span<const std::byte> data, Payload payload) {
  frame.session = peer_session_;
  frame.sequence = posted_frames_;
  frame.taken = taken_frames_;
  const auto number = link_->post(frame, data, payload);
  if (number == 0) return 0;
  ++posted_frames_;
  last_number_ = number;
  return number;
}

bool UcxEndpoint::finish_left() {
  if (!link_ || sent_.empty()) return false;
  const std::uint64_t left = link_->left();
  bool any = false;
  while (!sent_.empty() && sent_.front().number <= left) {
    const Sent sent = sent_.pop();
    left_frames_ = sent.frames;
    any = true;
    if (!sent.tagged) continue;
    --tagged_;
    finish(sent.tag);
  }
  return any;
}

bool UcxEndpoint::flush() {
  if (failure_ || (stage_ != Stage::ready && !wire())) return false;
  bool any = false;
  while (!out_.empty() && advance(out_.front())) {
    const FrameType type = out_.pop().frame.type;
    if (type == FrameType::get_reply || type == FrameType::add_reply) --answers_;
    any = true;
  }
  any = finish_left() || any;
  if (sent_.empty() || !out_.empty() || !link_->in_doubt()) return any;
  Frame nothing;
  nothing.type = FrameType::nothing;
  return (post_frame(nothing, {}, Payload::copied) != 0 && finish_left()) || any;
}

bool UcxEndpoint::drained() const {
  return failure_ != nullptr ||
         (out_.empty() && (sent_.empty() || (link_ && sent_.back().number <= link_->left())));
}

void UcxEndpoint::take_back() {
  if (link_) link_->take_back(peer_session_);
}

}  // namespace cenote::transport::ucx
