// FrameChannel: length-prefixed frames over a non-blocking stream socket. Nothing blocks: queue(), then
// flush() and fill() whenever poll(2) says so. Owns its socket; one thread at a time.
//
// The other side is not trusted: a length beyond the limit is a protocol_error, and memory grows with the
// bytes that arrived, not with the length that was announced.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "runtime/bytes.h"
#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace cenote {

/// A frame ready to be sent, its length in front; shared by the channels that it goes out on.
using SharedFrame = std::shared_ptr<const Bytes>;
SharedFrame make_frame(std::span<const std::byte> payload);

class FrameChannel {
 public:
  FrameChannel(UniqueFd fd, std::size_t max_frame) : fd_(std::move(fd)), max_frame_(max_frame) {}
  FrameChannel(FrameChannel&&) noexcept = default;
  FrameChannel& operator=(FrameChannel&&) noexcept = default;
  /// Ends the connection so that what was sent still reaches the peer. Never waits.
  ~FrameChannel();

  [[nodiscard]] int fd() const { return fd_.get(); }
  void set_max_frame(std::size_t bytes) { max_frame_ = bytes; }

  void queue(SharedFrame frame);
  void queue(std::span<const std::byte> payload) { queue(make_frame(payload)); }
  [[nodiscard]] bool unsent() const { return !out_.empty(); }
  [[nodiscard]] std::size_t unsent_bytes() const { return unsent_bytes_; }

  /// Writes and reads what the socket takes and has. Never fail: a broken connection makes it closed().
  void flush();
  void fill();
  /// The oldest frame that is complete. protocol_error: the peer announced a frame beyond the limit.
  Result<std::optional<Bytes>> next();

  /// Nothing will arrive any more (frames that already did are still in next()).
  [[nodiscard]] bool closed() const { return closed_; }
  /// "connection closed", or the system's text.
  [[nodiscard]] const std::string& close_cause() const { return cause_; }

 private:
  void close_with(std::string cause);

  UniqueFd fd_;
  std::size_t max_frame_;
  std::deque<SharedFrame> out_;
  std::size_t out_sent_ = 0;  ///< bytes of out_.front() that are gone
  std::size_t unsent_bytes_ = 0;
  Bytes in_;
  std::size_t in_taken_ = 0;  ///< bytes of in_ that next() has given out
  bool closed_ = false;
  std::string cause_;
};

}  // namespace cenote
