#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "runtime/process.h"
#include "transports/listening_transport.h"
#include "transports/tcp/tcp_endpoint.h"

namespace cenote::transport {
namespace tcp {
namespace {

constexpr std::size_t read_directly =
    3;  // with so few endpoints, reading each is cheaper than asking epoll first
constexpr std::size_t scratch_size = std::size_t{64} * 1024;
constexpr std::size_t max_partings = 256;
constexpr auto parting_time = std::chrono::seconds(5);
constexpr int discard_at_once = 64;  // reads of discard_size
constexpr std::size_t discard_size = std::size_t{1024} * 1024;

}  // namespace

Result<std::shared_ptr<TcpCore>> TcpCore::create(const TcpOptions& options) {
  auto core = std::make_shared<TcpCore>();
  core->options = options;
  core->log = options.log;
  core->scratch.resize(scratch_size);
  CENOTE_ASSIGN(core->self.header, AddressHeader::make("tcp"));
  core->regions = std::make_shared<RegionTable>(core->self.header.id);
  core->self.place.host = options.host;
  CENOTE_ASSIGN(UniqueFd listener, listen_on(options.host, core->self.place.port));
  core->address = core->self.bytes();
  CENOTE_TRY(core->reception.open(std::move(listener), "listen for peers on " + options.host));
  return core;
}

bool TcpCore::progress() {
  bool any = std::exchange(happened, false);
  if (reception.interrupted()) [[unlikely]] {
    reception.forget_interrupt();
    look_soon = any = true;
  }
  const bool directly = endpoints.size() <= read_directly;
  for (TcpEndpoint* endpoint : endpoints) {
    any = endpoint->flush() || any;
    if (directly) any = endpoint->read() || any;
    if (endpoint->is_unsettled()) look_soon = true;
  }
  if (!directly || look_soon || reception.due()) any = look() || any;
  return std::exchange(happened, false) || any;
}

bool TcpCore::look() {
  bool any = false;
  (void)look_around([&](std::uint64_t serial) {
    if (TcpEndpoint* endpoint = endpoint_of(serial)) {
      any = endpoint->read() || any;
    } else {
      proceed_parting(serial);
    }
  });
  if (!partings_.empty())
    std::erase_if(partings_, [now = Clock::now()](const Parting& parting) { return now > parting.until; });
  for (TcpEndpoint* endpoint : endpoints) endpoint->tick();
  return any;
}

bool TcpCore::invite(UniqueFd fd, std::uint64_t serial, Guest& guest) {
  if (!tune(fd.get()) || !watch(fd.get(), serial)) return false;
  const Bytes challenge = pack(Challenge{guest.nonce});
  const auto sent = ::send(fd.get(), challenge.data(), challenge.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  guest.fd = std::move(fd);
  return sent == static_cast<ssize_t>(challenge.size());
}

bool TcpCore::serve_guest(std::uint64_t serial) {
  const auto found = guests_.find(serial);
  Guest& guest = found->second;
  std::array<std::byte, Hello::size + max_reason> buffer;
  const std::size_t room = guest.proved ? 1 : Note::wanted(guest.got) - guest.got.size();
  const auto count = ::recv(guest.fd.get(), buffer.data(), room, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  // After its proof a guest has nothing to say until it is welcome.
  if (count <= 0 || guest.proved) {
    guests_.erase(found);
    return false;
  }
  guest.got.insert(guest.got.end(), buffer.begin(), buffer.begin() + count);
  if (guest.got.size() < Note::wanted(guest.got)) return true;
  if (const auto note = Note::unpack(guest.got)) {
    guests_.erase(found);
    for (TcpEndpoint* endpoint : endpoints) {
      if (endpoint->is(note->sender, note->channel)) endpoint->hear(*note);
    }
    return false;
  }
  return meet(serial, unpack_hello(guest.got));
}

void TcpCore::look_for_notes() {
  if (!reception.is_open()) return;
  accept_guests();
  std::vector<std::uint64_t> serials;
  for (const auto& [serial, guest] : guests_) {
    if (!guest.proved) serials.push_back(serial);
  }
  for (const std::uint64_t serial : serials) {
    while (guests_.contains(serial) && serve_guest(serial)) {
    }
  }
}

bool TcpCore::arm() {
  // Everything that can come, comes through a descriptor that stays readable until it was read.
  for (TcpEndpoint* endpoint : endpoints) {
    happened = endpoint->flush() || happened;
    endpoint->watch_room(endpoint->has_unsent());
  }
  if (!happened && !reception.interrupted()) return true;
  disarm();
  return false;
}

void TcpCore::disarm() {
  for (TcpEndpoint* endpoint : endpoints) endpoint->watch_room(false);
  look_soon = true;
}

bool Parting::proceed() {
  while (said < words.size()) {
    const auto sent = write_some(fd.get(), std::span(words).subspan(said), {});
    if (!sent) return false;
    if (*sent == 0) break;
    said += *sent;
    if (said == words.size()) (void)::shutdown(fd.get(), SHUT_WR);
  }
  // Bytes left unread would turn the end into a reset.
  for (int i = 0; i < discard_at_once; ++i) {
    const auto count = ::recv(fd.get(), nullptr, discard_size, MSG_DONTWAIT | MSG_TRUNC);
    if (count > 0 || (count < 0 && errno == EINTR)) continue;
    return count < 0 && errno == EAGAIN;
  }
  return true;
}

bool TcpCore::part(UniqueFd fd, Bytes words, bool watched, std::size_t* said) {
  Parting parting{std::move(fd), reception.new_serial(), std::move(words), 0, Clock::now() + parting_time};
  const bool goes_on = parting.proceed();
  if (said != nullptr) *said = parting.said;
  if (!goes_on) return parting.said == parting.words.size();
  int unsent = 0;
  (void)::ioctl(parting.fd.get(), SIOCOUTQNSD, &unsent);
  const bool saying = parting.said < parting.words.size();
  if (partings_.size() < max_partings && watch(parting.fd.get(), parting.serial, saying, watched))
    partings_.push_back(std::move(parting));
  return !saying && unsent == 0;
}

void TcpCore::proceed_parting(std::uint64_t serial) {
  const auto found = std::find_if(partings_.begin(), partings_.end(),
                                  [serial](const Parting& parting) { return parting.serial == serial; });
  if (found == partings_.end()) return;
  const bool was_saying = found->said < found->words.size();
  if (!found->proceed()) {
    partings_.erase(found);
  } else if (was_saying && found->said == found->words.size()) {
    (void)watch(found->fd.get(), serial, false, true);
  }
}

void TcpCore::shut() {
  ListeningCore::shut();
  for (Parting& parting : partings_) (void)parting.proceed();
  partings_.clear();
}

namespace {

class TcpTransport final : public ListeningTransport<TcpCore, TcpEndpoint, TcpAddress> {
 public:
  using ListeningTransport::ListeningTransport;
  [[nodiscard]] Limits limits() const override { return {max_message, true}; }
  Result<std::unique_ptr<Region>> allocate(std::size_t bytes) override {
    return core_->regions->allocate(bytes);
  }
  Result<std::unique_ptr<Region>> register_memory(const MemoryDescription& memory) override {
    return core_->regions->add(memory);
  }
};

}  // namespace
}  // namespace tcp

Result<std::unique_ptr<Transport>> make_tcp_transport(const TcpOptions& options) {
  CENOTE_ASSIGN(auto core, tcp::TcpCore::create(options));
  return std::make_unique<tcp::TcpTransport>(std::move(core));
}

}  // namespace cenote::transport
