#include "transports/tcp/tcp_endpoint.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/process.h"

namespace cenote::transport::tcp {
namespace {

constexpr std::size_t copy_limit = 1024;  // smaller payloads are copied when they have to wait
constexpr std::size_t flush_limit = std::size_t{16} * 1024;  // as much is gathered before it leaves
constexpr std::size_t copied_limit = std::size_t{1024} * 1024;
constexpr int reads_at_end = 16;
constexpr std::size_t last_payload_limit =
    std::size_t{4} * 1024 * 1024;  // of a frame finished after its endpoint's end

}  // namespace

TcpEndpoint::TcpEndpoint(std::shared_ptr<TcpCore> core, TcpAddress peer, std::string name,
                         std::uint32_t channel, Deadline deadline)
    : EndpointBase(std::move(name)),
      core_(std::move(core)),
      peer_(std::move(peer)),
      channel_(channel),
      deadline_(deadline),
      process_(core_->self.header.host, peer_.header.host, peer_.header.process) {}

Result<std::unique_ptr<TcpEndpoint>> TcpEndpoint::connect(std::shared_ptr<TcpCore> core, TcpAddress peer,
                                                          std::string peer_name, std::uint32_t channel,
                                                          Deadline deadline) {
  std::unique_ptr<TcpEndpoint> made(
      new TcpEndpoint(std::move(core), std::move(peer), std::move(peer_name), channel, deadline));
  made->core_->add(made.get());
  if (made->dials()) {
    CENOTE_TRY(made->dial());
  } else {
    Guest guest;
    std::uint64_t serial = 0;
    if (made->core_->take_guest(made->peer_.header.id, channel, serial, guest))
      made->adopt(serial, std::move(guest));
  }
  return made;
}

TcpEndpoint::~TcpEndpoint() {
  TcpEndpoint::close("its endpoint was destroyed");
  core_->remove(this);
}

Result<void> TcpEndpoint::dial() {
  const std::string stage =
      "connect to " + peer_name_ + " at " + peer_.place.host + " port " + std::to_string(peer_.place.port);
  CENOTE_ASSIGN(SocketAddress to, SocketAddress::parse(peer_.place.host, peer_.place.port));
  UniqueFd fd(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fail(cenote::system_error(stage, errno));
  CENOTE_TRY(core_->tune(fd.get()));
  if (::connect(fd.get(), to.get(), to.length) != 0 && errno != EINPROGRESS) {
    Error error = cenote::system_error(stage, errno);
    if (errno == ECONNREFUSED) error.code = ErrorCode::peer_failed;
    return fail(std::move(error).with(peer_name_));
  }
  serial_ = core_->reception.new_serial();
  CENOTE_TRY(core_->watch(fd.get(), serial_, false, false));
  fd_ = std::move(fd);
  stage_ = Stage::greeting;
  return {};
}

void TcpEndpoint::adopt(std::uint64_t serial, Guest guest) {
  serial_ = serial;
  fd_ = std::move(guest.fd);
  acceptor_nonce_ = guest.nonce;
  hello_ = guest.hello;
  const Mac proof =
      proof_of(Side::acceptor, peer_.header.secret, guest.nonce, guest.hello, core_->self.header.id);
  const auto sent = write_some(fd_.get(), std::as_bytes(std::span(proof)), {});
  if (!sent || *sent != proof.size())
    return break_with(
        sent ? Error{ErrorCode::peer_failed, "connect over TCP", "the socket took no welcome"} : sent.error(),
        false);
  stage_ = Stage::ready;
  core_->happened = true;
}

void TcpEndpoint::tick() {
  if (!failure_ && process_.ended_long_ago())
    return break_with(Error{ErrorCode::peer_failed, "talk to peer", PeerProcess::ended_held}, false);
  if (failure_ || stage_ == Stage::ready || !deadline_.passed()) return;
  break_with(Error{ErrorCode::deadline_exceeded, "connect over TCP",
                   stage_ == Stage::waiting ? "the peer has not dialed" : "the peer has not answered"},
             false);
}

Result<Frame> TcpEndpoint::frame_for(FrameType type, const RemoteSlice& slice, std::uint64_t length,
                                     const char* stage) {
  Frame frame;
  frame.type = type;
  frame.offset = slice.offset;
  frame.length = length;
  frame.signal = no_signal;
  if (length == 0) return frame;
  const auto key = RegionKey::unpack(*slice.key);
  if (!key || key->owner != peer_.header.id) {
    break_with(Error{ErrorCode::permission_denied, stage, "the key is not one of this peer's regions"});
    return failed();
  }
  if (slice.offset > key->size || length > key->size - slice.offset) {
    break_with(Error{ErrorCode::invalid_argument, stage,
                     "offset " + std::to_string(slice.offset) + " and length " + std::to_string(length) +
                         " do not fit a region of " + std::to_string(key->size) + " bytes"});
    return failed();
  }
  frame.region = key->region;
  frame.token = key->token;
  return frame;
}

Result<void> TcpEndpoint::put(std::span<const std::byte> src, RemoteSlice dst, std::uint32_t signal,
                              std::uint64_t tag) {
  if (failure_) [[unlikely]]
    return failed();
  if (full() || out_.copied() > copied_limit) [[unlikely]]
    return queue_full("put");
  if (signal >= signal_slots && signal != no_signal) [[unlikely]]
    return fail(ErrorCode::invalid_argument, "put", "no signal slot " + std::to_string(signal));
  CENOTE_ASSIGN(Frame frame, frame_for(FrameType::put, dst, src.size(), "put"));
  frame.signal = signal;
  ++stats_.puts;
  stats_.bytes_put += src.size();
  post(frame, src, tag);
  return {};
}

Result<void> TcpEndpoint::get(std::span<std::byte> dst, RemoteSlice src, std::uint64_t tag) {
  if (failure_) return failed();
  if (full() || out_.copied() > copied_limit) return queue_full("get");
  if (dst.empty()) {
    finish(tag);
    core_->happened = true;
    return {};
  }
  CENOTE_ASSIGN(const Frame frame, frame_for(FrameType::get, src, dst.size(), "get"));
  awaited_.push(Awaited{FrameType::get, dst, nullptr, tag});
  post(frame, {}, std::nullopt);
  return {};
}

Result<void> TcpEndpoint::atomic_add(RemoteSlice dst, std::uint64_t value, std::uint64_t* old,
                                     std::uint64_t tag) {
  if (failure_) return failed();
  if (full() || out_.copied() > copied_limit) return queue_full("atomic add");
  CENOTE_ASSIGN(Frame frame, frame_for(FrameType::add, dst, sizeof value, "atomic add"));
  if (dst.offset % sizeof value != 0) {
    break_with(Error{ErrorCode::invalid_argument, "atomic add",
                     "offset " + std::to_string(dst.offset) + " is not a multiple of 8"});
    return failed();
  }
  frame.length = value;
  awaited_.push(Awaited{FrameType::add, {}, old, tag});
  post(frame, {}, std::nullopt);
  return {};
}

Result<void> TcpEndpoint::send(std::span<const std::byte> message) {
  if (failure_) [[unlikely]]
    return failed();
  if (message.size() > max_message)
    return fail(ErrorCode::invalid_argument, "send",
                std::to_string(message.size()) + " bytes are more than one message takes");
  const std::size_t charge = message.size() + message_charge;
  if (window_used_ + charge > message_window) return queue_full("send");
  window_used_ += charge;
  Frame frame;
  frame.type = FrameType::message;
  frame.length = message.size();
  ++stats_.sends;
  stats_.bytes_sent += message.size();
  post(frame, message, std::nullopt);
  return {};
}

// The first small operation after a progress() leaves at once; those that follow are gathered until the next
// progress(), or until there are enough. Complete is what the kernel has: what is destroyed here cannot take
// it back. Without a tag the body is the caller's again when this returns.
void TcpEndpoint::post(const Frame& frame, std::span<const std::byte> body, std::optional<std::uint64_t> tag,
                       std::uint64_t region) {
  std::span<const std::byte> head = frame.bytes();
  bool begun = false;
  const bool owned = (tag || region != 0) && body.size() > copy_limit;
  if (stage_ == Stage::ready && out_.empty() && (!sent_since_progress_ || owned)) {
    sent_since_progress_ = true;
    const auto sent = write_some(fd_.get(), head, body);
    // An error is met again, and told, by the next flush(): the peer's last words may still be unread.
    std::size_t count = sent ? *sent : 0;
    sent_past_queue_ += count;
    begun = count != 0;
    const std::size_t of_head = std::min(count, head.size());
    head = head.subspan(of_head);
    body = body.subspan(count - of_head);
  }
  core_->happened = true;
  if (head.empty() && body.empty()) {
    if (tag) finish(*tag);
    return;
  }
  out_.copy(head);
  if (owned && !body.empty()) {
    out_.refer(SendQueue::Segment{body.data(), body.size(), region});
  } else {
    out_.copy(body);
  }
  out_.end_frame(begun, tag);
  if (stage_ == Stage::ready && !reading_ && (out_.copied() >= flush_limit || out_.references() != 0))
    flush();
}

bool TcpEndpoint::flush() {
  sent_since_progress_ = false;
  if (failure_ || stage_ != Stage::ready || out_.empty()) return false;
  if (!out_.regions_alive([this](std::uint64_t id) { return core_->regions->contains(id); })) {
    break_with(Error{ErrorCode::permission_denied, "answer a get",
                     "the region was destroyed while it was being read"});
    return true;
  }
  auto sent = out_.flush(fd_.get(), [this](std::uint64_t tag) { finish(tag); });
  if (sent) return *sent;
  for (int i = 0; i < reads_at_end && !failure_ && read(); ++i) {  // the peer may have said why it went
  }
  break_with(std::move(sent).error(), false);
  return true;
}

void TcpEndpoint::watch_room(bool on) {
  if (failure_ || !fd_ || watching_room_ == on) return;
  watching_room_ = on;
  (void)core_->watch(fd_.get(), serial_, on, true);
}

void TcpEndpoint::break_with(Error error, bool tell_peer) {
  if (failure_) return;
  if (error.code == ErrorCode::peer_failed && stage_ == Stage::ready) {
    if (!note_) core_->look_for_notes();
    if (failure_) return;
    if (note_) error = farewell_error(*note_);
  }
  if (error.peer.empty()) error.peer = peer_name_;
  if (error.device.empty()) error.device = "tcp";
  if (tell_peer) say_goodbye("its endpoint failed: " + error.stage + ": " + error.cause);
  core_->log_debug("endpoint failed: " + error.message());
  failure_ = std::make_unique<const Error>(std::move(error));
  out_.clear([this](std::uint64_t tag) { finish_failed(tag); });
  while (!awaited_.empty()) finish_failed(awaited_.pop().tag);
  arriving_.reset();
  fd_.reset();
  core_->happened = true;
}

void TcpEndpoint::close(std::string_view reason) {
  if (failure_) return;
  // Whatever of the earlier operations the kernel takes goes first.
  (void)flush();
  say_goodbye(reason);
  break_with(Error{ErrorCode::cancelled, "use endpoint", "closed by this side: " + std::string(reason)},
             false);
}

// A note comes another way than the bytes that were sent before it, and may overtake them.
void TcpEndpoint::hear(const Note& note) {
  if (failure_ || stage_ != Stage::ready) return;
  const std::uint64_t acceptor = dials() ? peer_.header.id : core_->self.header.id;
  if (!equal_in_constant_time(
          note.proof, proof_of_note(dials() ? Side::acceptor : Side::dialer, core_->self.header.secret,
                                    acceptor_nonce_, hello_, acceptor, note.text)))
    return;
  Reader in(note.text);
  const auto end = in.get<std::uint64_t>();
  if (in.bad()) return;
  const auto reason = in.raw(in.left());
  note_.emplace(reason.begin(), reason.end());
  note_end_ = end;
  if (reading_) return;                                            // it is about to fail
  for (int i = 0; i < reads_at_end && !failure_ && read(); ++i) {  // what had arrived before
  }
  if (received_ >= note_end_) break_with(farewell_error(*note_), false);
}

void TcpEndpoint::leave_note(std::span<const std::byte> reason, std::uint64_t end) {
  const std::uint64_t acceptor = dials() ? peer_.header.id : core_->self.header.id;
  auto to = SocketAddress::parse(peer_.place.host, peer_.place.port);
  UniqueFd fd(to ? ::socket(to->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0) : -1);
  if (!fd || (::connect(fd.get(), to->get(), to->length) != 0 && errno != EINPROGRESS)) return;
  Writer text;
  text.put(end).raw(reason.first(std::min(reason.size(), max_reason - sizeof end)));
  Note note{core_->self.header.id, channel_, {}, text.take()};
  note.proof = proof_of_note(dials() ? Side::dialer : Side::acceptor, peer_.header.secret, acceptor_nonce_,
                             hello_, acceptor, note.text);
  (void)core_->part(std::move(fd), note.pack(), false);
}

// Frames that have not begun to leave are dropped; one that has is finished, for in the middle of its payload
// there is no place for another. Where that does not leave now, a note goes another way.
void TcpEndpoint::say_goodbye(std::string_view reason) {
  if (failure_ || !fd_ || (stage_ != Stage::ready && stage_ != Stage::proving)) return;
  const bool ready = stage_ == Stage::ready;
  Frame frame;
  frame.type = FrameType::close;
  frame.length = std::min(reason.size(), max_reason);
  const auto head = frame.bytes(), text = as_bytes(reason).first(frame.length);
  auto end = sent_past_queue_ + out_.advanced();
  Bytes words;
  const bool fits = !ready || (out_.regions_alive([this](std::uint64_t id) {
    return core_->regions->contains(id);
  }) && out_.rest_of_frame(words, last_payload_limit));
  if (fits) {
    words.insert(words.end(), head.begin(), head.end());
    words.insert(words.end(), text.begin(), text.end());
    std::size_t said = 0;
    if (core_->part(std::move(fd_), std::move(words), true, &said)) return;
    end += said;
  }
  if (ready) leave_note(text, end);
}

}  // namespace cenote::transport::tcp
