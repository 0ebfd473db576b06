// What comes in as active messages. Nothing is believed: types, lengths, keys and the order of answers are
// checked before anything is touched; what does not fit ends the endpoint.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "transports/ucx/ucx_endpoint.h"

namespace cenote::transport::ucx {
namespace {

constexpr std::uint64_t copied_answer = 1024;  // a larger one is read when it leaves

tl::unexpected<Error> nonsense(std::string what) {
  return fail(ErrorCode::protocol_error, "read from peer", std::move(what));
}

}  // namespace

void UcxEndpoint::take(const Frame& frame, std::span<const std::byte> data) {
  if (failure_ || fault_) return;
  core_->happened = true;
  if (auto acted = act_on(frame, data); !acted) fault_ = std::move(acted).error();
}

Result<void> UcxEndpoint::act_on(const Frame& frame, std::span<const std::byte> data) {
  for (const std::uint8_t zero : frame.zero) {
    if (zero != 0) return nonsense("its frame is malformed");
  }
  if (static_cast<std::int32_t>(posted_frames_ - frame.taken) < 0)
    return nonsense("it says it took frames that were never sent");
  if (frame.sequence != taken_frames_)
    return nonsense("its frame " + std::to_string(frame.sequence) + " came where frame " +
                    std::to_string(taken_frames_) + " was due");
  ++taken_frames_;
  if (frame.taken == posted_frames_ && link_) link_->confirm(last_number_);
  const bool carries = frame.type == FrameType::put || frame.type == FrameType::get_reply ||
                       frame.type == FrameType::message || frame.type == FrameType::nothing;
  if (data.size() != (carries ? frame.length : 0) || data.size() > max_chunk)
    return nonsense("its frame announced " + std::to_string(frame.length) + " bytes and brought " +
                    std::to_string(data.size()));
  switch (frame.type) {
    case FrameType::put:
      return take_put(frame, data);
    case FrameType::get:
      return serve_get(frame);
    case FrameType::get_reply:
      return take_get_reply(frame, data);
    case FrameType::add:
      return serve_add(frame);
    case FrameType::add_reply:
      return take_add_reply(frame);
    case FrameType::message:
      return take_message(data);
    case FrameType::credit:
      if (frame.length > window_used_) return nonsense("it says it took messages that were never sent");
      window_used_ -= frame.length;
      return {};
    case FrameType::nothing:
      return {};
  }
  return nonsense("it sent a frame of type " + std::to_string(static_cast<int>(frame.type)));
}

Result<void> UcxEndpoint::take_put(const Frame& frame, std::span<const std::byte> data) {
  if (frame.signal >= signal_slots && frame.signal != silent)
    return nonsense("it gave signal " + std::to_string(frame.signal));
  if (!data.empty()) {
    std::byte* at = core_->regions->reach(frame.region, frame.token, frame.offset, data.size());
    if (at == nullptr) return fail(core_->regions->misfit("take a put", frame.region, frame.token));
    std::memcpy(at, data.data(), data.size());
  }
  if (frame.signal != silent) ++signals_[frame.signal];
  return done();
}

Result<void> UcxEndpoint::take_get_reply(const Frame& frame, std::span<const std::byte> data) {
  if (awaited_.empty() || awaited_.front().type != FrameType::get)
    return nonsense("it sent data that was not asked for");
  Awaited& awaited = awaited_.front();
  if (data.empty() || frame.offset != awaited.taken || data.size() > awaited.dst.size() - awaited.taken)
    return nonsense("it sent other data than was asked for");
  std::memcpy(awaited.dst.data() + awaited.taken, data.data(), data.size());
  awaited.taken += data.size();
  if (awaited.taken != awaited.dst.size()) return {};
  ++stats_.gets;
  stats_.bytes_got += awaited.taken;
  finish(awaited_.pop().tag);
  return {};
}

// Within the worker's progress nothing is sent: the answer waits for flush().
void UcxEndpoint::answer(const Frame& frame, std::span<const std::byte> data) {
  ++answers_;
  out_.push(Operation{frame, nullptr, 0, false, 0, Bytes(data.begin(), data.end())});
}

Result<void> UcxEndpoint::serve_get(const Frame& frame) {
  if (answers_ > 2 * queue_depth) return nonsense("it asked for more data than it takes");
  const std::byte* at = core_->regions->reach(frame.region, frame.token, frame.offset, frame.length);
  if (frame.length == 0 || at == nullptr)
    return fail(core_->regions->misfit("answer a get", frame.region, frame.token));
  Frame reply;
  reply.type = FrameType::get_reply;
  reply.region = frame.region;
  reply.token = frame.token;
  reply.offset = frame.offset;
  reply.length = frame.length;
  answer(reply, std::span(at, frame.length <= copied_answer ? frame.length : 0));
  return {};
}

Result<void> UcxEndpoint::serve_add(const Frame& frame) {
  if (answers_ > 2 * queue_depth) return nonsense("it asked for more answers than it takes");
  std::byte* at = core_->regions->reach(frame.region, frame.token, frame.offset, sizeof(std::uint64_t));
  if (at == nullptr || reinterpret_cast<std::uintptr_t>(at) % sizeof(std::uint64_t) != 0)
    return fail(core_->regions->misfit("answer an atomic add", frame.region, frame.token));
  std::atomic_ref<std::uint64_t> word(*static_cast<std::uint64_t*>(static_cast<void*>(at)));
  Frame reply;
  reply.type = FrameType::add_reply;
  reply.length = word.fetch_add(frame.length, std::memory_order_seq_cst);
  answer(reply, {});
  return {};
}

Result<void> UcxEndpoint::take_add_reply(const Frame& frame) {
  if (awaited_.empty() || awaited_.front().type != FrameType::add)
    return nonsense("it sent an answer that was not asked for");
  const Awaited answer = awaited_.pop();
  if (answer.old != nullptr) *answer.old = frame.length;
  ++stats_.atomics;
  finish(answer.tag);
  return {};
}

Result<void> UcxEndpoint::take_message(std::span<const std::byte> body) {
  if (body.size() > max_message)
    return nonsense("it sent a message of " + std::to_string(body.size()) + " bytes");
  if (!inbox_.charge(body.size())) return nonsense("it sent more messages than it was allowed");
  inbox_.add(body);
  return {};
}

Result<std::optional<std::size_t>> UcxEndpoint::receive(std::span<std::byte> out) {
  auto taken = receive_from(inbox_, out);
  if (const std::size_t credit = inbox_.credit(); credit != 0 && !failure_) {
    Operation operation;
    operation.frame.type = FrameType::credit;
    operation.frame.length = credit;
    post(std::move(operation));
  }
  return taken;
}

}  // namespace cenote::transport::ucx
