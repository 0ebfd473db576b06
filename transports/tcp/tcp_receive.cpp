// What comes in: the handshake, then frames. Nothing is believed: types, lengths, keys and the order of
// answers are checked before anything is touched; what does not fit ends the connection.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "runtime/process.h"
#include "transports/tcp/tcp_endpoint.h"

namespace cenote::transport::tcp {
namespace {

constexpr std::size_t read_at_once = std::size_t{16} * 1024;
constexpr std::size_t read_behind_payload = std::size_t{4} * 1024;  // copied twice, so little of it
constexpr std::size_t bytes_at_once =
    std::size_t{4} * 1024 * 1024;  // then the other endpoints have their turn

tl::unexpected<Error> nonsense(std::string what) {
  return fail(ErrorCode::protocol_error, "read from peer", std::move(what));
}

tl::unexpected<Error> gone() {
  return fail(ErrorCode::peer_failed, "talk to peer",
              "its connection ended: process ended or endpoint destroyed");
}

/// 0: nothing there now.
Result<std::size_t> read_some(int fd, std::span<iovec> parts) {
  msghdr header{};
  header.msg_iov = parts.data();
  header.msg_iovlen = parts.size();
  while (true) {
    const auto count = ::recvmsg(fd, &header, MSG_DONTWAIT);
    if (count > 0) return static_cast<std::size_t>(count);
    if (count == 0) return gone();
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return std::size_t{0};
    Error error = cenote::system_error("read from peer over TCP", errno);
    if (errno == ECONNRESET || errno == ECONNREFUSED || errno == ETIMEDOUT || errno == EPIPE ||
        errno == EHOSTUNREACH)
      error.code = ErrorCode::peer_failed;
    return fail(std::move(error));
  }
}

}  // namespace

Result<bool> TcpEndpoint::read_exactly(std::size_t count) {
  while (handshake_.size() < count) {
    std::array<std::byte, Hello::size> buffer;
    iovec part{buffer.data(), count - handshake_.size()};
    CENOTE_ASSIGN(const std::size_t got, read_some(fd_.get(), std::span(&part, 1)));
    if (got == 0) return false;
    handshake_.insert(handshake_.end(), buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(got));
  }
  return true;
}

Result<void> TcpEndpoint::shake_hands() {
  if (stage_ == Stage::greeting) {
    CENOTE_ASSIGN(const bool whole, read_exactly(Challenge::size));
    if (!whole) return {};
    const auto challenge = unpack_challenge(std::exchange(handshake_, {}));
    if (!challenge) return nonsense("it is no cenote transport of this version");
    acceptor_nonce_ = challenge->nonce;
    hello_.dialer = core_->self.header.id;
    hello_.channel = channel_;
    CENOTE_TRY(random_bytes(std::span<std::uint8_t>(hello_.nonce)));
    hello_.proof = proof_of(Side::dialer, peer_.header.secret, acceptor_nonce_, hello_, peer_.header.id);
    const Bytes packed = pack(hello_);
    CENOTE_ASSIGN(const std::size_t sent, write_some(fd_.get(), packed, {}));
    if (sent != packed.size())
      return fail(ErrorCode::peer_failed, "connect over TCP", "the socket took no hello");
    stage_ = Stage::proving;
  }
  if (stage_ == Stage::proving) {
    CENOTE_ASSIGN(const bool whole, read_exactly(sizeof(Mac)));
    if (!whole) return {};
    Mac proof{};
    std::memcpy(proof.data(), handshake_.data(), proof.size());
    const Mac expected =
        proof_of(Side::acceptor, core_->self.header.secret, acceptor_nonce_, hello_, peer_.header.id);
    if (!equal_in_constant_time(proof, expected))
      return fail(ErrorCode::permission_denied, "connect over TCP",
                  "the peer does not know this side's secret");
    stage_ = Stage::ready;
    core_->happened = true;
  }
  return {};
}

bool TcpEndpoint::read() {
  if (failure_ || reading_ || !fd_) return false;
  if (stage_ != Stage::ready) {
    if (auto shaken = shake_hands(); !shaken) break_with(std::move(shaken).error(), false);
    if (failure_ || stage_ != Stage::ready) return failure_ != nullptr;
    (void)flush();
  }
  reading_ = true;
  bool any = false;
  Bytes& scratch = core_->scratch;
  for (std::size_t total = 0; total < bytes_at_once && !failure_;) {
    std::array<iovec, 2> parts{};
    std::size_t used = 0, direct = 0;
    if (arriving_) {
      const auto target = arriving_target();
      if (!target) {
        break_with(target.error());
        break;
      }
      direct = target->size();
      parts[used++] = {target->data(), direct};
    }
    if (!rest_.empty()) std::memcpy(scratch.data(), rest_.data(), rest_.size());
    const std::size_t kept = rest_.size();
    const std::size_t room = arriving_ ? read_behind_payload : read_at_once;
    parts[used++] = {scratch.data() + kept, room};
    const auto got = read_some(fd_.get(), std::span(parts).first(used));
    if (!got) {
      break_with(got.error(), false);
      any = true;
      break;
    }
    if (*got == 0) break;
    any = true;
    total += *got;
    process_.spoke();
    received_ += *got;
    const std::size_t placed = std::min(direct, *got);
    if (arriving_ && placed != 0) {
      arriving_->taken += placed;
      if (arriving_->taken == arriving_->frame.length) arrived();
    }
    const std::size_t have = kept + *got - placed;
    const auto parsed = parse(std::span(scratch).first(have));
    if (!parsed) {
      break_with(parsed.error(), parsed.error().code != ErrorCode::peer_failed);
      break;
    }
    rest_.assign(scratch.begin() + static_cast<std::ptrdiff_t>(*parsed),
                 scratch.begin() + static_cast<std::ptrdiff_t>(have));
    if (*got < direct + room) break;  // that was all
  }
  reading_ = false;
  if (note_ && !failure_ && received_ >= note_end_) break_with(farewell_error(*note_), false);
  return any;
}

Result<std::size_t> TcpEndpoint::parse(std::span<const std::byte> bytes) {
  std::size_t at = 0;
  while (!arriving_ && bytes.size() - at >= sizeof(Frame)) {
    const Frame frame = Frame::parse(bytes.data() + at);
    const auto behind = bytes.subspan(at + sizeof(Frame));
    // A message or a reason is taken whole.
    if (frame.type == FrameType::message || frame.type == FrameType::close) {
      if (frame.length > (frame.type == FrameType::message ? max_message : max_reason))
        return nonsense("it announced " + std::to_string(frame.length) + " bytes of text");
      if (behind.size() < frame.length) return at;
    }
    CENOTE_ASSIGN(const std::size_t used, begin(frame, behind));
    at += sizeof(Frame) + used;
  }
  return at;
}

/// Acts on a frame; returns how much of what stands behind it belonged to it.
Result<std::size_t> TcpEndpoint::begin(const Frame& frame, std::span<const std::byte> rest) {
  if ((frame.zero[0] | frame.zero[1] | frame.zero[2]) != 0) return nonsense("its frame is malformed");
  switch (frame.type) {
    case FrameType::put:
    case FrameType::get_reply: {
      if (frame.type == FrameType::put && frame.signal >= signal_slots && frame.signal != no_signal)
        return nonsense("it gave signal " + std::to_string(frame.signal));
      if (frame.type == FrameType::get_reply &&
          (awaited_.empty() || awaited_.front().type != FrameType::get ||
           awaited_.front().dst.size() != frame.length))
        return nonsense("it sent data that was not asked for");
      arriving_ = Arriving{frame.type, frame};
      const std::size_t now = std::min<std::uint64_t>(rest.size(), frame.length);
      if (frame.length != 0) {
        CENOTE_ASSIGN(const auto target, arriving_target());
        if (now != 0) std::memcpy(target.data(), rest.data(), now);
      }
      arriving_->taken = now;
      if (now == frame.length) arrived();
      return now;
    }
    case FrameType::get: {
      CENOTE_TRY(serve_get(frame));
      return std::size_t{0};
    }
    case FrameType::add: {
      CENOTE_TRY(serve_add(frame));
      return std::size_t{0};
    }
    case FrameType::add_reply: {
      CENOTE_TRY(take_add_reply(frame));
      return std::size_t{0};
    }
    case FrameType::message: {
      CENOTE_TRY(take_message(rest.first(frame.length)));
      return static_cast<std::size_t>(frame.length);
    }
    case FrameType::credit:
      if (frame.length > window_used_) return nonsense("it says it took messages that were never sent");
      window_used_ -= frame.length;
      return std::size_t{0};
    case FrameType::close:
      return fail(farewell_error(rest.first(frame.length)));
  }
  return nonsense("it sent a frame of type " + std::to_string(static_cast<int>(frame.type)));
}

/// Where the rest of the payload belongs. Looked up anew each time: the region may have been destroyed
/// meanwhile.
Result<std::span<std::byte>> TcpEndpoint::arriving_target() {
  const Frame& frame = arriving_->frame;
  const std::size_t left = frame.length - arriving_->taken;
  if (arriving_->type == FrameType::get_reply) return awaited_.front().dst.last(left);
  std::byte* at = core_->regions->reach(frame.region, frame.token, frame.offset, frame.length);
  if (at == nullptr) return fail(core_->regions->misfit("take a put", frame.region, frame.token));
  return std::span(at + arriving_->taken, left);
}

void TcpEndpoint::arrived() {
  const Frame frame = arriving_->frame;
  arriving_.reset();
  core_->happened = true;
  if (frame.type == FrameType::put) {
    if (frame.signal != no_signal) ++signals_[frame.signal];
    return;
  }
  const Awaited answer = awaited_.pop();
  ++stats_.gets;
  stats_.bytes_got += frame.length;
  finish(answer.tag);
}

Result<void> TcpEndpoint::serve_get(const Frame& frame) {
  if (out_.references() > queue_depth || out_.copied() > (1U << 22))
    return nonsense("it asked for more data than it takes");
  const std::byte* at = core_->regions->reach(frame.region, frame.token, frame.offset, frame.length);
  if (at == nullptr || frame.length == 0)
    return fail(core_->regions->misfit("answer a get", frame.region, frame.token));
  Frame reply;
  reply.type = FrameType::get_reply;
  reply.length = frame.length;
  post(reply, std::span(at, frame.length), std::nullopt, frame.region);
  return {};
}

Result<void> TcpEndpoint::serve_add(const Frame& frame) {
  if (out_.copied() > (1U << 22)) return nonsense("it asked for more answers than it takes");
  std::byte* at = core_->regions->reach(frame.region, frame.token, frame.offset, sizeof(std::uint64_t));
  if (at == nullptr || reinterpret_cast<std::uintptr_t>(at) % sizeof(std::uint64_t) != 0)
    return fail(core_->regions->misfit("answer an atomic add", frame.region, frame.token));
  std::atomic_ref<std::uint64_t> word(*static_cast<std::uint64_t*>(static_cast<void*>(at)));
  Frame reply;
  reply.type = FrameType::add_reply;
  reply.length = word.fetch_add(frame.length, std::memory_order_seq_cst);
  post(reply, {}, std::nullopt);
  return {};
}

Result<void> TcpEndpoint::take_add_reply(const Frame& frame) {
  if (awaited_.empty() || awaited_.front().type != FrameType::add)
    return nonsense("it sent an answer that was not asked for");
  const Awaited answer = awaited_.pop();
  if (answer.old != nullptr) *answer.old = frame.length;
  ++stats_.atomics;
  finish(answer.tag);
  return {};
}

Result<void> TcpEndpoint::take_message(std::span<const std::byte> body) {
  if (!inbox_.charge(body.size())) return nonsense("it sent more messages than it was allowed");
  inbox_.add(body);
  return {};
}

Result<std::optional<std::size_t>> TcpEndpoint::receive(std::span<std::byte> out) {
  auto taken = receive_from(inbox_, out);
  if (const std::size_t credit = inbox_.credit(); credit != 0 && !failure_) {
    Frame frame;
    frame.type = FrameType::credit;
    frame.length = credit;
    post(frame, {}, std::nullopt);
  }
  return taken;
}

}  // namespace cenote::transport::tcp
