// How two UcxEndpoints find each other (handshake.h), hand over their UCX addresses, and part.
//
// On the socket, after the handshake, packets: u32 size, u8 type, and
//   introduction  u64 session (which frames to this side carry), UCX's address
//   farewell      u32 frames that have left, u8 whether the transport ends, the reason
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "runtime/process.h"
#include "transports/tcp/send_queue.h"
#include "transports/ucx/ucx_endpoint.h"

namespace cenote::transport::ucx {
namespace {

constexpr std::size_t max_packet = 8192;
constexpr std::size_t most_unread = 2 * max_packet;
/// UCX reads an address without being told where it ends: a peer's is followed by that many zeros.
constexpr std::size_t address_padding = 4096;
/// What had left when a peer said farewell is on its way; longer it is not waited for.
constexpr auto farewell_time = std::chrono::seconds(2);
constexpr int turns_at_end = 1000;
constexpr std::size_t probe_size = 512;  // too much for UCX's shortest way

tl::unexpected<Error> nonsense(std::string what) {
  return fail(ErrorCode::protocol_error, "talk to peer", std::move(what));
}

Error gone() {
  return {ErrorCode::peer_failed, "talk to peer",
          "its connection ended: process ended or endpoint destroyed"};
}

}  // namespace

UcxEndpoint::UcxEndpoint(std::shared_ptr<UcxCore> core, UcxAddress peer, std::string name,
                         std::uint32_t channel, Deadline deadline)
    : EndpointBase(std::move(name)),
      core_(std::move(core)),
      peer_(std::move(peer)),
      channel_(channel),
      deadline_(deadline),
      process_(core_->self.header.host, peer_.header.host, peer_.header.process) {}

Result<std::unique_ptr<UcxEndpoint>> UcxEndpoint::connect(std::shared_ptr<UcxCore> core, UcxAddress peer,
                                                          std::string peer_name, std::uint32_t channel,
                                                          Deadline deadline) {
  std::unique_ptr<UcxEndpoint> made(
      new UcxEndpoint(std::move(core), std::move(peer), std::move(peer_name), channel, deadline));
  CENOTE_TRY(random_bytes(std::as_writable_bytes(std::span(&made->session_, 1))));
  made->core_->add(made.get());
  made->core_->receive_for(made->session_, made.get());
  if (made->dials()) {
    CENOTE_TRY(made->dial());
  } else {
    SideGuest guest;
    std::uint64_t serial = 0;
    if (made->core_->take_guest(made->peer_.header.id, channel, serial, guest))
      made->adopt(serial, std::move(guest));
  }
  return made;
}

UcxEndpoint::~UcxEndpoint() {
  UcxEndpoint::close("its endpoint was destroyed");
  core_->forget(session_);
  core_->remove(this);
}

Result<void> UcxEndpoint::dial() {
  const std::string stage =
      "connect to " + peer_name_ + " at " + peer_.place.host + " port " + std::to_string(peer_.place.port);
  CENOTE_ASSIGN(auto to, SocketAddress::parse(peer_.place.host, peer_.place.port));
  UniqueFd fd(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fail(cenote::system_error(stage, errno));
  CENOTE_TRY(core_->tune(fd.get()));
  if (::connect(fd.get(), to.get(), to.length) != 0 && errno != EINPROGRESS) {
    Error error = cenote::system_error(stage, errno);
    if (errno == ECONNREFUSED) error.code = ErrorCode::peer_failed;
    return fail(std::move(error).with(peer_name_));
  }
  serial_ = core_->reception.new_serial();
  CENOTE_TRY(core_->watch(fd.get(), serial_));
  fd_ = std::move(fd);
  stage_ = Stage::greeting;
  return {};
}

void UcxEndpoint::adopt(std::uint64_t serial, SideGuest guest) {
  serial_ = serial;
  fd_ = std::move(guest.fd);
  if (auto tuned = core_->tune(fd_.get()); !tuned) return break_with(std::move(tuned).error(), false);
  const Mac proof =
      proof_of(Side::acceptor, peer_.header.secret, guest.nonce, guest.hello, core_->self.header.id);
  const auto sent = tcp::write_some(fd_.get(), std::as_bytes(std::span(proof)), {});
  if (!sent || *sent != proof.size())
    return break_with(
        sent ? Error{ErrorCode::peer_failed, "connect over UCX", "the socket took no welcome"} : sent.error(),
        false);
  if (auto introduced = introduce(); !introduced) break_with(std::move(introduced).error(), false);
}

Result<void> UcxEndpoint::introduce() {
  stage_ = Stage::introducing;
  core_->happened = true;
  Writer body;
  body.put(session_).raw(core_->worker.address());
  return tell(PacketType::introduction, body.bytes());
}

// Into a socket that carries nothing else a packet always fits.
Result<void> UcxEndpoint::tell(PacketType type, std::span<const std::byte> body) {
  Writer packet;
  packet.put(static_cast<std::uint32_t>(body.size() + 1)).put(type).raw(body);
  CENOTE_ASSIGN(const std::size_t sent, tcp::write_some(fd_.get(), packet.bytes(), {}));
  if (sent == packet.bytes().size()) return {};
  return fail(ErrorCode::peer_failed, "talk to peer", "its socket took nothing");
}

void UcxEndpoint::tick() {
  if (!failure_ && !ended_ && process_.ended_long_ago())
    ended_ = Error{ErrorCode::peer_failed, "talk to peer", PeerProcess::ended_held};
  if (failure_ || stage_ == Stage::ready || !deadline_.passed()) return;
  break_with(Error{ErrorCode::deadline_exceeded, "connect over UCX",
                   stage_ == Stage::waiting ? "the peer has not dialed" : "the peer has not answered"},
             false);
}

void UcxEndpoint::read() {
  if (failure_ || !fd_ || ended_) return;
  std::array<std::byte, 4096> buffer;
  while (!ended_ && got_.size() < most_unread) {
    const auto count = ::recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count > 0) {
      got_.insert(got_.end(), buffer.begin(), buffer.begin() + count);
    } else if (count == 0) {
      ended_ = gone();
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      ended_ = cenote::system_error("read from peer over its socket", errno);
      ended_->code = ErrorCode::peer_failed;
    }
  }
  auto taken = shake_hands();
  if (taken) taken = read_packets();
  if (!taken && !fault_) fault_ = std::move(taken).error();
  core_->happened = true;
}

Result<void> UcxEndpoint::shake_hands() {
  if (stage_ == Stage::greeting && got_.size() >= Challenge::size) {
    const auto challenge = unpack_challenge(std::span(got_).first(Challenge::size));
    got_.erase(got_.begin(), got_.begin() + Challenge::size);
    if (!challenge) return nonsense("it is no cenote transport of this version");
    acceptor_nonce_ = challenge->nonce;
    hello_.dialer = core_->self.header.id;
    hello_.channel = channel_;
    CENOTE_TRY(random_bytes(std::span<std::uint8_t>(hello_.nonce)));
    hello_.proof = proof_of(Side::dialer, peer_.header.secret, acceptor_nonce_, hello_, peer_.header.id);
    const Bytes packed = pack(hello_);
    CENOTE_ASSIGN(const std::size_t sent, tcp::write_some(fd_.get(), packed, {}));
    if (sent != packed.size())
      return fail(ErrorCode::peer_failed, "connect over UCX", "the socket took no hello");
    stage_ = Stage::proving;
  }
  if (stage_ == Stage::proving && got_.size() >= sizeof(Mac)) {
    Mac proof{};
    std::memcpy(proof.data(), got_.data(), proof.size());
    got_.erase(got_.begin(), got_.begin() + sizeof(Mac));
    const Mac expected =
        proof_of(Side::acceptor, core_->self.header.secret, acceptor_nonce_, hello_, peer_.header.id);
    if (!equal_in_constant_time(proof, expected))
      return fail(ErrorCode::permission_denied, "connect over UCX",
                  "the peer does not know this side's secret");
    CENOTE_TRY(introduce());
  }
  return {};
}

Result<void> UcxEndpoint::read_packets() {
  while (stage_ == Stage::introducing || stage_ == Stage::wiring || stage_ == Stage::ready) {
    std::uint32_t size = 0;
    if (got_.size() < sizeof size) return {};
    std::memcpy(&size, got_.data(), sizeof size);
    if (size == 0 || size > max_packet)
      return nonsense("it announced a packet of " + std::to_string(size) + " bytes");
    if (got_.size() < sizeof size + size) return {};
    CENOTE_TRY(take_packet(std::span(got_).subspan(sizeof size, size)));
    got_.erase(got_.begin(), got_.begin() + static_cast<std::ptrdiff_t>(sizeof size + size));
  }
  return {};
}

Result<void> UcxEndpoint::take_packet(std::span<const std::byte> packet) {
  Reader in(packet);
  const auto type = in.get<PacketType>();
  if (type == PacketType::introduction && stage_ == Stage::introducing) {
    peer_session_ = in.get<std::uint64_t>();
    const auto address = in.raw(in.left());
    if (in.bad() || address.empty()) return nonsense("its introduction has no address");
    Bytes padded(address.begin(), address.end());
    padded.resize(padded.size() + address_padding);
    CENOTE_ASSIGN(link_, core_->link_to(peer_.header.id, padded));
    stage_ = Stage::wiring;
    return {};
  }
  if (type == PacketType::farewell && !farewell_) {
    Farewell farewell;
    farewell.frames = in.get<std::uint32_t>();
    farewell.transport_ends = in.get<std::uint8_t>() != 0;
    const auto reason = in.raw(in.left());
    if (in.bad() || reason.size() > max_reason) return nonsense("its farewell is malformed");
    farewell.reason.assign(reason.begin(), reason.end());
    farewell.until = Clock::now() + farewell_time;
    farewell_ = std::move(farewell);
    return {};
  }
  return nonsense("it sent a packet of type " + std::to_string(static_cast<int>(type)));
}

// UCX connects when it first sends, and until the peer has answered only very small messages leave. Of these
// operations a caller who stops to progress would think that they had.
bool UcxEndpoint::wire() {
  if (stage_ != Stage::wiring) return false;
  if (probe_ == 0) {
    const std::array<std::byte, probe_size> text{};
    Frame frame;
    frame.type = FrameType::nothing;
    frame.length = text.size();
    probe_ = post_frame(frame, text, Payload::copied);
  }
  if (probe_ == 0 || !link_->accepted(probe_)) return false;
  stage_ = Stage::ready;
  core_->happened = true;
  return true;
}

std::optional<Error> UcxEndpoint::end_of_peer() {
  if (!farewell_ && !ended_) return std::nullopt;
  for (int i = 0; i < turns_at_end && core_->worker.progress(); ++i) {  // what had arrived before
  }
  if (!farewell_) return ended_;
  const bool more_comes =
      static_cast<std::int32_t>(farewell_->frames - taken_frames_) > 0 && link_ && !link_->fault();
  if (more_comes && Clock::now() < farewell_->until) {
    core_->look_soon = true;
    return std::nullopt;
  }
  return farewell_error(farewell_->reason);
}

Error UcxEndpoint::link_error() const {
  Error error = core_->worker.api().error(*link_->fault(), "talk to peer");
  if (error.code != ErrorCode::peer_failed) error.code = ErrorCode::peer_failed;
  return error;
}

bool UcxEndpoint::settle() {
  if (failure_) [[unlikely]]
    return false;
  const bool cut = link_ && link_->fault();
  if (!fault_ && !farewell_ && !ended_ && !cut) [[likely]]
    return false;
  if (cut && !farewell_) read();  // the peer may have said why
  if (fault_) {
    break_with(std::move(*fault_));
    return true;
  }
  const bool over = ended_ || (farewell_ && farewell_->transport_ends);
  if (auto end = end_of_peer()) {
    if (over) core_->retire_link(peer_.header.id);
    break_with(std::move(*end), false);
    return true;
  }
  if (!cut || farewell_) return false;
  core_->retire_link(peer_.header.id);
  break_with(link_error());
  return true;
}

void UcxEndpoint::break_with(Error error, bool tell_peer) {
  if (failure_) return;
  if (error.peer.empty()) error.peer = peer_name_;
  if (error.device.empty()) error.device = "ucx";
  (void)finish_left();  // complete is complete
  if (tell_peer) say_goodbye("its endpoint failed: " + error.stage + ": " + error.cause);
  core_->log_debug("endpoint failed: " + error.message());
  core_->forget(session_);
  failure_ = std::make_unique<const Error>(std::move(error));
  take_back();
  while (!sent_.empty()) {
    if (const Sent sent = sent_.pop(); sent.tagged) finish_failed(sent.tag);
  }
  while (!out_.empty()) {
    if (const Operation operation = out_.pop(); operation.tagged) finish_failed(operation.tag);
  }
  while (!awaited_.empty()) finish_failed(awaited_.pop().tag);
  tagged_ = answers_ = 0;
  link_.reset();
  fd_.reset();
  core_->happened = true;
}

void UcxEndpoint::close(std::string_view reason) {
  if (failure_) return;
  say_goodbye(reason);
  break_with(Error{ErrorCode::cancelled, "use endpoint", "closed by this side: " + std::string(reason)},
             false);
}

// A socket closed with bytes unread would be reset, and the farewell lost.
void UcxEndpoint::say_goodbye(std::string_view reason) {
  if (failure_ || !fd_ || stage_ == Stage::waiting || stage_ == Stage::greeting || stage_ == Stage::proving)
    return;
  (void)flush();
  std::array<std::byte, 4096> unread;
  while (::recv(fd_.get(), unread.data(), unread.size(), MSG_DONTWAIT) > 0) {
  }
  Writer body;
  body.put(left_frames_).put(static_cast<std::uint8_t>(core_->ending ? 1 : 0));
  body.raw(as_bytes(reason).first(std::min(reason.size(), max_reason)));
  (void)tell(PacketType::farewell, body.bytes());
}

}  // namespace cenote::transport::ucx
