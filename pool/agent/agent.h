// An agent: this machine's GPUs, offered to the pool. Opens the devices, locks them, serves clients over
// gRPC, keeps the broker informed. `cenote agent` holds one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pool/agent/cage_plan.h"
#include "pool/agent/worker_host.h"
#include "pool/tls/credentials.h"
#include "runtime/deadline.h"
#include "runtime/result.h"

namespace cenote {
class Logger;
}

namespace cenote::pool::agent {

struct AgentOptions {
  std::string name;  ///< that of its certificate
  std::string listen = "127.0.0.1:0";
  std::string advertise;  ///< host:port told to clients; "" = where it listens
  std::string broker;
  std::vector<std::string> devices;         ///< as in the setting agent.devices
  transport::FabricOptions fabric{};        ///< of the workers
  remote::CollectiveOptions collectives{};  ///< of the ranks in the workers
  LogOptions log{};                         ///< of the workers
  std::string metrics{};                    ///< host:port that Prometheus asks; "" = none
  std::uint64_t emulator_seed = 0;
  bool emulator_adversarial = false;
  std::int64_t clock_drift_ms = 0;
  /// As for clients (RemoteDriver::connect), so that they name a hung worker first: the agent kills it after
  /// twice that.
  Clock::duration worker_timeout = std::chrono::seconds(10);
  CageOptions cage{};  ///< of the workers
  std::string worker_executable = "/proc/self/exe";
  tls::Credentials credentials;
};

/// Thread-safe. Destroying one without stop() kills its workers and tells nobody.
class Agent {
 public:
  virtual ~Agent() = default;
  /// Returns when clients can connect; registering goes on in the background. `log` outlives the agent.
  /// Errors: already_exists (port in use, GPU served by another agent), not_found (no CUDA driver),
  /// invalid_argument (devices, agent.cage.users), permission_denied (a cage that agent.cage.require asks
  /// for).
  static Result<std::unique_ptr<Agent>> start(AgentOptions options, Logger& log);
  /// Where clients reach it.
  [[nodiscard]] virtual const std::string& endpoint() const = 0;
  /// Where the metrics are; "" = nowhere.
  [[nodiscard]] virtual std::string metrics_address() const = 0;
  [[nodiscard]] virtual const std::vector<LocalDevice>& devices() const = 0;
  /// Waits for the first registration. Errors: the last reason why it failed; deadline_exceeded, cancelled.
  virtual Result<void> wait_registered(Deadline deadline, const CancelFlag* cancel) = 0;
  /// Takes no more clients, ends every worker, tells the broker.
  virtual void stop(Deadline deadline) = 0;
};

}  // namespace cenote::pool::agent
