// The broker's state and the one function that changes it. No clock, no I/O, no thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pool/state/commands.h"
#include "runtime/bytes.h"
#include "runtime/result.h"

namespace cenote::pool {

struct Agent {
  std::string endpoint;
  std::string instance;
  bool alive = true;
  std::vector<std::string> devices;  ///< uuids, by ordinal
  friend bool operator==(const Agent&, const Agent&) = default;
};

/// A lease that holds a share of a device, with the share's epoch.
struct Holder {
  std::string lease;
  std::uint64_t epoch = 0;
  friend bool operator==(const Holder&, const Holder&) = default;
};

struct Device {
  DeviceSpec spec;
  std::string agent;
  bool present = true;      ///< false when its agent came back without it; the epoch is kept
  std::uint64_t epoch = 0;  ///< of the last grant
  std::uint64_t memory_held = 0;
  std::uint32_t compute_held = 0;
  std::vector<Holder> holders;  ///< in the order of their grants
  friend bool operator==(const Device&, const Device&) = default;
};

struct Lease {
  std::string request_id;
  std::string client;
  PublicKey client_key{};
  std::string note;
  std::string reason;
  std::int64_t granted_ms = 0;
  std::int64_t expires_ms = 0;
  std::int64_t ttl_ms = 0;    ///< as last granted or renewed
  std::int64_t hold_ms = 0;   ///< see last_renewal_ms(); 0 = granted or renewed in this term
  std::int64_t fence_ms = 0;  ///< after this time nothing of the lease can run anywhere
  std::int64_t proof_ms = 0;  ///< time of the last proof that was used
  std::vector<Share> shares;
  bool ended = false;
  EndCause cause = EndCause::released;
  std::string end_text;
  friend bool operator==(const Lease&, const Lease&) = default;
};

/// A request that was granted, remembered for a while after its lease is gone.
struct GrantedRequest {
  std::string lease_id;
  PublicKey client_key{};
  friend bool operator==(const GrantedRequest&, const GrantedRequest&) = default;
};

using RequestKey = std::pair<std::string, std::string>;  ///< client, request id

/// Ordered maps: one state has one encoding. Invariants: a device's held memory and compute are the sums over
/// held shares and within the device; epochs never fall; a lease with no held share is not there.
struct State {
  std::uint64_t term = 0;
  std::int64_t grace_ms = 0;
  std::int64_t drift_ms = 0;
  std::map<std::string, Agent> agents;
  std::map<std::string, Device> devices;
  std::map<std::string, Lease> leases;
  std::map<RequestKey, GrantedRequest> requests;
  std::deque<std::pair<std::int64_t, RequestKey>> ended_requests;  ///< in the order in which they ended
  friend bool operator==(const State&, const State&) = default;
};

/// Bounds on what a command may carry; what is outside is an invalid_argument.
inline constexpr std::size_t kMaxTextBytes = 512;
inline constexpr std::size_t kMaxDevicesPerAgent = 256;
inline constexpr std::size_t kMaxSharesPerLease = 16'384;
inline constexpr std::int64_t kLeastHoldMs = 10'000;  ///< what clients need to find a new broker
inline constexpr std::int64_t kRememberRequestsMs = 600'000;
inline constexpr std::size_t kRememberRequests = 65'536;

/// Validates and records. On an error (with its reason) the state is as before.
Result<std::vector<Event>> apply(State& state, const Command& command, std::int64_t now_ms);

/// From this time on the lease can no longer be renewed: its expiry. Nobody could renew a lease while there
/// was no broker, and agents keep it alive for the grace. So one from an earlier term may be renewed until
/// its ttl, at least kLeastHoldMs, has passed since this term began, but never after its expiry plus the
/// grace.
std::int64_t last_renewal_ms(const Lease& lease);

/// The lowest epoch that a token for this device may carry: below it every lease has ended. Never falls.
std::uint64_t floor_of(const State& state, const std::string& device);

/// One encoding for each state and command, with the version of the format in front.
Bytes encode(const State& state);
Bytes encode(const Command& command);
/// Errors: protocol_error.
Result<State> decode_state(std::span<const std::byte> bytes);
Result<Command> decode_command(std::span<const std::byte> bytes);

}  // namespace cenote::pool
