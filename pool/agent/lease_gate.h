// LeaseGate: whether this agent serves a lease, decided from the token and the client's proof alone. Nobody
// is asked, no clock is read: the caller says what time it is and how the broker's last contact went.
//
// Fencing: the epoch of a device grows with every grant. A lease is fenced, for good, when the broker has
// raised the floor above its epoch, or when a lease of a higher epoch was seen that cannot hold its share
// beside it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "pool/lease_token.h"
#include "runtime/result.h"

namespace cenote::pool::agent {

struct GateOptions {
  std::string agent;                             ///< this agent's name: the audience of proofs
  std::map<std::string, std::uint64_t> devices;  ///< what it serves: memory by uuid
  std::int64_t clock_drift_ms = 0;               ///< how far the clocks of broker and agent may lie apart
};

/// What a client shows: the sealed token, and the signature of proof_message(purpose, lease, agent, time).
struct Claim {
  std::span<const std::byte> token;
  std::span<const std::byte> proof;
  std::int64_t proof_unix_ms = 0;
};

struct GateClock {
  std::int64_t now_unix_ms = 0;
  std::int64_t outage_grace_ms = 0;  ///< added to every expiry while the broker cannot be reached; else 0
};

/// Not thread-safe. Errors are permission_denied with the exact reason, or protocol_error for bytes that are
/// no token.
class LeaseGate {
 public:
  explicit LeaseGate(GateOptions options);

  /// The key that tokens are checked with. Until it is known nothing is admitted.
  void trust(const PublicKey& broker);
  /// The broker's word that every lease of that device below this epoch has ended: also after a restart of
  /// the agent, which has seen none of them.
  void raise_floor(const std::string& uuid, std::uint64_t epoch);
  /// The broker prolonged a lease.
  void renewed(const std::string& lease_id, std::int64_t expires_unix_ms);
  /// The lease is over, whatever its token says; remembered until `forget_unix_ms`.
  void ended(const std::string& lease_id, std::string reason, std::int64_t forget_unix_ms);

  /// Checks signature, expiry, devices, epochs and the proof for "open"; then remembers shares and proof.
  Result<LeaseToken> open(const Claim& claim, const GateClock& clock);
  /// Checks the proof of a lease that was opened here before.
  Result<void> close(const LeaseToken& token, std::span<const std::byte> proof, std::int64_t proof_unix_ms,
                     const GateClock& clock);

  /// An admitted token can go bad later: its lease ended, or a device was granted again.
  [[nodiscard]] Result<void> still_good(const LeaseToken& token) const;
  /// When the lease ends, renewals counted.
  [[nodiscard]] std::int64_t expires_unix_ms(const LeaseToken& token) const;
  /// Whether two shares of one device cannot be held at once: then the one of the lower epoch has ended.
  [[nodiscard]] bool exclude_each_other(const TokenDevice& a, const TokenDevice& b) const;
  /// Drops what can no longer matter.
  void forget(std::int64_t now_unix_ms);

 private:
  struct Ended {
    std::string reason;
    std::int64_t forget_unix_ms;
  };

  [[nodiscard]] Result<void> check_ended(const LeaseToken& token) const;
  [[nodiscard]] Result<void> check_devices(const LeaseToken& token) const;
  [[nodiscard]] Result<void> check_fence(const LeaseToken& token, const TokenDevice& device) const;
  void remember(const TokenDevice& device);

  GateOptions options_;
  std::vector<PublicKey> broker_;                         ///< empty or one
  std::map<std::string, std::uint64_t> floors_;           ///< by device uuid
  std::map<std::string, std::vector<TokenDevice>> seen_;  ///< shares admitted, by device uuid
  std::map<std::string, std::int64_t> renewals_;          ///< by lease
  std::map<std::string, Ended> ended_;                    ///< by lease
  ProofGuard proofs_;
};

}  // namespace cenote::pool::agent
