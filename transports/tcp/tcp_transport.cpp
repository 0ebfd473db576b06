#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "runtime/log.h"
#include "runtime/process.h"
#include "transports/tcp/tcp_endpoint.h"

namespace cenote::transport {
namespace tcp {
namespace {

constexpr std::uint64_t listener_serial = 0, wakeup_serial = 1;
constexpr std::size_t max_unproved = 256;
constexpr auto proof_time = std::chrono::seconds(10);
constexpr auto look_interval = std::chrono::microseconds(100);
constexpr std::size_t read_directly =
    3;  // with so few endpoints, reading each is cheaper than asking epoll first
constexpr std::size_t scratch_size = std::size_t{64} * 1024;
constexpr std::size_t page = 4096;
constexpr std::size_t max_partings = 256;
constexpr auto parting_time = std::chrono::seconds(5);
constexpr int discard_at_once = 64;  // reads of discard_size
constexpr std::size_t discard_size = std::size_t{1024} * 1024;

}  // namespace

Result<TcpAddress> TcpAddress::parse(std::span<const std::byte> bytes) {
  Reader in(bytes);
  TcpAddress out;
  CENOTE_ASSIGN(out.header, AddressHeader::unpack(in, "tcp"));
  out.host = in.text();
  out.port = in.get<std::uint16_t>();
  if (!in.finished())
    return fail(ErrorCode::invalid_argument, "read peer address", "not a whole tcp address");
  return out;
}

Bytes TcpAddress::bytes() const {
  Writer out;
  header.pack(out);
  out.text(host).put(port);
  return out.take();
}

Result<SocketAddress> SocketAddress::parse(const std::string& host, std::uint16_t port) {
  SocketAddress out;
  sockaddr_in four{};
  sockaddr_in6 six{};
  if (::inet_pton(AF_INET, host.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    std::memcpy(&out.storage, &four, out.length = sizeof four);
  } else if (::inet_pton(AF_INET6, host.c_str(), &six.sin6_addr) == 1) {
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(port);
    std::memcpy(&out.storage, &six, out.length = sizeof six);
  } else {
    return fail(ErrorCode::invalid_argument, "read network address",
                "'" + host + "' is no numeric IPv4 or IPv6 address");
  }
  return out;
}

Result<std::shared_ptr<TcpCore>> TcpCore::create(const TcpOptions& options) {
  const std::string stage = "listen for peers on " + options.host;
  auto core = std::make_shared<TcpCore>();
  core->options = options;
  core->scratch.resize(scratch_size);
  CENOTE_ASSIGN(core->self.header, AddressHeader::make("tcp"));
  core->self.host = options.host;
  CENOTE_ASSIGN(SocketAddress at, SocketAddress::parse(options.host, 0));
  core->epoll.reset(::epoll_create1(EPOLL_CLOEXEC));
  core->wakeup.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  core->listener.reset(::socket(at.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!core->epoll || !core->wakeup || !core->listener) return fail(cenote::system_error(stage, errno));
  if (::bind(core->listener.get(), at.get(), at.length) != 0 || ::listen(core->listener.get(), 4096) != 0 ||
      ::getsockname(core->listener.get(), at.get(), &at.length) != 0)
    return fail(cenote::system_error(stage, errno));
  sockaddr_in four{};
  std::memcpy(&four, &at.storage, sizeof four);  // the port lies at the same place in both families
  core->self.port = ntohs(four.sin_port);
  core->address = core->self.bytes();
  CENOTE_TRY(core->watch(core->listener.get(), listener_serial, false, false));
  CENOTE_TRY(core->watch(core->wakeup.get(), wakeup_serial, false, false));
  return core;
}

Result<void> TcpCore::watch(int fd, std::uint64_t serial, bool for_writing, bool again) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | (for_writing ? EPOLLOUT : 0U);
  event.data.u64 = serial;
  if (::epoll_ctl(epoll.get(), again ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) != 0)
    return fail(cenote::system_error("watch a socket", errno));
  return {};
}

Result<void> TcpCore::tune(int fd) const {
  const auto set = [fd](int level, int name, int value) {
    return ::setsockopt(fd, level, name, &value, sizeof value);
  };
  const int silence = static_cast<int>(options.silence.count());
  const int probe = std::max(1, silence / 1000 / 6);
  if (set(IPPROTO_TCP, TCP_NODELAY, 1) != 0 || set(SOL_SOCKET, SO_KEEPALIVE, 1) != 0 ||
      set(IPPROTO_TCP, TCP_KEEPIDLE, probe) != 0 || set(IPPROTO_TCP, TCP_KEEPINTVL, probe) != 0 ||
      set(IPPROTO_TCP, TCP_KEEPCNT, 5) != 0 || set(IPPROTO_TCP, TCP_USER_TIMEOUT, silence) != 0)
    return fail(cenote::system_error("set up a socket", errno));
  return {};
}

void TcpCore::log_debug(const std::string& text) const {
  if (options.log != nullptr) options.log->debug("tcp {}", text);
}

Result<void> TcpCore::reachable(const TcpAddress& peer) const {
  if (!peer.loopback() && !self.loopback()) return {};
  const HostIdentity &here = self.header.host, &there = peer.header.host;
  const bool same = here.boot_id == there.boot_id && here.network_space == there.network_space;
  if (same) return {};
  return fail(Error{ErrorCode::not_supported, "reach peer over TCP",
                    (peer.loopback() ? "it listens only on its loopback address " + peer.host
                                     : "this side listens only on its loopback address " + self.host) +
                        ", and it runs on another host or in another network namespace"}
                  .fix("let both sides listen on an address of their network"));
}

std::byte* TcpCore::reach(std::uint64_t region, std::uint64_t token, std::uint64_t offset,
                          std::uint64_t length) {
  const auto found = regions.find(region);
  if (found == regions.end()) return nullptr;
  const RegionEntry& entry = found->second;
  if (entry.key.token != token || offset > entry.key.size || length > entry.key.size - offset) return nullptr;
  return entry.data + offset;
}

// An honest peer may use a key a little too long; one that has the key has its bounds as well, and checks
// them.
Error TcpCore::misfit(const char* stage, std::uint64_t region, std::uint64_t token) const {
  const auto found = regions.find(region);
  if (found == regions.end() || found->second.key.token != token)
    return {ErrorCode::permission_denied, stage, "the key's region was destroyed, or the key is forged"};
  return {ErrorCode::protocol_error, stage, "offset or length do not fit the key's region"};
}

bool TcpCore::progress() {
  bool any = std::exchange(happened, false);
  if (interrupted_.load(std::memory_order_relaxed)) [[unlikely]] {
    interrupted_.store(false, std::memory_order_relaxed);
    look_at_all = any = true;
  }
  const bool directly = endpoints.size() <= read_directly;
  for (TcpEndpoint* endpoint : endpoints) {
    any = endpoint->flush() || any;
    if (directly) any = endpoint->read() || any;
    if (endpoint->is_unsettled()) look_at_all = true;
  }
  if (!directly || look_at_all) {
    any = look() || any;
  } else if ((++ticks_ & 15) == 0) {
    const auto now = Clock::now();
    if (now >= next_look_) {
      next_look_ = now + look_interval;
      any = look() || any;
    }
  }
  return std::exchange(happened, false) || any;
}

bool TcpCore::look() {
  look_at_all = false;
  bool any = false;
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t serial = events[static_cast<std::size_t>(i)].data.u64;
    if (serial == listener_serial) {
      accept_guests();
    } else if (serial == wakeup_serial) {
      std::uint64_t ignored = 0;
      (void)!::read(wakeup.get(), &ignored, sizeof ignored);
    } else if (guests_.contains(serial)) {
      (void)serve_guest(serial);
    } else {
      const auto found = std::find_if(endpoints.begin(), endpoints.end(),
                                      [&](const TcpEndpoint* e) { return e->serial() == serial; });
      if (found != endpoints.end()) {
        any = (*found)->read() || any;
      } else {
        proceed_parting(serial);
      }
    }
  }
  if (!partings_.empty())
    std::erase_if(partings_, [now = Clock::now()](const Parting& parting) { return now > parting.until; });
  for (TcpEndpoint* endpoint : endpoints) endpoint->tick();
  if (!guests_.empty()) drop_stale_guests();
  return any;
}

void TcpCore::accept_guests() {
  while (true) {
    UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) return;
    const auto unproved = static_cast<std::size_t>(std::count_if(
        guests_.begin(), guests_.end(), [](const auto& guest) { return !guest.second.proved; }));
    if (unproved >= max_unproved || !tune(fd.get())) continue;
    const std::uint64_t serial = next_serial++;
    Guest guest;
    guest.since = Clock::now();
    if (!random_bytes(std::span<std::uint8_t>(guest.nonce)) || !watch(fd.get(), serial, false, false))
      continue;
    const Bytes challenge = pack(Challenge{guest.nonce});
    const auto sent = ::send(fd.get(), challenge.data(), challenge.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent != static_cast<ssize_t>(challenge.size())) continue;
    guest.fd = std::move(fd);
    guests_.emplace(serial, std::move(guest));
  }
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
  const auto hello = unpack_hello(guest.got);
  if (!hello || !equal_in_constant_time(hello->proof, proof_of(Side::dialer, self.header.secret, guest.nonce,
                                                               *hello, self.header.id))) {
    log_debug(hello ? "dropped who dialed: it does not know this side's secret"
                    : "dropped who dialed: it speaks another protocol");
    guests_.erase(found);
    return false;
  }
  guest.proved = true;
  guest.hello = *hello;
  for (TcpEndpoint* endpoint : endpoints) {
    if (!endpoint->waits_for_guest() || !endpoint->is(hello->dialer, hello->channel)) continue;
    Guest taken = std::move(guest);
    guests_.erase(found);
    endpoint->adopt(serial, std::move(taken));
    return false;
  }
  return true;
}

void TcpCore::look_for_notes() {
  if (!listener) return;
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

bool TcpCore::take_guest(std::uint64_t dialer, std::uint32_t channel, std::uint64_t& serial, Guest& out) {
  for (auto at = guests_.begin(); at != guests_.end(); ++at) {
    Guest& guest = at->second;
    if (!guest.proved || guest.hello.dialer != dialer || guest.hello.channel != channel) continue;
    serial = at->first;
    out = std::move(guest);
    guests_.erase(at);
    return true;
  }
  return false;
}

void TcpCore::drop_stale_guests() {
  const auto now = Clock::now();
  std::erase_if(guests_, [&](const auto& guest) {
    return !guest.second.proved && now - guest.second.since > proof_time;
  });
}

bool TcpCore::arm() {
  // Everything that can come, comes through a descriptor that stays readable until it was read.
  for (TcpEndpoint* endpoint : endpoints) {
    happened = endpoint->flush() || happened;
    endpoint->watch_room(endpoint->has_unsent());
  }
  if (!happened && !interrupted_.load(std::memory_order_relaxed)) return true;
  disarm();
  return false;
}

void TcpCore::disarm() {
  for (TcpEndpoint* endpoint : endpoints) endpoint->watch_room(false);
  look_at_all = true;
}

void TcpCore::interrupt() {
  interrupted_.store(true, std::memory_order_release);
  const std::uint64_t one = 1;
  (void)!::write(wakeup.get(), &one, sizeof one);
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
  Parting parting{std::move(fd), next_serial++, std::move(words), 0, Clock::now() + parting_time};
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
  for (TcpEndpoint* endpoint : endpoints) endpoint->close("its transport was destroyed");
  for (Parting& parting : partings_) (void)parting.proceed();
  partings_.clear();
  guests_.clear();
  listener.reset();
}

namespace {

class TcpRegion final : public Region {
 public:
  /// `owned` bytes are unmapped at the end; 0: the memory belongs to somebody else.
  TcpRegion(std::shared_ptr<TcpCore> core, const RegionKey& key, std::byte* data, std::size_t owned)
      : core_(std::move(core)),
        packed_(key.pack()),
        id_(key.region),
        data_(data),
        size_(key.size),
        owned_(owned) {
    core_->regions.emplace(id_, RegionEntry{key, data});
  }
  ~TcpRegion() override {
    core_->regions.erase(id_);
    if (owned_ != 0) ::munmap(data_, owned_);
  }
  TcpRegion(const TcpRegion&) = delete;
  TcpRegion& operator=(const TcpRegion&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const override { return {data_, size_}; }
  [[nodiscard]] const RemoteKey& key() const override { return packed_; }

 private:
  std::shared_ptr<TcpCore> core_;
  RemoteKey packed_;
  std::uint64_t id_;
  std::byte* data_;
  std::size_t size_, owned_;
};

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(std::shared_ptr<TcpCore> core) : core_(std::move(core)), fds_{core_->epoll.get()} {}
  ~TcpTransport() override { core_->shut(); }
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  [[nodiscard]] std::string_view name() const override { return "tcp"; }
  [[nodiscard]] Limits limits() const override { return {max_message, true}; }
  [[nodiscard]] const Bytes& address() const override { return core_->address; }
  [[nodiscard]] Result<void> reachable(std::span<const std::byte> peer_address) const override {
    CENOTE_ASSIGN(const TcpAddress peer, TcpAddress::parse(peer_address));
    return core_->reachable(peer);
  }
  Result<std::unique_ptr<Endpoint>> connect(std::span<const std::byte> peer_address, std::string peer_name,
                                            std::uint32_t channel, Deadline deadline) override {
    CENOTE_ASSIGN(TcpAddress peer, TcpAddress::parse(peer_address));
    CENOTE_TRY(core_->reachable(peer));
    if (peer.header.id == core_->self.header.id)
      return fail(ErrorCode::invalid_argument, "connect to " + peer_name,
                  "that is this transport's own address");
    for (const TcpEndpoint* endpoint : core_->endpoints) {
      if (endpoint->is(peer.header.id, channel))
        return fail(ErrorCode::already_exists, "connect to " + peer_name,
                    "there is an endpoint on channel " + std::to_string(channel) + " already");
    }
    core_->look_at_all = true;
    CENOTE_ASSIGN(std::unique_ptr<Endpoint> made,
                  TcpEndpoint::connect(core_, std::move(peer), std::move(peer_name), channel, deadline));
    return made;
  }
  Result<std::unique_ptr<Region>> allocate(std::size_t bytes) override {
    const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
    if (rounded < bytes)
      return fail(ErrorCode::invalid_argument, "allocate memory", "more than an address space");
    void* base = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
      return fail(cenote::system_error("allocate " + std::to_string(bytes) + " bytes", errno));
    auto region = make(static_cast<std::byte*>(base), bytes, rounded);
    if (!region) ::munmap(base, rounded);
    return region;
  }
  Result<std::unique_ptr<Region>> register_memory(const MemoryDescription& memory) override {
    if (memory.kind != MemoryKind::host || !memory.cpu_readable)
      return fail(ErrorCode::not_supported, "register memory of " + memory.home,
                  "the socket reads and writes only memory of the CPU");
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a memory description carries its address as a number.
    return make(reinterpret_cast<std::byte*>(memory.address), memory.size, 0);
  }
  bool progress() override { return core_->progress(); }
  [[nodiscard]] std::span<const int> wait_fds() const override { return fds_; }
  bool arm() override { return core_->arm(); }
  void disarm() override { core_->disarm(); }
  void interrupt() override { core_->interrupt(); }

 private:
  Result<std::unique_ptr<Region>> make(std::byte* data, std::size_t bytes, std::size_t owned) {
    RegionKey key;
    CENOTE_TRY(random_bytes(std::as_writable_bytes(std::span(&key.token, 1))));
    key.owner = core_->self.header.id;
    key.region = core_->next_region++;
    key.size = bytes;
    return std::make_unique<TcpRegion>(core_, key, data, owned);
  }

  std::shared_ptr<TcpCore> core_;
  std::array<int, 1> fds_;
};

}  // namespace
}  // namespace tcp

Result<std::unique_ptr<Transport>> make_tcp_transport(const TcpOptions& options) {
  CENOTE_ASSIGN(auto core, tcp::TcpCore::create(options));
  return std::make_unique<tcp::TcpTransport>(std::move(core));
}

}  // namespace cenote::transport
