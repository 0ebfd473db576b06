// WorkerHost: the seam between the agent's rules and the processes that do the work. worker_process.h is the
// real one; tests put their own in its place.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "pool/agent/cage.h"
#include "pool/lease_token.h"
#include "pool/remote/worker.h"
#include "runtime/bytes.h"
#include "runtime/deadline.h"
#include "runtime/log.h"
#include "runtime/result.h"

namespace cenote::pool::agent {

/// One GPU that the agent serves.
struct LocalDevice {
  std::string uuid;  ///< 32 hex digits
  std::string model;
  std::uint64_t memory_bytes = 0;
  std::uint32_t ordinal = 0;  ///< of the driver that DriverSpec describes
};

struct EmulatedCard {
  std::string model;
  std::uint64_t memory_bytes = 0;
};

/// Which driver agent and workers open: the machine's CUDA driver, or emulated cards. All workers of an agent
/// open the same one, so that ordinals and uuids agree.
struct DriverSpec {
  std::string machine;                 ///< emulated uuids are a function of it
  std::vector<EmulatedCard> emulated;  ///< empty = the machine's CUDA driver
  std::uint64_t seed = 0;
  bool adversarial = false;
};

/// Everything a worker needs; travels to it as bytes (worker_wire.h).
struct WorkerSetup {
  std::string lease_id;
  std::string client;
  std::uint64_t generation = 0;  ///< tells two workers of one lease apart
  DriverSpec driver;
  std::vector<LocalDevice> devices;  ///< in the order in which the client counts them
  std::vector<std::uint64_t> memory_limits;
  transport::FabricOptions fabric{};
  remote::CollectiveOptions collectives{};
  Bytes client_fabric_address;
  std::uint32_t channel = 0;
  LogOptions log{};  ///< where the worker's lines go; without component and sink
  Cage cage{};       ///< set by the host
};

struct DeviceUse {
  std::uint64_t memory_used = 0, launches = 0, busy_ns = 0;
};

/// How a worker ended. `failed`: it crashed, or was killed by somebody else; otherwise the session is over
/// but the lease may be opened again.
struct WorkerExit {
  bool failed = false;
  std::string reason;
};

class WorkerHost {
 public:
  /// Called from the host's own thread, exactly once for each start(), also for one that failed, after the
  /// process was reaped (its memory is free). Never called from inside start() or stop().
  using OnExit =
      std::function<void(const std::string& lease_id, std::uint64_t generation, const WorkerExit& exit)>;

  virtual ~WorkerHost() = default;
  /// Starts a worker and waits until it listens: its fabric address. When it fails, the process is gone or
  /// going. Thread-safe.
  virtual Result<Bytes> start(const WorkerSetup& setup, Deadline deadline) = 0;
  /// Asks the worker to end, and kills it when it does not within a short grace. Returns at once; OnExit
  /// tells.
  virtual void stop(const std::string& lease_id, std::uint64_t generation) = 0;
  /// The last report of a worker: by device, in the setup's order; empty when there is none.
  [[nodiscard]] virtual std::vector<DeviceUse> load(const std::string& lease_id,
                                                    std::uint64_t generation) const = 0;
};

}  // namespace cenote::pool::agent
