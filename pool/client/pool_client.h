// The client of a pool: asks a broker for GPUs, keeps the lease, opens the leased GPUs as a cuda::Driver.
//
//   auto client = PoolClient::connect({.broker = "head:4700", .credentials = credentials});
//   auto lease = client->lease({.gpus = 4, .model = "H200"}, Deadline::in(10s));
//   auto gpus = lease->open(Deadline::in(10s));      a cuda::Driver with four devices
//   ...
//   lease->release(Deadline::in(5s));
//
// Every call has a deadline. A broker that cannot be reached is tried again until then; a refusal is final.
// Errors name the peer, the stage, the cause and what to do.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pool/client/lease_file.h"
#include "pool/remote/client_driver.h"
#include "pool/tls/credentials.h"
#include "runtime/deadline.h"
#include "runtime/result.h"
#include "transports/fabric.h"

namespace cenote::pool::client {

struct ClientOptions {
  std::string broker;  ///< host:port
  tls::Credentials credentials;
  transport::FabricOptions fabric{};
  Clock::duration call_timeout = std::chrono::seconds(5);           ///< of one try; a call makes several
  Clock::duration worker_timeout = remote::default_worker_timeout;  ///< see RemoteDriver::connect
};

struct LeaseSpec {
  std::uint32_t gpus = 1;
  std::string model;               ///< "" = any
  std::uint64_t memory_bytes = 0;  ///< per GPU; 0 = whole devices
  Clock::duration ttl{};           ///< 0 = the broker's default; counted in whole seconds
  std::string note;
  Clock::duration wait{};  ///< for GPUs that are held or being cleared: ask again so long
};

struct DeviceStatus {
  std::string uuid, model, agent;
  std::uint32_t ordinal = 0;  ///< on its agent
  std::uint64_t memory_bytes = 0, memory_used_bytes = 0, launches = 0;
  double utilisation = 0;
  std::string lease_id;  ///< "" = free
};
struct AgentState {
  std::string name, endpoint;
  bool alive = false;
  std::int64_t last_heartbeat_unix_ms = 0;
  std::vector<DeviceStatus> devices;
};
struct PoolState {
  std::vector<AgentState> agents;
  std::vector<LeaseInfo> leases;
  std::int64_t now_unix_ms = 0;
  std::uint64_t broker_term = 0;
};

/// A lease that is held. Renews itself on a thread of its own, over outages of the broker too, until released
/// or destroyed. Thread-safe. Destroying it without release() waits for nobody: the lease then ends with its
/// ttl.
class Lease {
 public:
  virtual ~Lease() = default;
  [[nodiscard]] virtual LeaseInfo info() const = 0;
  /// Why the scheduler chose these devices; "" for a lease from a file.
  [[nodiscard]] virtual const std::string& reason() const = 0;
  /// Set once the broker said that the lease is over.
  [[nodiscard]] virtual std::optional<Error> lost() const = 0;
  /// Set while an agent of the lease, or its worker there, is known to be gone: those GPUs are lost to their
  /// program, whatever it does now. The next opening clears it.
  [[nodiscard]] virtual std::optional<Error> session_lost() const = 0;
  /// For another process; holds the private key.
  [[nodiscard]] virtual LeaseFile file() const = 0;

  /// A session with each agent of the lease, for the holder of that fabric; ends an earlier session.
  virtual Result<std::vector<remote::WorkerAddress>> open_workers(
      std::span<const std::byte> client_fabric_address, Deadline deadline,
      const CancelFlag* cancel = nullptr) = 0;
  /// The leased GPUs as a driver: device i is info().devices[i]. `cancel` ends the opening, and outlives the
  /// driver: see RemoteDriver.
  virtual Result<std::unique_ptr<remote::RemoteDriver>> open(Deadline deadline,
                                                             const CancelFlag* cancel = nullptr) = 0;
  virtual Result<void> release(Deadline deadline, const CancelFlag* cancel = nullptr) = 0;
  /// Called once, from the lease's thread, when the lease is lost; at once where it is lost already. It may
  /// release the lease, not destroy it.
  virtual void on_loss(std::function<void(const Error&)> tell) = 0;
  /// Called from a thread of the lease for each session that is lost: within 3 s of the death of the agent or
  /// the worker, also while the program makes no GPU call; 20 s where a machine vanishes. It must not destroy
  /// the lease.
  virtual void on_session_loss(std::function<void(const Error&)> tell) = 0;
};

/// Thread-safe. Leases may outlive the client that made them.
class PoolClient {
 public:
  virtual ~PoolClient() = default;
  /// Makes the channel; the first call connects.
  static std::unique_ptr<PoolClient> connect(ClientOptions options);
  /// `deadline`: of the broker's first answer; while it waits for GPUs each answer has as long. Errors:
  /// resource_exhausted (no free GPU now), invalid_argument (the pool can never grant it), cancelled.
  virtual Result<std::unique_ptr<Lease>> lease(const LeaseSpec& spec, Deadline deadline,
                                               const CancelFlag* cancel = nullptr) = 0;
  /// Takes over a lease from a file. `renew`: keep it from now on.
  virtual Result<std::unique_ptr<Lease>> adopt(const LeaseFile& file, bool renew) = 0;
  virtual Result<std::vector<LeaseInfo>> leases(Deadline deadline, const CancelFlag* cancel = nullptr) = 0;
  virtual Result<PoolState> top(Deadline deadline, const CancelFlag* cancel = nullptr) = 0;
};

}  // namespace cenote::pool::client
