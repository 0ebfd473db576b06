#include "perf/tools/control.h"

#include <fmt/format.h>
#include <poll.h>

#include <utility>

namespace cenote::perf {
namespace {

constexpr std::size_t most_bytes = 65'536;  // of a frame: an address is the largest
constexpr auto pulse = std::chrono::milliseconds(200);
constexpr const char* stage = "talk to the other end";

}  // namespace

Control::Control(UniqueFd socket, std::string peer, Clock::duration silence, const CancelFlag* cancel)
    : channel_(std::move(socket), most_bytes),
      peer_(std::move(peer)),
      silence_(silence),
      cancel_(cancel),
      due_(Clock::now()),
      heard_(due_) {}

Result<void> Control::tell(Topic topic, std::span<const std::byte> payload) {
  Writer out;
  channel_.queue(out.put(topic).raw(payload).take());
  channel_.flush();
  return {};
}

void Control::give_up(const Error& error) {
  Writer out;
  channel_.queue(out.put(Topic::gave_up).text(error.message().substr(0, 4000)).take());
  channel_.flush();
}

std::optional<Error> Control::why_gave_up(Deadline deadline) {
  while (!reason_ && !deadline.passed() && !channel_.closed()) {
    pollfd fd{channel_.fd(), POLLIN, 0};
    ::poll(&fd, 1, deadline.poll_ms());
    if (!take_in(Clock::now())) break;
  }
  return reason_ ? std::optional<Error>(gave_up()) : std::nullopt;
}

Error Control::gave_up() const {
  return Error{ErrorCode::peer_failed, stage, "it gave up: " + *reason_}.with(peer_);
}

Result<void> Control::take_in(Clock::time_point now) {
  channel_.flush();
  channel_.fill();
  while (true) {
    auto frame = channel_.next();
    if (!frame) return fail(std::move(frame).error().with(peer_));
    if (!*frame) break;
    heard_ = now;
    Reader in(**frame);
    const auto topic = in.get<Topic>();
    if (in.bad()) return fail(Error{ErrorCode::protocol_error, stage, "it sent an empty frame"}.with(peer_));
    if (topic == Topic::alive) continue;
    if (topic == Topic::gave_up) {
      reason_ = in.text();
      return fail(gave_up());
    }
    const auto rest = in.raw(in.left());
    said_.emplace_back(topic, Bytes(rest.begin(), rest.end()));
  }
  if (channel_.closed() && said_.empty())
    return fail(Error{ErrorCode::peer_failed, stage, "it is gone: " + channel_.close_cause()}.with(peer_));
  return {};
}

Result<void> Control::look(Clock::time_point now) {
  due_ = now + pulse;
  if (cancelled()) return fail(Error{ErrorCode::cancelled, "measure", "interrupted"}.with(peer_));
  CENOTE_TRY(tell(Topic::alive));
  CENOTE_TRY(take_in(now));
  if (now - heard_ <= silence_) return {};
  return fail(
      Error{ErrorCode::deadline_exceeded, stage,
            fmt::format("it has said nothing for {:.0f} s", std::chrono::duration<double>(silence_).count())}
          .with(peer_)
          .fix("it hangs, is stopped or was cut off; --timeout says how long to wait"));
}

Result<std::pair<Topic, Bytes>> Control::hear_any(const std::function<void()>& meanwhile) {
  while (said_.empty()) {
    const int wait_ms = meanwhile ? 1 : 50;
    pollfd fd{channel_.fd(), static_cast<short>(POLLIN | (channel_.unsent() ? POLLOUT : 0)), 0};
    ::poll(&fd, 1, wait_ms);
    if (meanwhile) meanwhile();
    const auto now = Clock::now();
    if (cancelled()) return fail(Error{ErrorCode::cancelled, "measure", "interrupted"}.with(peer_));
    CENOTE_TRY(take_in(now));
    if (said_.empty()) CENOTE_TRY(tick(now));
  }
  auto out = std::move(said_.front());
  said_.pop_front();
  return out;
}

Result<Bytes> Control::hear(Topic topic, const std::function<void()>& meanwhile) {
  CENOTE_ASSIGN(auto said, hear_any(meanwhile));
  if (said.first == topic) return std::move(said.second);
  return fail(Error{
      ErrorCode::protocol_error, stage,
      fmt::format("it spoke of {} where {} was due", static_cast<int>(said.first), static_cast<int>(topic))}
                  .with(peer_));
}

}  // namespace cenote::perf
