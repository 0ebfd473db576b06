// ShmCore: what the shared-memory transport, its endpoints and its regions share. It lives as long as any of
// them, so they may be destroyed in any order.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "transports/listening_core.h"
#include "transports/region_key.h"
#include "transports/shm/control_channel.h"
#include "transports/shm/layout.h"
#include "transports/shm/mapping.h"
#include "transports/shm/shm.h"

namespace cenote::transport::shm {

class ShmEndpoint;

struct Guest : GuestBase {
  ControlChannel channel;
};

struct RegionEntry {
  RegionKey key;
  int fd = -1;  ///< owned by the region, like the
  std::span<std::byte> bytes;
  std::vector<ShmEndpoint*> importers;  ///< who was given the descriptor
};

struct ShmAddress {
  AddressHeader header;
  std::string socket;  ///< abstract name, without the leading zero
  static Result<ShmAddress> parse(std::span<const std::byte> bytes);
  [[nodiscard]] Bytes bytes() const;
};

class ShmCore final : public ListeningCore<ShmEndpoint, Guest, ShmAddress> {
 public:
  static Result<std::shared_ptr<ShmCore>> create(const ShmOptions& options);

  [[nodiscard]] Result<void> reachable(const ShmAddress& peer) const;
  bool progress();
  bool arm();
  void disarm();
  void remove(ShmEndpoint* endpoint);

  SharedMemory door;
  std::unordered_map<std::uint64_t, RegionEntry> regions;

 private:
  [[nodiscard]] Door& my_door() const { return *static_cast<Door*>(door.mapping.base()); }
  [[nodiscard]] bool pending() const;
  bool look();
  bool invite(UniqueFd fd, std::uint64_t serial, Guest& guest) override;
  bool serve_guest(std::uint64_t serial) override;
};

}  // namespace cenote::transport::shm
