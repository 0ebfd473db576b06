// ListeningTransport: the part of a Transport that its core does; allocate() and register_memory() are left
// to the transport itself.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "transports/transport.h"

namespace cenote::transport {

/// `Core` is a ListeningCore with progress(), arm(), disarm() and reachable().
template <class Core, class Endpoint_, class Address>
class ListeningTransport : public Transport {
 public:
  explicit ListeningTransport(std::shared_ptr<Core> core)
      : core_(std::move(core)), fds_{core_->reception.sleep_fd()} {}
  ~ListeningTransport() override { core_->shut(); }
  ListeningTransport(const ListeningTransport&) = delete;
  ListeningTransport& operator=(const ListeningTransport&) = delete;

  [[nodiscard]] std::string_view name() const final { return core_->self.header.kind; }
  [[nodiscard]] const Bytes& address() const final { return core_->address; }
  [[nodiscard]] Result<void> reachable(std::span<const std::byte> peer_address) const final {
    CENOTE_ASSIGN(const Address peer, Address::parse(peer_address));
    return core_->reachable(peer);
  }
  Result<std::unique_ptr<Endpoint>> connect(std::span<const std::byte> peer_address, std::string peer_name,
                                            std::uint32_t channel, Deadline deadline) final {
    CENOTE_ASSIGN(Address peer, Address::parse(peer_address));
    CENOTE_TRY(core_->reachable(peer));
    if (peer.header.id == core_->self.header.id)
      return fail(ErrorCode::invalid_argument, "connect to " + peer_name,
                  "that is this transport's own address");
    for (const Endpoint_* endpoint : core_->endpoints) {
      if (endpoint->is(peer.header.id, channel))
        return fail(ErrorCode::already_exists, "connect to " + peer_name,
                    "there is an endpoint on channel " + std::to_string(channel) + " already");
    }
    core_->look_soon = true;
    CENOTE_ASSIGN(std::unique_ptr<Endpoint> made,
                  Endpoint_::connect(core_, std::move(peer), std::move(peer_name), channel, deadline));
    return made;
  }
  bool progress() final { return core_->progress(); }
  [[nodiscard]] std::span<const int> wait_fds() const final { return fds_; }
  bool arm() final { return core_->arm(); }
  void disarm() final { core_->disarm(); }
  void interrupt() final { core_->reception.interrupt(); }

 protected:
  std::shared_ptr<Core> core_;

 private:
  std::array<int, 1> fds_;
};

}  // namespace cenote::transport
