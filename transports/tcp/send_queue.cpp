#include "transports/tcp/send_queue.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace cenote::transport::tcp {
namespace {

constexpr std::size_t segments_at_once = 32;

Result<std::size_t> send_parts(int fd, iovec* parts, std::size_t count) {
  msghdr header{};
  header.msg_iov = parts;
  header.msg_iovlen = count;
  while (true) {
    const auto sent = ::sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == ENOBUFS) return std::size_t{0};
    Error error = system_error("send to peer over TCP", errno);
    if (errno == EPIPE || errno == ECONNRESET || errno == ETIMEDOUT || errno == EHOSTUNREACH)
      error.code = ErrorCode::peer_failed;
    return fail(std::move(error));
  }
}

iovec part_of(const std::byte* data, std::size_t length) { return {const_cast<std::byte*>(data), length}; }

}  // namespace

Result<std::size_t> write_some(int fd, std::span<const std::byte> head, std::span<const std::byte> body) {
  std::array<iovec, 2> parts{part_of(head.data(), head.size()), part_of(body.data(), body.size())};
  return send_parts(fd, parts.data(), body.empty() ? 1 : 2);
}

void SendQueue::copy(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  if (segments_.empty()) {
    own_.clear();
    own_taken_ = 0;
  }
  added_ += bytes.size();
  own_.insert(own_.end(), bytes.begin(), bytes.end());
  if (!segments_.empty() && segments_.back().data == nullptr) {
    segments_.back().length += bytes.size();
  } else {
    segments_.push(Segment{nullptr, bytes.size()});
  }
}

void SendQueue::refer(Segment segment) {
  ++references_;
  added_ += segment.length;
  segments_.push(segment);
}

void SendQueue::end_frame(bool begun, std::optional<std::uint64_t> tag) {
  if (ends_.empty()) begun_ = begun;
  ends_.push(End{added_, tag});
  if (tag) ++tagged_;
}

bool SendQueue::rest_of_frame(Bytes& out, std::size_t most) {
  if (!begun_ || ends_.empty()) return true;
  std::size_t left = ends_.front().at - advanced_, own = own_taken_;
  if (left > most) return false;
  for (std::size_t i = 0; left != 0; ++i) {
    const Segment& segment = segments_[i];
    const std::size_t now = std::min(left, segment.length);
    const std::byte* from = segment.data == nullptr ? own_.data() + own : segment.data;
    out.insert(out.end(), from, from + now);
    if (segment.data == nullptr) own += now;
    left -= now;
  }
  return true;
}

bool SendQueue::regions_alive(const std::function<bool(std::uint64_t)>& alive) {
  if (references_ == 0) return true;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i].region != 0 && !alive(segments_[i].region)) return false;
  }
  return true;
}

Result<bool> SendQueue::flush(int fd, const std::function<void(std::uint64_t)>& done) {
  bool any = false;
  while (!segments_.empty()) {
    std::array<iovec, segments_at_once> parts;
    const std::size_t count = std::min(segments_.size(), segments_at_once);
    std::size_t own = own_taken_, offered = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const Segment& segment = segments_[i];
      if (segment.data == nullptr) {
        parts[i] = part_of(own_.data() + own, segment.length);
        own += segment.length;
      } else {
        parts[i] = part_of(segment.data, segment.length);
      }
      offered += segment.length;
    }
    CENOTE_ASSIGN(const std::size_t sent, send_parts(fd, parts.data(), count));
    any = any || sent != 0;
    advance(sent, done);
    if (sent < offered) break;
  }
  return any;
}

void SendQueue::advance(std::size_t count, const std::function<void(std::uint64_t)>& done) {
  if (count == 0) return;
  advanced_ += count;
  begun_ = true;
  while (!ends_.empty() && ends_.front().at <= advanced_) {
    const End end = ends_.pop();
    begun_ = end.at != advanced_;
    if (end.tag) {
      --tagged_;
      done(*end.tag);
    }
  }
  while (!segments_.empty()) {
    Segment& segment = segments_.front();
    const std::size_t now = std::min(count, segment.length);
    if (segment.data == nullptr) {
      own_taken_ += now;
    } else {
      segment.data += now;
    }
    segment.length -= now;
    count -= now;
    if (segment.length != 0) return;
    if (segment.data != nullptr) --references_;
    (void)segments_.pop();
  }
  own_.clear();
  own_taken_ = 0;
}

void SendQueue::clear(const std::function<void(std::uint64_t)>& dropped) {
  while (!ends_.empty()) {
    const End end = ends_.pop();
    if (end.tag) dropped(*end.tag);
  }
  segments_.clear();
  own_.clear();
  own_taken_ = 0;
  references_ = tagged_ = 0;
  advanced_ = added_;
  begun_ = false;
}

}  // namespace cenote::transport::tcp
