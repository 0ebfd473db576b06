// Commands: the decisions that make up the broker's log. A command says what was decided, never what was
// asked, so that a log replays to the same state whatever the load was and whichever scheduler decided.
//
// All times are Unix milliseconds. Whoever reads this file knows what can happen to a lease.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "pool/lease_token.h"

namespace cenote::pool {

/// A GPU as its agent describes it.
struct DeviceSpec {
  std::string uuid;   ///< unique in the pool
  std::string model;  ///< "H200"
  std::uint64_t memory_bytes = 0;
  std::uint32_t ordinal = 0;  ///< on its agent
  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

inline constexpr std::uint32_t kWholeDevice = 1000;  ///< compute, in thousandths of a device

/// What a lease holds of one device.
struct Share {
  std::string device;  ///< uuid
  std::string agent;
  std::uint64_t memory_bytes = 0;
  std::uint32_t compute_millis = kWholeDevice;
  std::uint64_t epoch = 0;  ///< fencing: the device's epoch after this grant
  bool held = true;         ///< false once the agent confirmed, or time proved, that nothing runs there
  friend bool operator==(const Share&, const Share&) = default;
};

/// Why a lease ended.
enum class EndCause : std::uint8_t {
  released,  ///< its client gave it back
  expired,   ///< nobody renewed it
  failed,    ///< a worker, a device or an agent died
};

namespace command {

/// A broker began to serve. Terms count from 1, without gaps: of two brokers on one log, one has the older.
struct StartTerm {
  std::uint64_t term = 0;
  std::int64_t grace_ms = 0;  ///< how long agents keep leases alive when the broker is silent
  std::int64_t drift_ms = 0;  ///< how far two clocks of the pool may differ
};

/// An agent joined, or came back. A new instance means that the agent's process is a new one: its workers
/// died with the old one, so leases that touch it end, and what they held there is free at once.
struct RegisterAgent {
  std::string name;
  std::string endpoint;
  std::string instance;
  std::vector<DeviceSpec> devices;
};

/// An agent fell silent: nothing new is placed there. Its leases go on.
struct LoseAgent {
  std::string name;
};

/// A silent agent of the same instance is heard again.
struct RecoverAgent {
  std::string name;
};

/// A lease. Each share carries its device's next epoch.
struct Grant {
  std::string lease_id;
  std::string request_id;  ///< unique for its client; the same one is granted once
  std::string client;
  PublicKey client_key{};
  std::int64_t expires_ms = 0;
  std::string note;
  std::string reason;  ///< the scheduler's
  std::vector<Share> shares;
};

/// A later expiry; never an earlier one. The proof's time must be later than that of the last one.
struct Renew {
  std::string lease_id;
  std::int64_t expires_ms = 0;
  std::int64_t proof_ms = 0;
};

/// The lease is over: agents are told to destroy its workers. Its shares stay held until they confirm.
struct End {
  std::string lease_id;
  EndCause cause = EndCause::released;
  std::string text;           ///< for people: "agent-b: worker was killed by signal 9"
  std::int64_t proof_ms = 0;  ///< for `released`
};

/// An agent says that nothing of this ended lease is left on its devices.
struct Confirm {
  std::string lease_id;
  std::string agent;
};

/// No confirmation came, but lease, grace and clock drift have passed: an agent that still lives, cut off,
/// has ended the lease by itself.
struct Reclaim {
  std::string lease_id;
};

}  // namespace command

using Command =
    std::variant<command::StartTerm, command::RegisterAgent, command::LoseAgent, command::RecoverAgent,
                 command::Grant, command::Renew, command::End, command::Confirm, command::Reclaim>;

/// What applying a command did; for logs and for those who wait.
struct Event {
  enum class Kind : std::uint8_t {
    term_started,
    agent_registered,
    agent_lost,
    agent_back,
    lease_granted,
    lease_renewed,
    lease_ended,   ///< workers are to be destroyed
    device_freed,  ///< of this lease's share; may be granted again
    lease_gone,    ///< every share is free, the lease is forgotten
  };
  Kind kind = Kind::term_started;
  std::string lease;
  std::string agent;
  std::string device;
  std::string text;
  friend bool operator==(const Event&, const Event&) = default;
};

}  // namespace cenote::pool
