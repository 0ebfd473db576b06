// UcxCore: what the UCX transport, its endpoints and its regions share. It lives as long as any of them, so
// they may be destroyed in any order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/unique_fd.h"
#include "transports/meeting_place.h"
#include "transports/regions.h"
#include "transports/side_channel.h"
#include "transports/socket.h"
#include "transports/ucx/link.h"
#include "transports/ucx/ucx.h"
#include "transports/ucx/worker.h"

namespace cenote::transport::ucx {

class UcxEndpoint;

struct UcxAddress : MeetingAddress {
  static Result<UcxAddress> parse(std::span<const std::byte> bytes) {
    CENOTE_ASSIGN(auto address, MeetingAddress::parse(bytes, "ucx"));
    return UcxAddress{std::move(address)};
  }
};

class UcxCore final : public SideCore<UcxEndpoint, UcxAddress> {
 public:
  static Result<std::shared_ptr<UcxCore>> create(const UcxOptions& options);

  [[nodiscard]] Result<void> reachable(const UcxAddress& peer) const {
    return can_meet(self.header.host, self.place, peer.header.host, peer.place, "UCX");
  }
  bool progress();
  bool arm();
  void disarm();
  void shut();

  void remove(UcxEndpoint* endpoint) { std::erase(endpoints, endpoint); }
  /// A socket to a peer, as both sides use them.
  [[nodiscard]] Result<void> tune(int fd) const { return tune_socket(fd, options.silence); }
  /// Of all frames that carry this number from now on.
  void receive_for(std::uint64_t session, UcxEndpoint* endpoint) { sessions_.emplace(session, endpoint); }
  void forget(std::uint64_t session);
  /// The way to a peer's transport, made when there is none that is well.
  Result<std::shared_ptr<Link>> link_to(std::uint64_t peer, std::span<const std::byte> peer_address);
  /// That transport is gone, or the way to it is of no use.
  void retire_link(std::uint64_t peer);

  UcxOptions options;
  Worker worker;
  std::shared_ptr<RegionTable> regions;
  bool ending = false;  ///< the transport is being destroyed

 private:
  static void deliver(void* self, std::span<const std::byte> header, std::span<const std::byte> data);
  void close_retired();
  bool look();

  std::unordered_map<std::uint64_t, UcxEndpoint*> sessions_;
  std::uint64_t last_session_ = 0;
  UcxEndpoint* last_ = nullptr;  ///< whose session that is
  std::unordered_map<std::uint64_t, std::shared_ptr<Link>> links_;
  struct Retired {
    std::shared_ptr<Link> link;
    Clock::time_point until;
  };
  std::vector<Retired> retired_;
};

}  // namespace cenote::transport::ucx
