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

/// By then UCX has noticed that a peer's connection ended, where it notices that at all.
constexpr auto retirement = std::chrono::seconds(5);

}  // namespace

Result<std::shared_ptr<UcxCore>> UcxCore::create(const UcxOptions& options) {
  auto core = std::make_shared<UcxCore>();
  core->options = options;
  core->log = options.log;
  CENOTE_TRY(core->worker.open(options.tls, &UcxCore::deliver, core.get()));
  CENOTE_ASSIGN(core->self.header, AddressHeader::make("ucx"));
  core->regions = std::make_shared<RegionTable>(core->self.header.id);
  core->self.place.host = options.host;
  CENOTE_ASSIGN(UniqueFd listener, listen_on(options.host, core->self.place.port));
  core->address = core->self.bytes();
  CENOTE_TRY(core->reception.open(std::move(listener), "listen for peers on " + options.host));
  CENOTE_TRY(core->watch(core->worker.sleep_fd(), core->reception.new_serial()));
  return core;
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

class UcxTransport final : public ListeningTransport<UcxCore, UcxEndpoint, UcxAddress> {
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
}  // namespace ucx

Result<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions& options) {
  CENOTE_ASSIGN(auto core, ucx::UcxCore::create(options));
  return std::make_unique<ucx::UcxTransport>(std::move(core));
}

}  // namespace cenote::transport
