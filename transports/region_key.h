// What the transports put into a RemoteKey. The token is random: a peer reaches only regions whose key it was
// given. Ids are never used again, so an old key stays worthless.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>

#include "transports/transport.h"

namespace cenote::transport {

struct RegionKey {
  std::uint64_t owner = 0;   ///< id of the transport that made the region
  std::uint64_t region = 0;  ///< counts from 1
  std::uint64_t token = 0;
  std::uint64_t size = 0;

  [[nodiscard]] RemoteKey pack() const {
    RemoteKey key;
    std::memcpy(key.bytes.data(), this, sizeof *this);
    key.size = sizeof *this;
    return key;
  }
  static std::optional<RegionKey> unpack(const RemoteKey& key) {
    if (key.size != sizeof(RegionKey)) return std::nullopt;
    RegionKey out;
    std::memcpy(&out, key.bytes.data(), sizeof out);
    return out;
  }
};
static_assert(sizeof(RegionKey) == 32);

}  // namespace cenote::transport
