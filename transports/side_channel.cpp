#include "transports/side_channel.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/process.h"

namespace cenote::transport {
namespace {

constexpr std::size_t head_size = 4;  // u16 length, u8 type, u8 zero
constexpr std::size_t read_at_once = 4096;
constexpr auto longest_silence = std::chrono::seconds(30);  // of a machine: processes need not say anything

bool means_gone(int number) {
  return number == ECONNRESET || number == ECONNREFUSED || number == ETIMEDOUT || number == EPIPE ||
         number == EHOSTUNREACH;
}

tl::unexpected<Error> socket_error(std::string stage, int number) {
  Error error = cenote::system_error(std::move(stage), number);
  if (means_gone(number)) error.code = ErrorCode::peer_failed;
  return fail(std::move(error));
}

}  // namespace

Result<void> SideChannel::dial(const MeetingPlace& to) {
  const std::string stage = "connect to " + to.host + " port " + std::to_string(to.port);
  CENOTE_ASSIGN(SocketAddress at, SocketAddress::parse(to.host, to.port));
  fd_.reset(::socket(at.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd_) return fail(cenote::system_error(stage, errno));
  CENOTE_TRY(tune_socket(fd_.get(), longest_silence));
  if (::connect(fd_.get(), at.get(), at.length) != 0 && errno != EINPROGRESS)
    return socket_error(stage, errno);
  stage_ = Stage::greeting;
  return {};
}

Result<void> SideChannel::adopt(UniqueFd fd, const GuestBase& guest) {
  fd_ = std::move(fd);
  CENOTE_TRY(tune_socket(fd_.get(), longest_silence));
  const Mac proof =
      proof_of(Side::acceptor, parties_.peer.secret, guest.nonce, guest.hello, parties_.self.id);
  const auto bytes = std::as_bytes(std::span(proof));
  out_.insert(out_.begin(), bytes.begin(), bytes.end());
  stage_ = Stage::ready;
  CENOTE_TRY(flush());
  return {};
}

void SideChannel::post(std::uint8_t type, std::span<const std::byte> body) {
  Writer frame;
  frame.put(static_cast<std::uint16_t>(body.size())).put(type).put(std::uint8_t{0}).raw(body);
  const Bytes bytes = frame.take();
  out_.insert(out_.end(), bytes.begin(), bytes.end());
}

Result<bool> SideChannel::flush() {
  if (stage_ != Stage::ready || !has_unsent()) return false;
  bool any = false;
  while (has_unsent()) {
    const auto count =
        ::send(fd_.get(), out_.data() + sent_, out_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return any;
    if (count < 0) return socket_error("talk to peer", errno);
    sent_ += static_cast<std::size_t>(count);
    any = true;
  }
  out_.clear();
  sent_ = 0;
  return any;
}

Result<bool> SideChannel::read_some() {
  const std::size_t had = in_.size();
  in_.resize(had + read_at_once);
  ssize_t count = 0;
  do {
    count = ::recv(fd_.get(), in_.data() + had, read_at_once, MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  const int number = errno;
  in_.resize(had + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  if (count > 0) process_.spoke();
  if (count == 0)
    return fail(ErrorCode::peer_failed, "talk to peer",
                "its connection ended: process ended or endpoint destroyed");
  if (count < 0 && number != EAGAIN) return socket_error("talk to peer", number);
  return count > 0;
}

Result<bool> SideChannel::read(const Taker& take) {
  if (!fd_) return false;
  bool any = false;
  while (true) {
    auto more = read_some();
    if (!more && in_.empty()) return fail(std::move(more).error());
    if (stage_ != Stage::ready) CENOTE_TRY(shake_hands());
    if (stage_ == Stage::ready) {
      CENOTE_TRY(parse(take));
      CENOTE_TRY(flush());
    }
    if (!more) return fail(std::move(more).error());
    if (!*more || !fd_) return any || *more;
    any = true;
  }
}

Result<void> SideChannel::shake_hands() {
  if (stage_ == Stage::greeting && in_.size() >= Challenge::size) CENOTE_TRY(answer_challenge());
  if (stage_ == Stage::proving && in_.size() >= sizeof(Mac)) CENOTE_TRY(check_welcome());
  return {};
}

Result<void> SideChannel::answer_challenge() {
  const auto challenge = unpack_challenge(std::span(in_).first(Challenge::size));
  if (!challenge)
    return fail(ErrorCode::protocol_error, "connect", "it is no cenote transport of this version");
  in_.erase(in_.begin(), in_.begin() + Challenge::size);
  acceptor_nonce_ = challenge->nonce;
  hello_.dialer = parties_.self.id;
  hello_.channel = parties_.channel;
  CENOTE_TRY(random_bytes(std::span<std::uint8_t>(hello_.nonce)));
  hello_.proof = proof_of(Side::dialer, parties_.peer.secret, acceptor_nonce_, hello_, parties_.peer.id);
  const Bytes packed = pack(hello_);
  const auto sent = ::send(fd_.get(), packed.data(), packed.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(packed.size()))
    return fail(ErrorCode::peer_failed, "connect", "the socket took no hello");
  stage_ = Stage::proving;
  return {};
}

Result<void> SideChannel::check_welcome() {
  Mac proof{};
  std::memcpy(proof.data(), in_.data(), proof.size());
  in_.erase(in_.begin(), in_.begin() + sizeof proof);
  const Mac expected =
      proof_of(Side::acceptor, parties_.self.secret, acceptor_nonce_, hello_, parties_.peer.id);
  if (!equal_in_constant_time(proof, expected))
    return fail(ErrorCode::permission_denied, "connect", "the peer does not know this side's secret");
  stage_ = Stage::ready;
  return {};
}

Result<void> SideChannel::parse(const Taker& take) {
  std::size_t used = 0;
  while (in_.size() - used >= head_size) {
    Reader head(std::span<const std::byte>(in_).subspan(used, head_size));
    const std::size_t length = head.get<std::uint16_t>();
    const auto type = head.get<std::uint8_t>();
    if (length > max_body || head.get<std::uint8_t>() != 0)
      return fail(ErrorCode::protocol_error, "read from peer", "a frame that no transport sends");
    if (in_.size() - used - head_size < length) break;
    const Bytes body(in_.begin() + static_cast<std::ptrdiff_t>(used + head_size),
                     in_.begin() + static_cast<std::ptrdiff_t>(used + head_size + length));
    used += head_size + length;
    CENOTE_TRY(take(type, body));
    if (!fd_) return {};  // hung up by what it was told
  }
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(used));
  return {};
}

void SideChannel::hang_up() {
  if (!fd_) return;
  (void)flush();
  // Bytes left unread would turn the end into a reset, which may overtake the last words.
  (void)::shutdown(fd_.get(), SHUT_WR);
  std::array<std::byte, read_at_once> ignored;
  while (::recv(fd_.get(), ignored.data(), ignored.size(), MSG_DONTWAIT) > 0) {
  }
  fd_.reset();
}

}  // namespace cenote::transport
