#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "runtime/log.h"
#include "runtime/process.h"
#include "transports/shm/shm_endpoint.h"

namespace cenote::transport {
namespace shm {
namespace {

constexpr std::uint64_t listener_serial = 0, wakeup_serial = 1;
constexpr std::size_t max_unproved = 256;
constexpr auto proof_time = std::chrono::seconds(10);
constexpr auto look_interval = std::chrono::microseconds(50);  // how soon a death is noticed while spinning

}  // namespace

Result<ShmAddress> ShmAddress::parse(std::span<const std::byte> bytes) {
  Reader in(bytes);
  ShmAddress out;
  CENOTE_ASSIGN(out.header, AddressHeader::unpack(in, "shm"));
  out.socket = in.text();
  if (!in.finished())
    return fail(ErrorCode::invalid_argument, "read peer address", "not a whole shm address");
  return out;
}

Bytes ShmAddress::bytes() const {
  Writer out;
  header.pack(out);
  out.text(socket);
  return out.take();
}

Result<std::shared_ptr<ShmCore>> ShmCore::create(const ShmOptions& options) {
  const char* stage = "start the shared-memory transport";
  auto core = std::make_shared<ShmCore>();
  core->options = options;
  CENOTE_ASSIGN(core->self.header, AddressHeader::make("shm"));
  std::array<std::byte, 16> name{};
  CENOTE_TRY(random_bytes(std::span<std::byte>(name)));
  core->self.socket = "cenote-" + to_hex(name);
  core->address = core->self.bytes();
  CENOTE_ASSIGN(core->door, shm::create("cenote-door", page_size, PeerAccess::read_only));
  core->epoll.reset(::epoll_create1(EPOLL_CLOEXEC));
  core->wakeup.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  core->listener.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!core->epoll || !core->wakeup || !core->listener) return fail(cenote::system_error(stage, errno));
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  std::memcpy(at.sun_path + 1, core->self.socket.data(), core->self.socket.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + core->self.socket.size());
  if (::bind(core->listener.get(), static_cast<sockaddr*>(static_cast<void*>(&at)), length) != 0 ||
      ::listen(core->listener.get(), 4096) != 0)
    return fail(cenote::system_error(stage, errno));
  CENOTE_TRY(core->watch(core->listener.get(), listener_serial));
  CENOTE_TRY(core->watch(core->wakeup.get(), wakeup_serial));
  return core;
}

Result<void> ShmCore::watch(int fd, std::uint64_t serial) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = serial;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    return fail(cenote::system_error("watch a unix socket", errno));
  return {};
}

void ShmCore::log_debug(const std::string& text) const {
  if (options.log != nullptr) options.log->debug("shm {}", text);
}

Result<void> ShmCore::reachable(const AddressHeader& peer) const {
  const auto refuse = [](std::string cause) {
    return fail(ErrorCode::not_supported, "reach peer over shared memory", std::move(cause));
  };
  const HostIdentity& here = self.header.host;
  if (peer.host.boot_id != here.boot_id)
    return refuse("other host: its boot id is " + peer.host.boot_id + ", here it is " + here.boot_id);
  if (peer.host.network_space != here.network_space)
    return refuse("same host, but another network namespace (" + std::to_string(peer.host.network_space) +
                  ", here " + std::to_string(here.network_space) +
                  "): its unix socket cannot be seen from here");
  return {};
}

void ShmCore::add(ShmEndpoint* endpoint) { endpoints.push_back(endpoint); }

void ShmCore::remove(ShmEndpoint* endpoint) {
  std::erase(endpoints, endpoint);
  for (auto& [id, entry] : regions) std::erase(entry.importers, endpoint);
}

bool ShmCore::progress() {
  bool any = std::exchange(happened, false);
  for (ShmEndpoint* endpoint : endpoints) any = endpoint->progress() || any;
  if (interrupted_.load(std::memory_order_relaxed)) [[unlikely]] {
    interrupted_.store(false, std::memory_order_relaxed);
    any = true;
  }
  // A system call now and then: for who dials, who dies, and what is said over the sockets.
  if (look_at_sockets || (++ticks_ & 63) == 0) [[unlikely]] {
    const auto now = Clock::now();
    if (look_at_sockets || now >= next_look_) {
      next_look_ = now + look_interval;
      any = look() || any;
    }
  }
  return std::exchange(happened, false) || any;
}

bool ShmCore::look() {
  look_at_sockets = false;
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
      serve_guest(serial);
    } else {
      const auto found = std::find_if(endpoints.begin(), endpoints.end(),
                                      [&](const ShmEndpoint* e) { return e->serial() == serial; });
      if (found != endpoints.end()) (*found)->serve();
    }
  }
  for (ShmEndpoint* endpoint : endpoints) {
    endpoint->tick();
    if (endpoint->is_unsettled()) look_at_sockets = true;
  }
  drop_stale_guests();
  return count > 0;
}

void ShmCore::accept_guests() {
  while (true) {
    // Who comes while too many are still unproved stays with the listener.
    const auto unproved = static_cast<std::size_t>(std::count_if(
        guests_.begin(), guests_.end(), [](const auto& guest) { return !guest.second.proved; }));
    if (unproved >= max_unproved) return;
    UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) return;
    ucred who{};
    socklen_t length = sizeof who;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &who, &length) == 0)
      log_debug("dialed by process " + std::to_string(who.pid) + " of user " + std::to_string(who.uid));
    const std::uint64_t serial = next_serial++;
    Guest guest;
    guest.since = Clock::now();
    if (!random_bytes(std::span<std::uint8_t>(guest.nonce)) || !watch(fd.get(), serial)) continue;
    guest.channel = ControlChannel(std::move(fd));
    if (!guest.channel.send(PacketType::challenge, pack(Challenge{guest.nonce}))) continue;
    guests_.emplace(serial, std::move(guest));
  }
}

void ShmCore::serve_guest(std::uint64_t serial) {
  auto found = guests_.find(serial);
  Guest& guest = found->second;
  auto packet = guest.channel.receive();
  if (packet && !*packet) return;
  const auto hello = packet ? unpack_hello((*packet)->body) : std::nullopt;
  if (!packet || guest.proved || (*packet)->type != PacketType::hello || !hello) {
    if (packet) log_debug("dropped who dialed: it speaks another protocol");
    guests_.erase(found);
    return;
  }
  const Mac expected = proof_of(Side::dialer, self.header.secret, guest.nonce, *hello, self.header.id);
  if (!equal_in_constant_time(expected, hello->proof)) {
    log_debug("dropped who dialed: it does not know this side's secret");
    guests_.erase(found);
    return;
  }
  guest.proved = true;
  guest.hello = *hello;
  greet(serial, guest);
}

void ShmCore::greet(std::uint64_t serial, Guest& guest) {
  for (ShmEndpoint* endpoint : endpoints) {
    if (!endpoint->waits_for_guest() || !endpoint->is(guest.hello.dialer, guest.hello.channel)) continue;
    Guest taken = std::move(guest);
    guests_.erase(serial);
    endpoint->adopt(serial, std::move(taken));
    return;
  }
}

bool ShmCore::take_guest(std::uint64_t dialer, std::uint32_t channel, std::uint64_t& serial, Guest& out) {
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

void ShmCore::drop_stale_guests() {
  if (guests_.empty()) return;
  const auto now = Clock::now();
  std::erase_if(guests_, [&](const auto& guest) {
    return !guest.second.proved && now - guest.second.since > proof_time;
  });
}

bool ShmCore::pending() const {
  if (happened || look_at_sockets || interrupted_.load(std::memory_order_relaxed)) return true;
  return std::any_of(endpoints.begin(), endpoints.end(), [](const ShmEndpoint* e) { return e->pending(); });
}

bool ShmCore::arm() {
  // While a connection is being made, looking at the sockets is all that progress() does: the sockets wake
  // us.
  if (std::none_of(endpoints.begin(), endpoints.end(), [](const ShmEndpoint* e) { return e->pending(); }))
    look_at_sockets = false;
  Word& sleep = my_door().sleep;
  sleep.store(sleep.load(std::memory_order_relaxed) | 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // see ring_bell()
  if (!pending()) return true;
  disarm();
  return false;
}

void ShmCore::disarm() {
  Word& sleep = my_door().sleep;
  const auto now = sleep.load(std::memory_order_relaxed);
  if ((now & 1) != 0) sleep.store(now + 1, std::memory_order_relaxed);
  look_at_sockets = true;
}

void ShmCore::interrupt() {
  interrupted_.store(true, std::memory_order_release);
  const std::uint64_t one = 1;
  (void)!::write(wakeup.get(), &one, sizeof one);
}

void ShmCore::shut() {
  for (ShmEndpoint* endpoint : endpoints) {
    endpoint->close("its transport was destroyed");
  }
  guests_.clear();
  listener.reset();
}

namespace {

class ShmRegion final : public Region {
 public:
  ShmRegion(std::shared_ptr<ShmCore> core, SharedMemory memory, const RegionKey& key)
      : core_(std::move(core)),
        memory_(std::move(memory)),
        packed_(key.pack()),
        id_(key.region),
        size_(key.size) {
    core_->regions.emplace(id_, RegionEntry{key, memory_.fd.get(), ShmRegion::bytes(), {}});
  }
  ~ShmRegion() override {
    // First the flag, so that no put that starts from now on goes through; then the peers let go of the
    // pages.
    static_cast<RegionHeader*>(memory_.mapping.base())->revoked.store(1, std::memory_order_seq_cst);
    const auto found = core_->regions.find(id_);
    const auto importers = std::move(found->second.importers);
    core_->regions.erase(found);
    for (ShmEndpoint* endpoint : importers) endpoint->region_died(id_);
  }
  ShmRegion(const ShmRegion&) = delete;
  ShmRegion& operator=(const ShmRegion&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const override {
    return {static_cast<std::byte*>(memory_.mapping.base()) + page_size, size_};
  }
  [[nodiscard]] const RemoteKey& key() const override { return packed_; }

 private:
  std::shared_ptr<ShmCore> core_;
  SharedMemory memory_;
  RemoteKey packed_;
  std::uint64_t id_;
  std::size_t size_;
};

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(std::shared_ptr<ShmCore> core) : core_(std::move(core)), fds_{core_->epoll.get()} {}
  ~ShmTransport() override { core_->shut(); }
  ShmTransport(const ShmTransport&) = delete;
  ShmTransport& operator=(const ShmTransport&) = delete;

  [[nodiscard]] std::string_view name() const override { return "shm"; }
  [[nodiscard]] Limits limits() const override { return {max_message, false}; }
  [[nodiscard]] const Bytes& address() const override { return core_->address; }
  [[nodiscard]] Result<void> reachable(std::span<const std::byte> peer_address) const override {
    CENOTE_ASSIGN(const ShmAddress peer, ShmAddress::parse(peer_address));
    return core_->reachable(peer.header);
  }
  Result<std::unique_ptr<Endpoint>> connect(std::span<const std::byte> peer_address, std::string peer_name,
                                            std::uint32_t channel, Deadline deadline) override {
    CENOTE_ASSIGN(ShmAddress peer, ShmAddress::parse(peer_address));
    CENOTE_TRY(core_->reachable(peer.header));
    if (peer.header.id == core_->self.header.id)
      return fail(ErrorCode::invalid_argument, "connect to " + peer_name,
                  "that is this transport's own address");
    for (const ShmEndpoint* endpoint : core_->endpoints) {
      if (endpoint->is(peer.header.id, channel))
        return fail(ErrorCode::already_exists, "connect to " + peer_name,
                    "there is an endpoint on channel " + std::to_string(channel) + " already");
    }
    core_->look_at_sockets = true;
    CENOTE_ASSIGN(std::unique_ptr<Endpoint> made,
                  ShmEndpoint::connect(core_, std::move(peer), std::move(peer_name), channel, deadline));
    return made;
  }
  Result<std::unique_ptr<Region>> allocate(std::size_t bytes) override {
    RegionKey key;
    CENOTE_TRY(random_bytes(std::as_writable_bytes(std::span(&key.token, 1))));
    key.owner = core_->self.header.id;
    key.size = bytes;
    const std::size_t most = static_cast<std::size_t>(INT64_MAX) - 2 * page_size;
    if (bytes > most)
      return fail(ErrorCode::invalid_argument, "allocate shared memory", "more than an address space");
    const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + page_size - 1) / page_size * page_size;
    CENOTE_ASSIGN(SharedMemory memory, create("cenote-region", page_size + rounded, PeerAccess::read_write));
    key.region = core_->next_region++;
    return std::make_unique<ShmRegion>(core_, std::move(memory), key);
  }
  Result<std::unique_ptr<Region>> register_memory(const MemoryDescription& memory) override {
    return fail(Error{ErrorCode::not_supported, "register memory of " + memory.home,
                      "another process cannot map memory that this one already has"}
                    .on("shm")
                    .fix("use allocate(), or copy through such a region"));
  }
  bool progress() override { return core_->progress(); }
  [[nodiscard]] std::span<const int> wait_fds() const override { return fds_; }
  bool arm() override { return core_->arm(); }
  void disarm() override { core_->disarm(); }
  void interrupt() override { core_->interrupt(); }

 private:
  std::shared_ptr<ShmCore> core_;
  std::array<int, 1> fds_;
};

}  // namespace
}  // namespace shm

Result<std::unique_ptr<Transport>> make_shm_transport(const ShmOptions& options) {
  CENOTE_ASSIGN(auto core, shm::ShmCore::create(options));
  return std::make_unique<shm::ShmTransport>(std::move(core));
}

}  // namespace cenote::transport
