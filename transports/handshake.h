// How two transports prove to each other that they know the other's address, whatever the connection is made
// of. A transport's address carries a random secret of 128 bits; the secret itself never crosses the wire.
//
//   acceptor → dialer   Challenge  nonce_a
//   dialer → acceptor   Hello      dialer's id, channel, nonce_d, MAC(secret_a; dial, nonces, ids, channel)
//   acceptor → dialer   Welcome    MAC(secret_d; accept, nonces, ids, channel)
//
// The acceptor sends Welcome when its own side has called connect() with the dialer's address, so both sides
// know that the other was meant. The transport with the greater id dials.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/bytes.h"
#include "runtime/host_identity.h"
#include "runtime/result.h"
#include "transports/peer_process.h"

namespace cenote::transport {

using Secret = std::array<std::uint8_t, 16>;
using Nonce = std::array<std::uint8_t, 16>;
using Mac = std::array<std::uint8_t, 16>;

/// SipHash-2-4 with 128 bits of output (Aumasson, Bernstein 2012): a keyed pseudorandom function.
Mac siphash128(const Secret& key, std::span<const std::byte> data);

/// The fields that begin every transport's address.
struct AddressHeader {
  std::string kind;  ///< "shm", "tcp"
  std::uint64_t id = 0;
  Secret secret{};
  HostIdentity host;
  ProcessMark process;

  void pack(Writer& out) const;
  /// Reads a header of that kind. Errors: invalid_argument.
  static Result<AddressHeader> unpack(Reader& in, std::string_view kind);
  /// A new identity: random id and secret, this host.
  static Result<AddressHeader> make(std::string kind);
};

struct Challenge {
  static constexpr std::size_t size = 24;
  Nonce nonce{};
};
struct Hello {
  static constexpr std::size_t size = 48;
  std::uint64_t dialer = 0;
  std::uint32_t channel = 0;
  Nonce nonce{};
  Mac proof{};
};

Bytes pack(const Challenge& message);
Bytes pack(const Hello& message);
/// nullopt: the bytes are no such message (other program, other version).
std::optional<Challenge> unpack_challenge(std::span<const std::byte> bytes);
std::optional<Hello> unpack_hello(std::span<const std::byte> bytes);

enum class Side : std::uint8_t { dialer = 1, acceptor = 2 };
/// What `side` must show: made with the secret of the other side.
Mac proof_of(Side side, const Secret& secret, const Nonce& acceptor_nonce, const Hello& hello,
             std::uint64_t acceptor);

}  // namespace cenote::transport
