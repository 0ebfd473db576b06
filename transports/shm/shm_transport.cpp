#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "runtime/process.h"
#include "transports/listening_transport.h"
#include "transports/shm/shm_endpoint.h"

namespace cenote::transport {
namespace shm {

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
  core->log = options.log;
  CENOTE_ASSIGN(core->self.header, AddressHeader::make("shm"));
  std::array<std::byte, 16> name{};
  CENOTE_TRY(random_bytes(std::span<std::byte>(name)));
  core->self.socket = "cenote-" + to_hex(name);
  core->address = core->self.bytes();
  CENOTE_ASSIGN(core->door, shm::create("cenote-door", page_size, PeerAccess::read_only));
  UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener) return fail(cenote::system_error(stage, errno));
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  std::memcpy(at.sun_path + 1, core->self.socket.data(), core->self.socket.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + core->self.socket.size());
  if (::bind(listener.get(), static_cast<sockaddr*>(static_cast<void*>(&at)), length) != 0 ||
      ::listen(listener.get(), 4096) != 0)
    return fail(cenote::system_error(stage, errno));
  CENOTE_TRY(core->reception.open(std::move(listener), stage));
  return core;
}

Result<void> ShmCore::reachable(const ShmAddress& peer) const {
  const auto refuse = [](std::string cause) {
    return fail(ErrorCode::not_supported, "reach peer over shared memory", std::move(cause));
  };
  const HostIdentity &here = self.header.host, &there = peer.header.host;
  if (there.boot_id != here.boot_id)
    return refuse("other host: its boot id is " + there.boot_id + ", here it is " + here.boot_id);
  if (there.network_space != here.network_space)
    return refuse("same host, but another network namespace (" + std::to_string(there.network_space) +
                  ", here " + std::to_string(here.network_space) +
                  "): its unix socket cannot be seen from here");
  return {};
}

void ShmCore::remove(ShmEndpoint* endpoint) {
  std::erase(endpoints, endpoint);
  for (auto& [id, entry] : regions) std::erase(entry.importers, endpoint);
}

bool ShmCore::progress() {
  bool any = std::exchange(happened, false);
  for (ShmEndpoint* endpoint : endpoints) any = endpoint->progress() || any;
  if (reception.interrupted()) [[unlikely]] {
    reception.forget_interrupt();
    any = true;
  }
  // A system call now and then: for who dials, who dies, and what is said over the sockets.
  if (look_soon || reception.due()) [[unlikely]]
    any = look() || any;
  return std::exchange(happened, false) || any;
}

bool ShmCore::look() {
  const bool any = look_around([this](std::uint64_t serial) {
    if (ShmEndpoint* endpoint = endpoint_of(serial)) endpoint->serve();
  });
  for (ShmEndpoint* endpoint : endpoints) {
    endpoint->tick();
    if (endpoint->is_unsettled() || endpoint->has_unsent()) look_soon = true;
  }
  return any;
}

bool ShmCore::invite(UniqueFd fd, std::uint64_t serial, Guest& guest) {
  ucred who{};
  socklen_t length = sizeof who;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &who, &length) == 0)
    log_debug("dialed by process " + std::to_string(who.pid) + " of user " + std::to_string(who.uid));
  if (!watch(fd.get(), serial)) return false;
  guest.channel = ControlChannel(std::move(fd));
  return guest.channel.send(PacketType::challenge, pack(Challenge{guest.nonce})).has_value();
}

bool ShmCore::serve_guest(std::uint64_t serial) {
  const auto found = guests_.find(serial);
  Guest& guest = found->second;
  const auto packet = guest.channel.receive();
  if (packet && !*packet) return false;
  // After its proof a guest has nothing to say until it is welcome.
  if (!packet || guest.proved) {
    guests_.erase(found);
    return false;
  }
  const bool is_hello = (*packet)->type == PacketType::hello;
  return meet(serial, is_hello ? unpack_hello((*packet)->body) : std::nullopt);
}

bool ShmCore::pending() const {
  if (happened || look_soon || reception.interrupted()) return true;
  return std::any_of(endpoints.begin(), endpoints.end(), [](const ShmEndpoint* e) { return e->pending(); });
}

bool ShmCore::arm() {
  // While a connection is being made, looking at the sockets is all that progress() does: the sockets wake
  // us.
  if (std::none_of(endpoints.begin(), endpoints.end(), [](const ShmEndpoint* e) { return e->pending(); }))
    look_soon = false;
  for (ShmEndpoint* endpoint : endpoints) endpoint->watch_room(true);
  Word& sleep = my_door().sleep;
  sleep.store(sleep.load(std::memory_order_relaxed) | 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // see ring_bell()
  if (!pending()) return true;
  disarm();
  return false;
}

void ShmCore::disarm() {
  for (ShmEndpoint* endpoint : endpoints) endpoint->watch_room(false);
  Word& sleep = my_door().sleep;
  const auto now = sleep.load(std::memory_order_relaxed);
  if ((now & 1) != 0) sleep.store(now + 1, std::memory_order_relaxed);
  look_soon = true;
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

class ShmTransport final : public ListeningTransport<ShmCore, ShmEndpoint, ShmAddress> {
 public:
  using ListeningTransport::ListeningTransport;
  [[nodiscard]] Limits limits() const override { return {max_message, false}; }
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
};

}  // namespace
}  // namespace shm

Result<std::unique_ptr<Transport>> make_shm_transport(const ShmOptions& options) {
  CENOTE_ASSIGN(auto core, shm::ShmCore::create(options));
  return std::make_unique<shm::ShmTransport>(std::move(core));
}

}  // namespace cenote::transport
