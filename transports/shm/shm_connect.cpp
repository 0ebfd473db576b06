// How two ShmEndpoints find each other (handshake.h), hand over their memory and take what the socket brings.
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/process.h"
#include "transports/shm/shm_endpoint.h"

namespace cenote::transport::shm {
namespace {

constexpr int packets_at_once = 64;
constexpr std::size_t max_fds_kept = 8;  // an honest peer waits for each answer
constexpr auto most_call_pause = std::chrono::milliseconds(400);
constexpr std::size_t door_size = page_size;

tl::unexpected<Error> nonsense(std::string what) {
  return fail(ErrorCode::protocol_error, "talk to peer", std::move(what));
}

/// 0, or the number of the error.
int call(int fd, const std::string& socket) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  if (socket.size() >= sizeof to.sun_path - 1) return ENAMETOOLONG;
  std::memcpy(to.sun_path + 1, socket.data(), socket.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + socket.size());
  return ::connect(fd, static_cast<sockaddr*>(static_cast<void*>(&to)), length) == 0 ? 0 : errno;
}

UniqueFd unix_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

/// Its transport listens as long as it lives.
bool is_gone(const std::string& socket) {
  const UniqueFd fd = unix_socket();
  return fd && call(fd.get(), socket) == ECONNREFUSED;
}

std::size_t region_bytes(std::uint64_t size) {
  return page_size + (std::max<std::uint64_t>(size, 1) + page_size - 1) / page_size * page_size;
}

}  // namespace

ShmEndpoint::ShmEndpoint(std::shared_ptr<ShmCore> core, ShmAddress peer, std::string name,
                         std::uint32_t channel, Deadline deadline)
    : EndpointBase(std::move(name)),
      small_(*core),
      core_(std::move(core)),
      peer_(std::move(peer)),
      channel_(channel),
      deadline_(deadline),
      process_(core_->self.header.host, peer_.header.host, peer_.header.process) {}

Result<std::unique_ptr<ShmEndpoint>> ShmEndpoint::connect(std::shared_ptr<ShmCore> core, ShmAddress peer,
                                                          std::string peer_name, std::uint32_t channel,
                                                          Deadline deadline) {
  const bool dials = core->self.header.id > peer.header.id;
  std::unique_ptr<ShmEndpoint> made(
      new ShmEndpoint(std::move(core), std::move(peer), std::move(peer_name), channel, deadline));
  CENOTE_ASSIGN(made->inbox_, create("cenote-inbox", inbox_size, PeerAccess::read_write));
  made->small_.open(made->inbox());
  made->core_->add(made.get());
  if (dials) {
    CENOTE_TRY(made->dial());
  } else {
    CENOTE_TRY(made->start_waiting());
  }
  return made;
}

ShmEndpoint::~ShmEndpoint() {
  ShmEndpoint::close("its endpoint was destroyed");
  core_->remove(this);
}

Result<void> ShmEndpoint::dial() {
  const std::string stage = "connect to " + peer_name_ + " over shared memory";
  UniqueFd fd = unix_socket();
  if (!fd) return fail(cenote::system_error(stage, errno));
  if (const int error = call(fd.get(), peer_.socket); error != 0) {
    if (error == EAGAIN) return {};  // its backlog is full: tick() dials again
    if (error == ECONNREFUSED)
      return fail(
          Error{ErrorCode::peer_failed, stage, "nobody listens there any more: its process has ended"}.with(
              peer_name_));
    return fail(cenote::system_error(stage, error));
  }
  serial_ = core_->reception.new_serial();
  CENOTE_TRY(core_->watch(fd.get(), serial_));
  control_ = ControlChannel(std::move(fd));
  stage_ = Stage::greeting;
  return {};
}

Result<void> ShmEndpoint::start_waiting() {
  stage_ = Stage::waiting;
  Guest guest;
  std::uint64_t serial = 0;
  if (core_->take_guest(peer_.header.id, channel_, serial, guest)) adopt(serial, std::move(guest));
  return {};
}

void ShmEndpoint::adopt(std::uint64_t serial, Guest guest) {
  serial_ = serial;
  control_ = std::move(guest.channel);
  const Mac proof =
      proof_of(Side::acceptor, peer_.header.secret, guest.nonce, guest.hello, core_->self.header.id);
  stage_ = Stage::welcoming;
  if (auto sent = send_resources(PacketType::welcome, std::as_bytes(std::span(proof))); !sent)
    break_with(std::move(sent).error(), false);
}

void ShmEndpoint::tick() {
  if (has_unsent()) flush_packets();
  if (!failure_ && process_.ended_long_ago())
    return break_with(Error{ErrorCode::peer_failed, "talk to peer", PeerProcess::ended_held}, false);
  if (failure_ || stage_ == Stage::ready) return;
  if (deadline_.passed()) {
    break_with(Error{ErrorCode::deadline_exceeded, "connect over shared memory",
                     stage_ == Stage::waiting ? "the peer has not dialed" : "the peer has not answered"},
               false);
    return;
  }
  if (stage_ == Stage::waiting) return look_for_dialer();
  if (stage_ != Stage::dialing) return;
  if (auto dialed = dial(); !dialed) break_with(std::move(dialed).error(), false);
}

// Who has not dialed yet has no socket here whose end would show that it died; its listener does.
void ShmEndpoint::look_for_dialer() {
  const auto now = Clock::now();
  if (now < next_call_) return;
  if (next_call_ != Clock::time_point{} && is_gone(peer_.socket))
    return break_with(Error{ErrorCode::peer_failed, "connect over shared memory",
                            "it has not dialed and listens no more: its process or its transport has ended"},
                      false);
  call_pause_ = std::min<Clock::duration>(2 * call_pause_, most_call_pause);
  next_call_ = now + call_pause_;
}

Result<void> ShmEndpoint::tell(PacketType type, std::span<const std::byte> body, std::span<const int> fds) {
  CENOTE_TRY(control_.send(type, body, fds));
  if (peer_inbox_ != nullptr) {
    peer_inbox_->control.store(++peer_control_, std::memory_order_release);
    if (control_.has_unsent()) core_->look_soon = true;
  }
  return {};
}

void ShmEndpoint::flush_packets() {
  auto flushed = control_.flush();
  // What a peer that went had sent before is still to be read: it may say why.
  if (!flushed && flushed.error().code != ErrorCode::peer_failed)
    break_with(std::move(flushed).error(), false);
}

void ShmEndpoint::watch_room(bool on) {
  on = on && !failure_ && control_.waits_for_room();
  if (failure_ || watching_room_ == on) return;
  watching_room_ = on;
  (void)core_->watch(control_.fd(), serial_, on, true);
}

void ShmEndpoint::serve() {
  if (failure_) return;
  flush_packets();
  for (int i = 0; i < packets_at_once && !failure_; ++i) {
    auto packet = control_.receive();
    if (!packet) return break_with(std::move(packet).error());
    if (!*packet) return;
    handle(std::move(**packet));
  }
  core_->look_soon = true;
}

void ShmEndpoint::handle(Packet packet) {
  Result<void> done;
  switch (packet.type) {
    case PacketType::challenge:
      done = on_challenge(packet);
      break;
    case PacketType::welcome:
      done = on_welcome(packet);
      break;
    case PacketType::resources:
      done = on_resources(packet);
      break;
    case PacketType::want_region:
      done = on_want_region(packet);
      break;
    case PacketType::region:
      done = on_region(packet);
      break;
    case PacketType::no_region:
      done = fail(ErrorCode::permission_denied, "reach the peer's memory",
                  "the key's region was destroyed, or the key is forged");
      break;
    case PacketType::region_gone: {
      Reader in(packet.body);
      const auto region = in.get<std::uint64_t>();
      if (!in.finished()) {
        done = nonsense("it sent a malformed packet");
        break;
      }
      last_ = nullptr;
      imports_.erase(region);
      break;
    }
    case PacketType::close:
      done = fail(farewell_error(packet.body));
      break;
    case PacketType::wake:
      break;
    case PacketType::hello:
    default:
      done = nonsense("it sent a packet of unknown type");
      break;
  }
  if (!done) break_with(std::move(done).error());
}

Result<void> ShmEndpoint::on_challenge(const Packet& packet) {
  const auto challenge = unpack_challenge(packet.body);
  if (stage_ != Stage::greeting || !challenge) return nonsense("it is no cenote transport of this version");
  acceptor_nonce_ = challenge->nonce;
  hello_.dialer = core_->self.header.id;
  hello_.channel = channel_;
  CENOTE_TRY(random_bytes(std::span<std::uint8_t>(hello_.nonce)));
  hello_.proof = proof_of(Side::dialer, peer_.header.secret, acceptor_nonce_, hello_, peer_.header.id);
  stage_ = Stage::proving;
  return tell(PacketType::hello, pack(hello_));
}

Result<void> ShmEndpoint::on_welcome(Packet& packet) {
  Mac proof{};
  if (stage_ != Stage::proving || packet.body.size() != proof.size())
    return nonsense("it sent a welcome out of turn");
  std::memcpy(proof.data(), packet.body.data(), proof.size());
  const Mac expected =
      proof_of(Side::acceptor, core_->self.header.secret, acceptor_nonce_, hello_, peer_.header.id);
  if (!equal_in_constant_time(proof, expected))
    return fail(ErrorCode::permission_denied, "connect over shared memory",
                "the peer does not know this side's secret");
  CENOTE_TRY(take_resources(packet));
  CENOTE_TRY(send_resources(PacketType::resources, {}));
  stage_ = Stage::ready;
  core_->happened = true;
  return {};
}

Result<void> ShmEndpoint::on_resources(Packet& packet) {
  if (stage_ != Stage::welcoming) return nonsense("it sent its memory out of turn");
  CENOTE_TRY(take_resources(packet));
  stage_ = Stage::ready;
  core_->happened = true;
  report_taken();
  return {};
}

Result<void> ShmEndpoint::send_resources(PacketType type, std::span<const std::byte> body) {
  const int fds[] = {inbox_.fd.get(), core_->door.fd.get()};
  return tell(type, body, fds);
}

Result<void> ShmEndpoint::take_resources(Packet& packet) {
  if (packet.fds.size() != 2) return nonsense("it did not send two descriptors");
  CENOTE_ASSIGN(peer_inbox_mapping_, import(packet.fds[0], inbox_size, PeerAccess::read_write));
  CENOTE_ASSIGN(peer_door_mapping_, import(packet.fds[1], door_size, PeerAccess::read_only));
  peer_inbox_ = static_cast<Inbox*>(peer_inbox_mapping_.base());
  peer_door_ = static_cast<const Door*>(peer_door_mapping_.base());
  small_.reach(*peer_inbox_);
  return {};
}

Result<void> ShmEndpoint::on_want_region(const Packet& packet) {
  Reader in(packet.body);
  const auto region = in.get<std::uint64_t>();
  const auto token = in.get<std::uint64_t>();
  if (!in.finished() || stage_ != Stage::ready) return nonsense("it asked for memory out of turn");
  if (control_.unsent_with_fds() > max_fds_kept) return nonsense("it asks for memory and does not take it");
  const auto found = core_->regions.find(region);
  Writer body;
  body.put(region);
  if (found == core_->regions.end() || found->second.key.token != token)
    return tell(PacketType::no_region, body.bytes());
  auto& importers = found->second.importers;
  if (std::find(importers.begin(), importers.end(), this) == importers.end()) importers.push_back(this);
  small_.allow(region, found->second.bytes);
  const int fds[] = {found->second.fd};
  return tell(PacketType::region, body.bytes(), fds);
}

Result<void> ShmEndpoint::on_region(Packet& packet) {
  Reader in(packet.body);
  const auto region = in.get<std::uint64_t>();
  if (!in.finished() || packet.fds.size() != 1 || wanted_.region == 0 || wanted_.region != region)
    return nonsense("it sent memory that was not asked for");
  Import made{wanted_, {}};
  if (made.key.size > static_cast<std::uint64_t>(INT64_MAX) - 2 * page_size)
    return nonsense("its region is too large");
  CENOTE_ASSIGN(made.mapping, import(packet.fds[0], region_bytes(made.key.size), PeerAccess::read_write));
  imports_.insert_or_assign(region, std::move(made));
  wanted_ = {};
  core_->happened = run_deferred() || core_->happened;
  return {};
}

}  // namespace cenote::transport::shm
