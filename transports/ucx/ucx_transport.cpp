#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "runtime/process.h"
#include "transports/listening_transport.h"
#include "transports/ucx/ucx_endpoint.h"

namespace cenote::transport {
namespace ucx {
namespace {

constexpr std::size_t page = 4096;
/// By then UCX has noticed that a peer's connection ended, where it notices that at all.
constexpr auto retirement = std::chrono::seconds(5);

}  // namespace

Result<UcxAddress> UcxAddress::parse(std::span<const std::byte> bytes) {
  Reader in(bytes);
  UcxAddress out;
  CENOTE_ASSIGN(out.header, AddressHeader::unpack(in, "ucx"));
  out.host = in.text();
  out.port = in.get<std::uint16_t>();
  if (!in.finished())
    return fail(ErrorCode::invalid_argument, "read peer address", "not a whole ucx address");
  return out;
}

Bytes UcxAddress::bytes() const {
  Writer out;
  header.pack(out);
  out.text(host).put(port);
  return out.take();
}

Result<std::shared_ptr<UcxCore>> UcxCore::create(const UcxOptions& options) {
  auto core = std::make_shared<UcxCore>();
  core->options = options;
  core->log = options.log;
  CENOTE_TRY(core->worker.open(options.tls, &UcxCore::deliver, core.get()));
  CENOTE_ASSIGN(core->self.header, AddressHeader::make("ucx"));
  core->self.host = options.host;
  CENOTE_ASSIGN(UniqueFd listener, listen_on(options.host, core->self.port));
  core->address = core->self.bytes();
  CENOTE_TRY(core->reception.open(std::move(listener), "listen for peers on " + options.host));
  CENOTE_TRY(core->watch(core->worker.sleep_fd(), core->reception.new_serial()));
  return core;
}

Result<void> UcxCore::reachable(const UcxAddress& peer) const {
  if (!peer.loopback() && !self.loopback()) return {};
  const HostIdentity &here = self.header.host, &there = peer.header.host;
  if (here.boot_id == there.boot_id && here.network_space == there.network_space) return {};
  return fail(Error{ErrorCode::not_supported, "reach peer over UCX",
                    (peer.loopback() ? "it listens only on its loopback address " + peer.host
                                     : "this side listens only on its loopback address " + self.host) +
                        ", and it runs on another host or in another network namespace"}
                  .fix("let both sides listen on an address of their network: the setting tcp.host"));
}

void UcxCore::forget(std::uint64_t session) {
  if (session == last_session_) last_ = nullptr;
  sessions_.erase(session);
}

Result<std::shared_ptr<Link>> UcxCore::link_to(std::uint64_t peer, std::span<const std::byte> peer_address) {
  auto& link = links_[peer];
  if (link && !link->fault()) return link;
  auto made = Link::open(worker, peer_address);
  if (!made) {
    links_.erase(peer);
    return fail(std::move(made).error());
  }
  link = *made;
  return link;
}

void UcxCore::retire_link(std::uint64_t peer) {
  const auto found = links_.find(peer);
  if (found == links_.end()) return;
  retired_.push_back({std::move(found->second), Clock::now() + retirement});
  links_.erase(found);
}

void UcxCore::close_retired() {
  const auto now = Clock::now();
  std::erase_if(retired_, [&](const Retired& retired) {
    if (!retired.link->fault() && now < retired.until) return false;
    retired.link->close();
    return true;
  });
}

void UcxCore::restart(const UcxEndpoint* culprit) {
  if (std::exchange(restarting_, true)) return;
  log_debug("restarts UCX: a peer takes nothing of what its endpoint left behind");
  for (UcxEndpoint* endpoint : endpoints) {
    if (endpoint != culprit) endpoint->cut("UCX was restarted: another peer left its messages unread");
  }
  for (const auto& [peer, link] : links_) link->abandon();
  for (const Retired& retired : retired_) retired.link->abandon();
  links_.clear();
  retired_.clear();
  worker.close();
  const auto opened = worker.open(options.tls, &UcxCore::deliver, this);
  const auto watched = opened ? watch(worker.sleep_fd(), reception.new_serial()) : opened;
  if (!watched) log_debug("cannot restart UCX: " + watched.error().message());
  restarting_ = false;
}

std::byte* UcxCore::reach(std::uint64_t region, std::uint64_t token, std::uint64_t offset,
                          std::uint64_t length) {
  const auto found = regions.find(region);
  if (found == regions.end()) return nullptr;
  const RegionEntry& entry = found->second;
  if (entry.key.token != token || offset > entry.key.size || length > entry.key.size - offset) return nullptr;
  return entry.data + offset;
}

// An honest peer may use a key a little too long; one that has the key has its bounds as well, and checks
// them.
Error UcxCore::misfit(const char* stage, std::uint64_t region, std::uint64_t token) const {
  const auto found = regions.find(region);
  if (found == regions.end() || found->second.key.token != token)
    return {ErrorCode::permission_denied, stage, "the key's region was destroyed, or the key is forged"};
  return {ErrorCode::protocol_error, stage, "offset or length do not fit the key's region"};
}

void UcxCore::deliver(void* self, std::span<const std::byte> header, std::span<const std::byte> data) {
  auto* core = static_cast<UcxCore*>(self);
  Frame frame;
  if (header.size() != sizeof frame) return;  // a stranger's: it names no session
  std::memcpy(&frame, header.data(), sizeof frame);
  if (core->last_ == nullptr || core->last_session_ != frame.session) {
    const auto found = core->sessions_.find(frame.session);
    if (found == core->sessions_.end()) return;
    core->last_ = found->second;
    core->last_session_ = frame.session;
  }
  core->last_->take(frame, data);
}

bool UcxCore::progress() {
  bool any = std::exchange(happened, false);
  if (reception.interrupted()) [[unlikely]] {
    reception.forget_interrupt();
    look_soon = any = true;
  }
  any = worker.progress() || any;
  for (UcxEndpoint* endpoint : endpoints) {
    any = endpoint->settle() || any;
    any = endpoint->flush() || any;
    if (endpoint->is_unsettled()) look_soon = true;
  }
  if (look_soon || reception.due()) any = look() || any;
  return std::exchange(happened, false) || any;
}

bool UcxCore::look() {
  bool any = false;
  (void)look_around([&](std::uint64_t serial) {
    if (UcxEndpoint* endpoint = endpoint_of(serial)) {
      endpoint->read();
      any = true;
    }
  });
  for (UcxEndpoint* endpoint : endpoints) endpoint->tick();
  if (!retired_.empty()) close_retired();
  return any;
}

bool UcxCore::invite(UniqueFd fd, std::uint64_t serial, Guest& guest) {
  if (!tune(fd.get()) || !watch(fd.get(), serial)) return false;
  const Bytes challenge = pack(Challenge{guest.nonce});
  const auto sent = ::send(fd.get(), challenge.data(), challenge.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  guest.fd = std::move(fd);
  return sent == static_cast<ssize_t>(challenge.size());
}

bool UcxCore::serve_guest(std::uint64_t serial) {
  const auto found = guests_.find(serial);
  Guest& guest = found->second;
  std::array<std::byte, Hello::size> buffer;
  const std::size_t room = guest.proved ? 1 : Hello::size - guest.got.size();
  const auto count = ::recv(guest.fd.get(), buffer.data(), room, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  // After its proof a guest has nothing to say until it is welcome.
  if (count <= 0 || guest.proved) {
    guests_.erase(found);
    return false;
  }
  guest.got.insert(guest.got.end(), buffer.begin(), buffer.begin() + count);
  if (guest.got.size() < Hello::size) return true;
  return meet(serial, unpack_hello(guest.got));
}

bool UcxCore::arm() {
  for (UcxEndpoint* endpoint : endpoints) happened = endpoint->flush() || happened;
  if (happened || reception.interrupted() || !worker.arm()) {
    disarm();
    return false;
  }
  return true;
}

void UcxCore::disarm() { look_soon = true; }

void UcxCore::shut() {
  ending = true;
  ListeningCore::shut();
  for (const auto& [peer, link] : links_) link->abandon();
  for (const Retired& retired : retired_) retired.link->abandon();
  links_.clear();
  retired_.clear();
  worker.close();
}

namespace {

class UcxRegion final : public Region {
 public:
  /// `owned` bytes are unmapped at the end; 0: the memory belongs to somebody else.
  UcxRegion(std::shared_ptr<UcxCore> core, const RegionKey& key, std::byte* data, std::size_t owned)
      : core_(std::move(core)),
        packed_(key.pack()),
        id_(key.region),
        data_(data),
        size_(key.size),
        owned_(owned) {
    core_->regions.emplace(id_, RegionEntry{key, data});
  }
  ~UcxRegion() override {
    core_->regions.erase(id_);
    if (owned_ != 0) ::munmap(data_, owned_);
  }
  UcxRegion(const UcxRegion&) = delete;
  UcxRegion& operator=(const UcxRegion&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const override { return {data_, size_}; }
  [[nodiscard]] const RemoteKey& key() const override { return packed_; }

 private:
  std::shared_ptr<UcxCore> core_;
  RemoteKey packed_;
  std::uint64_t id_;
  std::byte* data_;
  std::size_t size_, owned_;
};

class UcxTransport final : public ListeningTransport<UcxCore, UcxEndpoint, UcxAddress> {
 public:
  using ListeningTransport::ListeningTransport;
  [[nodiscard]] Limits limits() const override { return {max_message, true}; }
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
                  "messages are read from and written to memory of the CPU only");
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a memory description carries its address as a number.
    return make(reinterpret_cast<std::byte*>(memory.address), memory.size, 0);
  }

 private:
  Result<std::unique_ptr<Region>> make(std::byte* data, std::size_t bytes, std::size_t owned) {
    RegionKey key;
    CENOTE_TRY(random_bytes(std::as_writable_bytes(std::span(&key.token, 1))));
    key.owner = core_->self.header.id;
    key.region = core_->next_region++;
    key.size = bytes;
    return std::make_unique<UcxRegion>(core_, key, data, owned);
  }
};

}  // namespace
}  // namespace ucx

Result<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions& options) {
  CENOTE_ASSIGN(auto core, ucx::UcxCore::create(options));
  return std::make_unique<ucx::UcxTransport>(std::move(core));
}

}  // namespace cenote::transport
