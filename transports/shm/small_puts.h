// SmallPuts: puts of few bytes with a signal, both ways of one endpoint. Bytes and signal travel in one cache
// line of a ring in the receiver's inbox, so that the receiver, who polls that line, fetches one line and not
// two. It puts the bytes where they belong when it next looks (signal(), receive(), progress()).
//
// Other operations do not pass through the ring and need not wait for it, but for one case: an operation on
// bytes that a small put is still to change comes after it. Who posts one asks `blocks()`; what the receiver
// has taken comes back with its own puts, signals and messages, or when it is asked.
//
// The ring is written by a peer that is not trusted: a line is copied, then checked; the first bad one ends
// it. Not thread-safe, never allocates on the way of a put.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "transports/shm/layout.h"

namespace cenote::transport::shm {

class ShmCore;

class SmallPuts {
 public:
  /// `core` knows which regions there are; it outlives this.
  explicit SmallPuts(const ShmCore& core) : core_(core) {}
  /// `own`: where the peer writes.
  void open(Inbox& own) { own_ = &own; }
  /// `peer`: where this side writes.
  void reach(Inbox& peer) { peer_ = &peer; }
  /// Takes no more: bytes and signals that come from now on are not looked at.
  void stop() { stopped_ = true; }

  // Out.
  /// Whether the ring has room for a put of that size to that region.
  [[nodiscard]] bool takes(std::size_t size, std::uint64_t region) const {
    return size - 1 < max_small && sent_ - known_ < put_lines && region <= UINT32_MAX;
  }
  /// The same, after a look at what the peer has taken.
  [[nodiscard]] bool finds_room(std::size_t size, std::uint64_t region) {
    return (sent_ - known_ < put_lines || refresh()) && takes(size, region);
  }
  /// Only where takes(). What was checked: the region is known to the peer, the bytes fit, the signal exists.
  void put(std::span<const std::byte> bytes, std::uint64_t region, std::uint64_t offset,
           std::uint32_t signal) {
    const std::uint64_t at = sent_ % put_lines;
    PutLine& line = peer_->puts[at];
    SmallPut put;
    put.offset = offset;
    put.region = static_cast<std::uint32_t>(region);
    put.taken = static_cast<std::uint16_t>(taken_);
    put.length = static_cast<std::uint8_t>(bytes.size());
    put.signal = static_cast<std::uint8_t>(signal);
    under_way_[at] = {offset, put.region, put.length};
    const auto words = std::bit_cast<SmallPutWords>(put);
    for (std::size_t i = 0; i < words.size(); ++i) line.put[i].store(words[i], std::memory_order_relaxed);
    if (bytes.size() == sizeof(Word)) [[likely]] {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data(), sizeof word);
      line.payload[0].store(word, std::memory_order_relaxed);
    } else {
      copy_out(line, bytes);
    }
    line.sequence.store(++sent_, std::memory_order_release);
    reported_ = taken_;
    answered_ = true;
  }
  [[nodiscard]] std::uint64_t sent() const { return sent_; }
  /// Whether a small put that the peer may not have taken yet changes some of these bytes. Not after a fault.
  [[nodiscard]] bool blocks(std::uint64_t region, std::uint64_t offset, std::size_t length) {
    return sent_ != known_ && still_blocks(region, offset, length);
  }

  // In.
  /// A region of this side that the peer may write to.
  void allow(std::uint64_t region, std::span<std::byte> bytes) { allowed_.insert_or_assign(region, bytes); }
  /// It is gone: what comes for it is dropped.
  void forbid(std::uint64_t region) {
    allowed_.erase(region);
    if (last_region_ == region) last_region_ = no_region;
  }
  [[nodiscard]] bool ready() const {
    return own_->puts[taken_ % put_lines].sequence.load(std::memory_order_acquire) == taken_ + 1 && !stopped_;
  }
  /// Puts in place what has come.
  void take() {
    if (ready()) take_all();
  }
  [[nodiscard]] std::uint64_t taken() const { return taken_; }
  /// Signals to `slot` that came with small puts.
  [[nodiscard]] std::uint64_t signals(std::uint32_t slot) const { return signals_[slot]; }
  /// Tells the peer how many were taken, if it does not know. It is not woken up for it.
  void report() {
    if (reported_ != taken_ && peer_ != nullptr) [[unlikely]] {
      reported_ = taken_;
      peer_->puts_taken.store(taken_, std::memory_order_release);
    }
  }
  /// What the peer did that ends it.
  [[nodiscard]] const std::optional<Error>& fault() const { return fault_; }

 private:
  struct Range {
    std::uint64_t offset = 0;
    std::uint32_t region = 0;
    std::uint32_t length = 0;
  };
  [[nodiscard]] bool still_blocks(std::uint64_t region, std::uint64_t offset, std::size_t length);
  [[nodiscard]] bool overlaps(const Range& range, std::uint64_t region, std::uint64_t offset,
                              std::size_t length) const {
    return range.region == region && range.offset < offset + length && offset < range.offset + range.length;
  }
  static void copy_out(PutLine& line, std::span<const std::byte> bytes);
  /// False: nonsense, like the next.
  bool refresh() { return peer_took(own_->puts_taken.load(std::memory_order_acquire)); }
  bool peer_took(std::uint64_t count);
  void take_all();
  bool take_one(const PutLine& line);
  std::optional<std::span<std::byte>> find(std::uint64_t region);
  bool refuse(ErrorCode code, std::string cause);

  const ShmCore& core_;
  Inbox* own_ = nullptr;
  Inbox* peer_ = nullptr;
  std::uint64_t sent_ = 0, known_ = 0;      ///< out: written, known to be taken
  std::uint64_t taken_ = 0, reported_ = 0;  ///< in: taken, said so
  bool stopped_ = false;
  bool answered_ = false;  ///< something was put since something was taken
  static constexpr std::uint64_t no_region = ~std::uint64_t{0};  // no line can name it
  std::uint64_t last_region_ = no_region;                        ///< of the last put
  std::span<std::byte> last_bytes_;
  std::array<std::uint64_t, signal_slots> signals_{};
  std::array<Range, put_lines> under_way_{};
  std::unordered_map<std::uint64_t, std::span<std::byte>> allowed_;
  std::optional<Error> fault_;
};

}  // namespace cenote::transport::shm
