// The pool for a program without gRPC: leases that a helper process (`cenote session`) asks for, renews and
// gives back, and the leased GPUs as a driver of this process. What helper and workers are to each other:
// docs/remote-cuda.md, "Without gRPC in the program".
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pool/dropin/helper_wire.h"
#include "pool/remote/client_driver.h"
#include "runtime/deadline.h"
#include "runtime/result.h"
#include "transports/fabric.h"

namespace cenote::pool::dropin {

class HelperChannel;

/// How this process reaches the workers.
struct WorkOptions {
  transport::FabricOptions fabric{};
  Clock::duration worker_timeout = remote::default_worker_timeout;  ///< see RemoteDriver::connect
};

/// A lease that the helper keeps. Thread-safe. Its pool may go before it. Destroying it stops the renewals
/// and waits for nobody.
class HelperLease {
 public:
  HelperLease(std::shared_ptr<HelperChannel> channel, LeaseReply granted, WorkOptions work);
  ~HelperLease();
  HelperLease(const HelperLease&) = delete;
  HelperLease& operator=(const HelperLease&) = delete;

  [[nodiscard]] const std::string& id() const { return granted_.id; }
  /// Device i of the driver that open() gives.
  [[nodiscard]] const std::vector<LeasedGpu>& gpus() const { return granted_.gpus; }
  /// Why it is not held any more: released, lost, or the helper is gone. Never waits.
  [[nodiscard]] std::optional<Error> lost() const;
  /// Ends an earlier session of the lease.
  Result<std::unique_ptr<remote::RemoteDriver>> open(Deadline deadline);
  /// Errors: not_found (released before).
  Result<void> release(Deadline deadline);

 private:
  [[nodiscard]] Error released_before(std::string stage) const;

  const std::shared_ptr<HelperChannel> channel_;
  const LeaseReply granted_;
  const WorkOptions work_;
  std::atomic<bool> released_{false};
};

/// One helper and its pool. Thread-safe. The helper lives until the pool and all its leases are destroyed, or
/// this process is gone.
class HelperPool {
 public:
  /// `program`: the helper, see find_helper(). `settings`: "name=value", all that the helper knows. Errors:
  /// not_found, permission_denied and others of the certificates, invalid_argument, peer_failed (the program
  /// does not start: its last words).
  static Result<std::unique_ptr<HelperPool>> connect(const std::string& program,
                                                     std::vector<std::string> settings, WorkOptions work,
                                                     Deadline deadline);
  Result<std::unique_ptr<HelperLease>> lease(LeaseAsk ask, Deadline deadline);
  /// `file`: what `cenote lease --detach` printed.
  Result<std::unique_ptr<HelperLease>> adopt(std::string file, Deadline deadline);

 private:
  HelperPool(std::shared_ptr<HelperChannel> channel, WorkOptions work);
  Result<std::unique_ptr<HelperLease>> granted(Ask ask, Deadline deadline);

  const std::shared_ptr<HelperChannel> channel_;
  const WorkOptions work_;
};

}  // namespace cenote::pool::dropin
