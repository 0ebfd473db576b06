// ShmCore: what the shared-memory transport, its endpoints and its regions share. It lives as long as any of
// them, so they may be destroyed in any order.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/deadline.h"
#include "transports/handshake.h"
#include "transports/region_key.h"
#include "transports/shm/control_channel.h"
#include "transports/shm/layout.h"
#include "transports/shm/mapping.h"
#include "transports/shm/shm.h"

namespace cenote::transport::shm {

class ShmEndpoint;

/// Somebody who dialed and is not (yet) an endpoint's: before his proof, or before connect() was called for
/// him.
struct Guest {
  ControlChannel channel;
  Nonce nonce{};
  Clock::time_point since;
  bool proved = false;
  Hello hello;
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

class ShmCore {
 public:
  static Result<std::shared_ptr<ShmCore>> create(const ShmOptions& options);

  [[nodiscard]] Result<void> reachable(const AddressHeader& peer) const;
  bool progress();
  bool arm();
  void disarm();
  void interrupt();
  /// Fails every endpoint; nothing is served any more.
  void shut();

  void add(ShmEndpoint* endpoint);
  void remove(ShmEndpoint* endpoint);
  /// Watches a socket; `serial` comes back with its events.
  Result<void> watch(int fd, std::uint64_t serial);
  /// A guest who proved to be `dialer`, asking for `channel`; it is handed over.
  bool take_guest(std::uint64_t dialer, std::uint32_t channel, std::uint64_t& serial, Guest& out);
  void log_debug(const std::string& text) const;

  ShmOptions options;
  ShmAddress self;
  Bytes address;
  SharedMemory door;
  UniqueFd epoll, listener, wakeup;
  std::unordered_map<std::uint64_t, RegionEntry> regions;
  std::vector<ShmEndpoint*> endpoints;
  std::uint64_t next_region = 1;
  std::uint64_t next_serial = 16;
  bool happened = false;        ///< since the last progress()
  bool look_at_sockets = true;  ///< at the next progress()

 private:
  [[nodiscard]] Door& my_door() const { return *static_cast<Door*>(door.mapping.base()); }
  [[nodiscard]] bool pending() const;
  bool look();
  void accept_guests();
  void serve_guest(std::uint64_t serial);
  void greet(std::uint64_t serial, Guest& guest);
  void drop_stale_guests();

  std::unordered_map<std::uint64_t, Guest> guests_;
  std::atomic<bool> interrupted_{false};
  unsigned ticks_ = 0;
  Clock::time_point next_look_{};
};

}  // namespace cenote::transport::shm
