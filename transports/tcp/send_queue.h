// SendQueue: what the kernel has not taken yet, in order: bytes that it owns and bytes that it only refers
// to.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "runtime/bytes.h"
#include "runtime/result.h"
#include "transports/ring_queue.h"

namespace cenote::transport::tcp {

/// Writes as much as the kernel takes now. Errors: peer_failed, system_error.
Result<std::size_t> write_some(int fd, std::span<const std::byte> head, std::span<const std::byte> body);

class SendQueue {
 public:
  struct Segment {
    const std::byte* data = nullptr;  ///< null: the next bytes of the queue's own
    std::size_t length = 0;
    std::uint64_t region = 0;  ///< of this side, that `data` belongs to; 0: the caller's memory
  };

  [[nodiscard]] bool empty() const { return segments_.empty(); }
  /// The frame that was added last is whole. `begun`: its first bytes have left already, past the queue.
  /// `tag`: of the operation that is complete when the frame has left.
  void end_frame(bool begun, std::optional<std::uint64_t> tag);
  /// What is missing of the frame that has partly left, appended to `out`. False: more than `most` bytes.
  bool rest_of_frame(Bytes& out, std::size_t most);
  /// Bytes that were copied and have not left.
  [[nodiscard]] std::size_t copied() const { return own_.size() - own_taken_; }
  /// Bytes that the kernel has taken from here.
  [[nodiscard]] std::uint64_t advanced() const { return advanced_; }
  /// Frames with a tag that have not left.
  [[nodiscard]] std::size_t tagged() const { return tagged_; }
  /// Segments that refer to memory of others.
  [[nodiscard]] std::size_t references() const { return references_; }
  void copy(std::span<const std::byte> bytes);
  void refer(Segment segment);
  /// Whether every region still satisfies `alive`.
  bool regions_alive(const std::function<bool(std::uint64_t)>& alive);
  /// Sends until the kernel takes no more; `done` gets the tag of each operation that left whole.
  /// True when anything left.
  Result<bool> flush(int fd, const std::function<void(std::uint64_t)>& done);
  /// Drops everything; `dropped` gets the tags of the operations.
  void clear(const std::function<void(std::uint64_t)>& dropped);

 private:
  void advance(std::size_t count, const std::function<void(std::uint64_t)>& done);

  struct End {
    std::uint64_t at = 0;
    std::optional<std::uint64_t> tag{};
  };

  RingQueue<Segment> segments_;
  RingQueue<End> ends_;                     ///< of the frames, counted like these two:
  std::uint64_t added_ = 0, advanced_ = 0;  ///< bytes since the beginning
  bool begun_ = false;
  Bytes own_;
  std::size_t own_taken_ = 0;
  std::size_t references_ = 0, tagged_ = 0;
};

}  // namespace cenote::transport::tcp
