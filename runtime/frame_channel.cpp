#include "runtime/frame_channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace cenote {
namespace {
constexpr std::size_t prefix = sizeof(std::uint32_t);
constexpr std::size_t chunk = std::size_t{64} << 10U;
constexpr std::size_t piece_size = std::size_t{16} << 10U;  // read at once
constexpr std::size_t window = std::size_t{256} << 10U;
}  // namespace

SharedFrame make_frame(std::span<const std::byte> payload) {
  Writer writer;
  writer.blob(payload);
  return std::make_shared<const Bytes>(writer.take());
}

FrameChannel::~FrameChannel() {
  if (!fd_) return;
  // Closing with unread bytes would reset the connection, and a reset may overtake what was just sent.
  ::shutdown(fd_.get(), SHUT_WR);
  std::array<std::byte, 4096> dropped;
  for (int i = 0; i < 64 && ::recv(fd_.get(), dropped.data(), dropped.size(), MSG_DONTWAIT) > 0; ++i) {
  }
}

void FrameChannel::close_with(std::string cause) {
  if (closed_) return;
  closed_ = true;
  cause_ = std::move(cause);
}

void FrameChannel::queue(SharedFrame frame) {
  unsent_bytes_ += frame->size();
  out_.push_back(std::move(frame));
}

void FrameChannel::flush() {
  while (!out_.empty()) {
    const auto& frame = *out_.front();
    const auto sent =
        ::send(fd_.get(), frame.data() + out_sent_, frame.size() - out_sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) {
        // Unsendable for good; fill() may still find why (a last frame of the peer).
        const int error = errno;
        out_.clear();
        unsent_bytes_ = 0;
        fill();
        close_with(std::generic_category().message(error));
      }
      return;
    }
    out_sent_ += static_cast<std::size_t>(sent);
    unsent_bytes_ -= static_cast<std::size_t>(sent);
    if (out_sent_ == frame.size()) {
      out_.pop_front();
      out_sent_ = 0;
    }
  }
}

void FrameChannel::fill() {
  if (in_taken_ > 0 && (in_taken_ == in_.size() || in_taken_ > chunk)) {
    in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(in_taken_));
    in_taken_ = 0;
  }
  // A window, or the whole of a frame that is larger: frames that are not taken yet stay with the peer.
  std::size_t most = window;
  if (std::uint32_t length = 0; in_.size() - in_taken_ >= prefix) {
    std::memcpy(&length, in_.data() + in_taken_, prefix);
    most = std::max(most, std::min<std::size_t>(length, max_frame_) + prefix);
  }
  while (!closed_ && in_.size() - in_taken_ < most) {
    std::array<std::byte, piece_size> piece;  // not cleared: whoever asks often, asks mostly in vain
    const auto got = ::recv(fd_.get(), piece.data(), piece.size(), MSG_DONTWAIT);
    const int error = errno;
    if (got > 0) {
      in_.insert(in_.end(), piece.data(), piece.data() + got);
      continue;
    }
    if (got < 0 && error == EINTR) continue;
    if (got < 0 && error == EAGAIN) return;
    close_with(got == 0 ? "connection closed" : std::generic_category().message(error));
  }
}

Result<std::optional<Bytes>> FrameChannel::next() {
  const auto have = std::span<const std::byte>(in_).subspan(in_taken_);
  if (have.size() < prefix) return std::nullopt;
  std::uint32_t length = 0;
  std::memcpy(&length, have.data(), prefix);
  if (length > max_frame_)
    return fail(ErrorCode::protocol_error, "read a frame",
                "it announces " + std::to_string(length) + " bytes, at most " + std::to_string(max_frame_) +
                    " are allowed");
  if (have.size() - prefix < length) return std::nullopt;
  const auto payload = have.subspan(prefix, length);
  in_taken_ += prefix + length;
  return Bytes(payload.begin(), payload.end());
}

}  // namespace cenote
