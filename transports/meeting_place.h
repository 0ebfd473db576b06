// MeetingPlace: the socket where a transport listens, as its address tells it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "transports/handshake.h"

namespace cenote::transport {

struct MeetingPlace {
  std::string host;  ///< numeric
  std::uint16_t port = 0;
  [[nodiscard]] bool loopback() const { return host.starts_with("127.") || host == "::1"; }
};

/// Whether two transports can meet at their sockets: on loopback only those of one host and network
/// namespace. `over` names the transport. Errors: not_supported.
Result<void> can_meet(const HostIdentity& here, const MeetingPlace& mine, const HostIdentity& there,
                      const MeetingPlace& theirs, std::string_view over);

/// An address that is a header and a meeting place.
struct MeetingAddress {
  AddressHeader header;
  MeetingPlace place;
  /// Errors: invalid_argument (not one of `kind`).
  static Result<MeetingAddress> parse(std::span<const std::byte> bytes, std::string_view kind);
  [[nodiscard]] Bytes bytes() const;
};

}  // namespace cenote::transport
