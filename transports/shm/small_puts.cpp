#include "transports/shm/small_puts.h"

#include <algorithm>
#include <utility>

#include "transports/shm/shm_core.h"

namespace cenote::transport::shm {
namespace {

constexpr std::uint64_t report_every = put_lines / 4;

/// Asks for a line that is about to be written. Old processors take it for a no-operation.
void fetch_to_write(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

void copy_in(std::byte* to, const PutLine& line, std::size_t length) {
  for (std::size_t i = 0; i < length; i += sizeof(Word)) {
    const std::uint64_t word = line.payload[i / sizeof word].load(std::memory_order_relaxed);
    std::memcpy(to + i, &word, std::min(sizeof word, length - i));
  }
}

}  // namespace

bool SmallPuts::still_blocks(std::uint64_t region, std::uint64_t offset, std::size_t length) {
  const auto overlaps_any = [&] {
    for (std::uint64_t i = known_; i != sent_; ++i) {
      if (overlaps(under_way_[i % put_lines], region, offset, length)) return true;
    }
    return false;
  };
  if (!overlaps_any()) return false;
  return !refresh() || overlaps_any();
}

bool SmallPuts::peer_took(std::uint64_t count) {
  // The word in the inbox may be older than what came in a line.
  if (count <= known_) return true;
  if (count > sent_)
    return refuse(ErrorCode::protocol_error, "it says it took small puts that were never sent");
  known_ = count;
  return true;
}

// Bounded: a peer that writes without end must not keep this side here.
void SmallPuts::take_all() {
  // Who answered last time will answer again: the line of the answer comes while the question is read.
  if (std::exchange(answered_, false)) fetch_to_write(&peer_->puts[sent_ % put_lines]);
  for (std::uint64_t i = 0; i < put_lines && ready() && take_one(own_->puts[taken_ % put_lines]); ++i)
    ++taken_;
  if (taken_ - reported_ >= report_every) report();
}

void SmallPuts::copy_out(PutLine& line, std::span<const std::byte> bytes) {
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(Word)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min(sizeof word, bytes.size() - i));
    line.payload[i / sizeof word].store(word, std::memory_order_relaxed);
  }
}

bool SmallPuts::take_one(const PutLine& line) {
  SmallPutWords words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = line.put[i].load(std::memory_order_relaxed);
  const auto put = std::bit_cast<SmallPut>(words);
  if (put.length > max_small)
    return refuse(ErrorCode::protocol_error,
                  "it sent a small put of " + std::to_string(put.length) + " bytes");
  if (put.signal >= signal_slots)
    return refuse(ErrorCode::protocol_error, "it gave signal " + std::to_string(put.signal));
  // The count that came with the put is the low end of the whole one.
  const auto more = static_cast<std::uint16_t>(put.taken - static_cast<std::uint16_t>(known_));
  if (more < INT16_MAX && more != 0 && !peer_took(known_ + more)) return false;
  if (put.region != last_region_) [[unlikely]] {
    const auto found = find(put.region);
    if (!found) return false;
    last_region_ = put.region;
    last_bytes_ = *found;
  }
  if (last_bytes_.data() != nullptr) [[likely]] {
    if (put.offset > last_bytes_.size() || put.length > last_bytes_.size() - put.offset)
      return refuse(ErrorCode::protocol_error,
                    "the offset or length of its small put does not fit the region");
    std::byte* const to = last_bytes_.data() + put.offset;
    if (put.length == sizeof(Word)) [[likely]] {
      const std::uint64_t word = line.payload[0].load(std::memory_order_relaxed);
      std::memcpy(to, &word, sizeof word);
    } else {
      copy_in(to, line, put.length);
    }
  }
  ++signals_[put.signal];
  return true;
}

/// Null bytes: the region was destroyed after the put had been written; such a put is dropped, like the bytes
/// that a peer still writes into the pages of a destroyed region.
std::optional<std::span<std::byte>> SmallPuts::find(std::uint64_t region) {
  if (const auto found = allowed_.find(region); found != allowed_.end()) return found->second;
  if (region != 0 && region < core_.next_region && !core_.regions.contains(region))
    return std::span<std::byte>();
  (void)refuse(ErrorCode::permission_denied, "it put into a region that was not given to it");
  return std::nullopt;
}

bool SmallPuts::refuse(ErrorCode code, std::string cause) {
  stopped_ = true;
  if (!fault_) fault_ = Error{code, "take a small put", std::move(cause)};
  return false;
}

}  // namespace cenote::transport::shm
