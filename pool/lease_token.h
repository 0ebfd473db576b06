// Lease tokens: a lease as a signed capability. The broker signs (Ed25519), agents verify with the broker's
// public key alone. The token is bound to the client's public key; whoever presents it proves that it holds
// the private one.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/bytes.h"
#include "runtime/result.h"

namespace cenote::pool {

using PublicKey = std::array<std::uint8_t, 32>;

/// An Ed25519 key pair (RFC 8032), through OpenSSL. Movable; wipes the private half when destroyed.
class KeyPair {
 public:
  static Result<KeyPair> generate();
  static Result<KeyPair> from_private(std::span<const std::uint8_t> private_key);  ///< 32 bytes
  [[nodiscard]] const PublicKey& public_key() const { return public_; }
  [[nodiscard]] std::array<std::uint8_t, 32> private_key() const { return private_; }
  [[nodiscard]] Result<Bytes> sign(std::span<const std::byte> message) const;  ///< 64 bytes
  KeyPair(KeyPair&& other) noexcept;
  KeyPair& operator=(KeyPair&& other) noexcept;
  KeyPair(const KeyPair&) = delete;
  KeyPair& operator=(const KeyPair&) = delete;
  ~KeyPair();

 private:
  KeyPair() = default;
  std::array<std::uint8_t, 32> private_{};
  PublicKey public_{};
};

/// Errors: permission_denied when the signature is not that key's over that message.
Result<void> verify(const PublicKey& key, std::span<const std::byte> message,
                    std::span<const std::byte> signature);

enum class Isolation : std::uint8_t { time_slice = 0, mps = 1, mig = 2 };

struct TokenDevice {
  std::string uuid;
  std::string agent;
  std::uint64_t memory_bytes = 0;
  std::uint32_t compute_share_millis = 1000;  ///< of 1000
  std::uint64_t epoch = 0;                    ///< fencing epoch of that device
  friend bool operator==(const TokenDevice&, const TokenDevice&) = default;
};

struct LeaseToken {
  std::string lease_id;
  std::string client;
  PublicKey client_key{};
  Isolation isolation = Isolation::time_slice;
  std::int64_t not_before_unix_ms = 0;
  std::int64_t expires_unix_ms = 0;
  std::vector<TokenDevice> devices;
  friend bool operator==(const LeaseToken&, const LeaseToken&) = default;
};

/// The bytes that travel: version, fields, signature over both.
Result<Bytes> seal(const LeaseToken& token, const KeyPair& broker);
/// Checks the signature first, then decodes. Errors: permission_denied (signature), protocol_error (bytes).
Result<LeaseToken> unseal(std::span<const std::byte> sealed, const PublicKey& broker);

/// Whether the token is in force at `now`. Its begin may lie `drift_ms` ahead (the broker's clock may be
/// fast); its end is strict: the broker counts on it, and adds the drift itself before it grants a device
/// again. An agent passes the expiry that the broker last told it, where that is later than the token's.
/// Errors: permission_denied, with the difference.
Result<void> check_in_force(const LeaseToken& token, std::int64_t expires_unix_ms, std::int64_t now_unix_ms,
                            std::int64_t drift_ms);

/// What a client signs to show that it holds the lease's private key: purpose ("open", "renew", "release",
/// "close"), the lease, the audience (the agent's name, or "broker") and the time, so that a proof seen once
/// is worth nothing elsewhere or later.
Bytes proof_message(std::string_view purpose, std::string_view lease_id, std::string_view audience,
                    std::int64_t unix_ms);

/// How far a proof's time may lie from the verifier's.
inline constexpr std::int64_t kProofWindowMs = 60'000;

/// A signature and the time it names, as a request carries them.
struct Proof {
  std::int64_t unix_ms = 0;
  Bytes signature;
};

/// For clients: signs for one request. Each attempt, also a retry, needs a proof of its own, later than the
/// last.
Result<Proof> make_proof(const KeyPair& client, std::string_view purpose, std::string_view lease_id,
                         std::string_view audience, std::int64_t now_unix_ms);

/// For verifiers: signature and time window; says nothing about replays. Errors: permission_denied.
Result<void> check_proof(const PublicKey& client, std::string_view purpose, std::string_view lease_id,
                         std::string_view audience, const Proof& proof, std::int64_t now_unix_ms);

/// check_proof, and no proof twice: for one lease and purpose the times must grow. Remembers one time for
/// each, and only for as long as the window makes it useful. Thread-safe.
class ProofGuard {
 public:
  explicit ProofGuard(std::string audience) : audience_(std::move(audience)) {}
  Result<void> admit(const PublicKey& client, std::string_view purpose, std::string_view lease_id,
                     const Proof& proof, std::int64_t now_unix_ms);
  [[nodiscard]] std::size_t remembered() const;

 private:
  std::string audience_;
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::int64_t> last_;
};

}  // namespace cenote::pool
