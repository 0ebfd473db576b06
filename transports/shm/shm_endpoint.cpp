#include "transports/shm/shm_endpoint.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace cenote::transport::shm {

// Sleeping without losing a wake-up. The one who is about to sleep: (1) makes its door odd, (2) fence, (3)
// looks whether anything is pending, and sleeps only if not. The one who gives a signal: (a) writes it, (b)
// fence, (c) looks at the door. Both fences are sequentially consistent, so one comes first in their single
// order: if (2) does, then (c) reads the odd door and wakes the sleeper; if (b) does, then (3) sees the
// signal. A wake-up is a packet in the sleeper's socket, which stays readable until it is read, so it may
// also come too early. `rung_` spares further packets: every sleep has its own number, and one packet ends
// it. The wake-up goes through the socket and not through an eventfd because a write to a descriptor that a
// peer made may block at the peer's will; a send with MSG_DONTWAIT may not.
inline void ShmEndpoint::ring_bell() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const std::uint64_t sleep = peer_door_->sleep.load(std::memory_order_relaxed);
  if ((sleep & 1) != 0 && sleep != rung_) [[unlikely]]
    wake_peer(sleep);
}

void ShmEndpoint::wake_peer(std::uint64_t sleep) {
  rung_ = sleep;
  control_.wake();
}

// A counter has one writer, this endpoint, so adding is a plain store. The peer sleeps only after it has seen
// `activity` unchanged.
inline void ShmEndpoint::give_signal(std::uint32_t slot) {
  small_.report();
  peer_inbox_->signal(slot).store(++given_[slot], std::memory_order_release);
  peer_inbox_->activity.store(++peer_activity_, std::memory_order_release);
  ring_bell();
}

std::byte* ShmEndpoint::lookup(const RegionKey& key, const RemoteSlice& slice, std::size_t length,
                               const char* stage) {
  const Import* import = last_;
  if (import == nullptr || import->key.region != key.region) {
    const auto found = imports_.find(key.region);
    if (key.owner != peer_.header.id) {
      break_with(Error{ErrorCode::permission_denied, stage, "the key is not one of this peer's regions"});
      return nullptr;
    }
    if (found == imports_.end()) return nullptr;
    last_ = import = &found->second;
  }
  if (import->key.token != key.token || import->key.owner != key.owner || import->revoked()) {
    break_with(
        Error{ErrorCode::permission_denied, stage, "the key's region was destroyed, or the key is forged"});
    return nullptr;
  }
  if (slice.offset > import->key.size || length > import->key.size - slice.offset) {
    break_with(Error{ErrorCode::invalid_argument, stage,
                     "offset " + std::to_string(slice.offset) + " and length " + std::to_string(length) +
                         " do not fit a region of " + std::to_string(import->key.size) + " bytes"});
    return nullptr;
  }
  return import->data() + slice.offset;
}

inline std::byte* ShmEndpoint::reach(const RemoteSlice& slice, std::size_t length, const char* stage) {
  const auto key = RegionKey::unpack(*slice.key);
  if (!key) [[unlikely]] {
    break_with(Error{ErrorCode::permission_denied, stage, "the key is not one of a shm region"});
    return nullptr;
  }
  return lookup(*key, slice, length, stage);
}

bool ShmEndpoint::blocked(std::uint64_t region, std::uint64_t offset, std::size_t length) {
  if (!small_.blocks(region, offset, length)) [[likely]]
    return false;
  if (asked_ != small_.sent()) {
    asked_ = small_.sent();
    peer_inbox_->control.store(++peer_control_, std::memory_order_release);
    ring_bell();
  }
  return true;
}

// The way of most small puts: nothing but the line is written, and everything else is decided elsewhere.
Result<void> ShmEndpoint::put(std::span<const std::byte> src, RemoteSlice dst, std::uint32_t signal,
                              std::uint64_t tag) {
  if (signal >= signal_slots || last_ == nullptr || !flows() || full() ||
      !small_.takes(src.size(), last_->key.region) || !last_->holds(dst, src.size())) [[unlikely]]
    return put_otherwise(src, dst, signal, tag);
  small_.put(src, last_->key.region, dst.offset, signal);
  ring_bell();
  posted_put(src.size(), tag);
  return done();
}

Result<void> ShmEndpoint::put_otherwise(std::span<const std::byte> src, const RemoteSlice& dst,
                                        std::uint32_t signal, std::uint64_t tag) {
  if (failure_) return failed();
  if (full()) return queue_full("put");
  if (signal >= signal_slots && signal != no_signal)
    return fail(ErrorCode::invalid_argument, "put", "no signal slot " + std::to_string(signal));
  if (flows()) {
    std::byte* at = nullptr;
    if (!src.empty()) at = reach(dst, src.size(), "put");
    if (failure_) return failed();
    if ((src.empty() || at != nullptr) && write(at, src, dst.offset, signal)) {
      posted_put(src.size(), tag);
      return done();
    }
  }
  Deferred operation;
  operation.kind = Kind::put;
  operation.src = src;
  operation.signal = signal;
  operation.tag = tag;
  operation.offset = dst.offset;
  if (!src.empty()) operation.key = *dst.key;
  return defer(std::move(operation));
}

inline void ShmEndpoint::posted_put(std::size_t bytes, std::uint64_t tag) {
  ++stats_.puts;
  stats_.bytes_put += bytes;
  finish(tag);
  core_->happened = true;
}

/// `at`: where `offset` of the region last_ lies; null where nothing is to be written. False: it has to wait.
bool ShmEndpoint::write(std::byte* at, std::span<const std::byte> src, std::uint64_t offset,
                        std::uint32_t signal) {
  if (!src.empty()) {
    if (signal != no_signal && small_.finds_room(src.size(), last_->key.region)) {
      small_.put(src, last_->key.region, offset, signal);
      ring_bell();
      return true;
    }
    if (blocked(last_->key.region, offset, src.size())) return false;
    std::memcpy(at, src.data(), src.size());
  }
  if (signal != no_signal) give_signal(signal);
  return true;
}

Result<void> ShmEndpoint::get(std::span<std::byte> dst, RemoteSlice src, std::uint64_t tag) {
  if (failure_) return failed();
  if (full()) return queue_full("get");
  Deferred operation;
  operation.kind = Kind::get;
  operation.dst = dst;
  operation.tag = tag;
  operation.offset = src.offset;
  if (!dst.empty()) operation.key = *src.key;
  if (flows() && run(operation)) return failure_ ? failed() : Result<void>{};
  return defer(std::move(operation));
}

Result<void> ShmEndpoint::atomic_add(RemoteSlice dst, std::uint64_t value, std::uint64_t* old,
                                     std::uint64_t tag) {
  if (failure_) return failed();
  if (full()) return queue_full("atomic add");
  Deferred operation;
  operation.kind = Kind::add;
  operation.value = value;
  operation.old = old;
  operation.tag = tag;
  operation.offset = dst.offset;
  operation.key = *dst.key;
  if (flows() && run(operation)) return failure_ ? failed() : Result<void>{};
  return defer(std::move(operation));
}

Result<void> ShmEndpoint::send(std::span<const std::byte> message) {
  if (failure_) [[unlikely]]
    return failed();
  if (message.size() > max_message) [[unlikely]]
    return fail(ErrorCode::invalid_argument, "send",
                std::to_string(message.size()) + " bytes are more than one message takes");
  if (flows()) [[likely]] {
    if (push_message(message)) [[likely]]
      return done();
    return failure_ ? failed() : queue_full("send");
  }
  if (full()) return queue_full("send");
  Deferred operation;
  operation.kind = Kind::send;
  operation.message.assign(message.begin(), message.end());
  return defer(std::move(operation));
}

bool ShmEndpoint::push_message(std::span<const std::byte> message) {
  const std::uint64_t lines = lines_for(message.size());
  if (next_line_ + lines - credit_ > ring_lines) [[unlikely]] {
    const std::uint64_t taken = inbox().taken.load(std::memory_order_acquire);
    if (taken < credit_ || taken > next_line_) {
      break_with(
          Error{ErrorCode::protocol_error, "send", "the peer says it took messages that were never sent"});
      return false;
    }
    credit_ = taken;
    if (next_line_ + lines - credit_ > ring_lines) return false;
  }
  small_.report();
  Line* const ring = peer_inbox_->ring;
  const std::size_t in_first = std::min(message.size(), first_payload);
  std::size_t at = in_first;
  for (std::uint64_t i = 1; i < lines; ++i) {
    Line& line = ring[(next_line_ + i) % ring_lines];
    const std::size_t count = std::min(message.size() - at, sizeof line.payload);
    std::memcpy(line.payload, message.data() + at, count);
    line.sequence.store(next_line_ + i + 1, std::memory_order_relaxed);
    at += count;
  }
  Line& first = ring[next_line_ % ring_lines];
  const auto size = static_cast<std::uint32_t>(message.size());
  std::memcpy(first.payload, &size, sizeof size);
  if (in_first != 0) std::memcpy(first.payload + sizeof size, message.data(), in_first);
  first.sequence.store(next_line_ + 1, std::memory_order_release);
  next_line_ += lines;
  ring_bell();
  ++stats_.sends;
  stats_.bytes_sent += message.size();
  return true;
}

Result<std::optional<std::size_t>> ShmEndpoint::receive(std::span<std::byte> out) {
  Line* const ring = inbox().ring;
  Line& first = ring[taken_ % ring_lines];
  const bool trusted = !failure_ || failure_->code == ErrorCode::peer_failed;
  if (!trusted || first.sequence.load(std::memory_order_acquire) != taken_ + 1) {
    if (failure_) [[unlikely]]
      return failed();
    return std::nullopt;
  }
  small_.take();  // puts before this message
  // Read once, whatever the compiler would like: the peer may change it at any moment.
  std::uint32_t size = *static_cast<const volatile std::uint32_t*>(static_cast<void*>(first.payload));
  if (size > max_message) [[unlikely]] {
    break_with(Error{ErrorCode::protocol_error, "receive",
                     "the peer sent a message of " + std::to_string(size) + " bytes"});
    return failed();
  }
  if (size > out.size())
    return fail(
        ErrorCode::invalid_argument, "receive",
        "the message has " + std::to_string(size) + " bytes, the buffer " + std::to_string(out.size()));
  const std::uint64_t lines = lines_for(size);
  const std::size_t in_first = std::min<std::size_t>(size, first_payload);
  if (in_first != 0) std::memcpy(out.data(), first.payload + sizeof size, in_first);
  std::size_t at = in_first;
  for (std::uint64_t i = 1; i < lines; ++i) {
    const Line& line = ring[(taken_ + i) % ring_lines];
    const std::size_t count = std::min(size - at, sizeof line.payload);
    std::memcpy(out.data() + at, line.payload, count);
    at += count;
  }
  taken_ += lines;
  if (taken_ - reported_ >= ring_lines / 4) report_taken();
  ++stats_.received_messages;
  stats_.received_bytes += size;
  return size;
}

void ShmEndpoint::report_taken() {
  if (peer_inbox_ == nullptr || failure_) return;
  small_.report();
  reported_ = taken_;
  peer_inbox_->taken.store(taken_, std::memory_order_release);
  peer_inbox_->activity.store(++peer_activity_, std::memory_order_release);
  ring_bell();
}

std::uint64_t ShmEndpoint::signal(std::uint32_t slot) const {
  if (slot >= signal_slots) return 0;
  // The counter first: of a put that follows small ones only the counter tells, and they come before it.
  const std::uint64_t direct = inbox().signal(slot).load(std::memory_order_acquire);
  small_.take();
  return direct + small_.signals(slot);
}

Result<void> ShmEndpoint::defer(Deferred operation) {
  deferred_.push(std::move(operation));
  if (stage_ == Stage::ready && deferred_.size() == 1) run_deferred();
  return {};
}

bool ShmEndpoint::run(Deferred& operation) {
  const RemoteSlice slice{&operation.key, operation.offset};
  if (operation.kind == Kind::send) return push_message(operation.message);
  const std::size_t length = operation.kind == Kind::put   ? operation.src.size()
                             : operation.kind == Kind::get ? operation.dst.size()
                                                           : sizeof(std::uint64_t);
  std::byte* at = nullptr;
  if (length != 0) {
    at = reach(slice, length,
               operation.kind == Kind::put   ? "put"
               : operation.kind == Kind::get ? "get"
                                             : "atomic add");
    if (failure_) return true;
    if (at == nullptr) {
      want(*RegionKey::unpack(operation.key));
      return false;
    }
    if (operation.kind != Kind::put && blocked(last_->key.region, operation.offset, length)) return false;
  }
  switch (operation.kind) {
    case Kind::put:
      if (!write(at, operation.src, operation.offset, operation.signal)) return false;
      ++stats_.puts;
      stats_.bytes_put += length;
      break;
    case Kind::get:
      if (length != 0) std::memcpy(operation.dst.data(), at, length);
      ++stats_.gets;
      stats_.bytes_got += length;
      break;
    case Kind::add: {
      if (operation.offset % sizeof(std::uint64_t) != 0) {
        break_with(Error{ErrorCode::invalid_argument, "atomic add",
                         "offset " + std::to_string(operation.offset) + " is not a multiple of 8"});
        return true;
      }
      // NOLINTNEXTLINE: aligned, checked above; regions are page aligned.
      std::atomic_ref<std::uint64_t> word(*static_cast<std::uint64_t*>(static_cast<void*>(at)));
      const std::uint64_t before = word.fetch_add(operation.value, std::memory_order_seq_cst);
      if (operation.old != nullptr) *operation.old = before;
      ++stats_.atomics;
      break;
    }
    case Kind::send:
      break;
  }
  finish(operation.tag);
  core_->happened = true;
  return true;
}

bool ShmEndpoint::run_deferred() {
  bool any = false;
  while (!deferred_.empty() && !failure_) {
    // Should it break the endpoint, that completes it, like everything else in the queue.
    if (!run(deferred_.front()) || failure_) break;
    (void)deferred_.pop();
    any = true;
  }
  return any;
}

void ShmEndpoint::want(const RegionKey& key) {
  if (wanted_.region == key.region) return;
  wanted_ = key;
  Writer body;
  body.put(key.region).put(key.token);
  if (auto told = tell(PacketType::want_region, body.bytes()); !told) break_with(told.error(), false);
}

bool ShmEndpoint::progress() {
  if (failure_) [[unlikely]]
    return false;
  Inbox& box = inbox();
  bool any = false;
  if (const auto now = box.control.load(std::memory_order_acquire); now != seen_control_) [[unlikely]] {
    seen_control_ = now;
    core_->look_soon = true;
    small_.take();
    if (small_.taken() != 0) report_taken();  // it may wait for that
    if (auto words = last_words()) {
      break_with(std::move(*words), false);
      return true;
    }
  }
  if (const auto now = box.activity.load(std::memory_order_acquire); now != seen_activity_) {
    seen_activity_ = now;
    any = true;
  }
  small_.take();
  if (small_.taken() != seen_small_) {
    seen_small_ = small_.taken();
    any = true;
  }
  if (small_.fault()) [[unlikely]] {
    break_with(*small_.fault());
    return true;
  }
  if (seen_head_ != taken_ &&
      box.ring[taken_ % ring_lines].sequence.load(std::memory_order_acquire) == taken_ + 1) {
    seen_head_ = taken_;
    any = true;
  }
  if (stage_ == Stage::ready && !deferred_.empty()) [[unlikely]]
    any = run_deferred() || any;
  return any;
}

bool ShmEndpoint::pending() const {
  if (failure_) return false;
  Inbox& box = inbox();
  return box.control.load(std::memory_order_acquire) != seen_control_ ||
         box.activity.load(std::memory_order_acquire) != seen_activity_ || small_.ready() ||
         small_.taken() != seen_small_ || small_.fault() ||
         (seen_head_ != taken_ &&
          box.ring[taken_ % ring_lines].sequence.load(std::memory_order_acquire) == taken_ + 1);
}

void ShmEndpoint::break_with(Error error, bool tell_peer) {
  if (failure_) return;
  // A socket that ended and a key that was revoked may be how a peer's end is first seen: it may have said
  // more.
  if (error.code == ErrorCode::peer_failed || error.code == ErrorCode::permission_denied) {
    auto words = last_words();
    // Before it had this side's memory it could only use the socket.
    if (!words && error.code == ErrorCode::peer_failed && stage_ != Stage::ready) words = last_packet();
    if (words) error = std::move(*words);
  }
  if (error.peer.empty()) error.peer = peer_name_;
  if (error.device.empty()) error.device = "shm";
  if (tell_peer) say_goodbye("its endpoint failed: " + error.stage + ": " + error.cause);
  core_->log_debug("endpoint failed: " + error.message());
  if (error.code != ErrorCode::peer_failed) small_.stop();  // what had come before the end still counts
  failure_ = std::make_unique<const Error>(std::move(error));
  while (!deferred_.empty()) {
    const Deferred operation = deferred_.pop();
    if (operation.kind != Kind::send) finish_failed(operation.tag);
  }
  control_.close();
  last_ = nullptr;
  imports_.clear();
  core_->happened = true;
}

void ShmEndpoint::close(std::string_view reason) {
  if (failure_) return;
  say_goodbye(reason);
  break_with(Error{ErrorCode::cancelled, "use endpoint", "closed by this side: " + std::string(reason)},
             false);
}

void ShmEndpoint::say_goodbye(std::string_view reason) {
  const bool known = stage_ == Stage::proving || stage_ == Stage::welcoming || stage_ == Stage::ready;
  if (failure_ || !control_.open() || !known) return;
  const auto text = as_bytes(reason).first(std::min(reason.size(), max_reason));
  if (peer_inbox_ == nullptr) {
    (void)tell(PacketType::close, text);
    return;
  }
  if (!text.empty()) std::memcpy(peer_inbox_->reason, text.data(), text.size());
  peer_inbox_->farewell.store(text.size() + 1, std::memory_order_release);
  peer_inbox_->control.store(++peer_control_, std::memory_order_release);
  ring_bell();
}

std::optional<Error> ShmEndpoint::last_words() {
  Inbox& box = inbox();
  if (const std::uint64_t size = box.farewell.load(std::memory_order_acquire); size != 0) {
    if (size > max_reason + 1)
      return Error{ErrorCode::protocol_error, "talk to peer", "its farewell is longer than one may be"};
    std::array<std::byte, max_reason> text;
    std::memcpy(text.data(), box.reason, size - 1);
    return farewell_error(std::span(text).first(size - 1));
  }
  return std::nullopt;
}

std::optional<Error> ShmEndpoint::last_packet() {
  while (control_.open()) {
    const auto packet = control_.receive();
    if (!packet || !*packet) break;
    if ((*packet)->type == PacketType::close) return farewell_error((*packet)->body);
  }
  return std::nullopt;
}

void ShmEndpoint::region_died(std::uint64_t region) {
  small_.forbid(region);
  Writer body;
  body.put(region);
  if (!failure_ && stage_ == Stage::ready) (void)tell(PacketType::region_gone, body.bytes());
}

}  // namespace cenote::transport::shm
