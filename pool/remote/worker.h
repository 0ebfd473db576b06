// The worker: serves one lease's devices to one client over one endpoint. The agent runs it as a process of
// its own (`cenote worker`, not for people); tests run it on a thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "runtime/deadline.h"
#include "transports/fabric.h"

namespace cenote::pool::remote {

/// Of every communicator whose rank a worker is.
struct CollectiveOptions {
  std::string algorithm = "auto";  ///< of allreduce; the same at all ranks, or their group does not form
  Clock::duration timeout = std::chrono::seconds(30);  ///< of one operation
};

struct WorkerOptions {
  std::string lease_id;
  std::vector<cuda::DeviceId> devices;       ///< ordinals of `driver`, in the order the client counts them
  std::vector<std::uint64_t> memory_limits;  ///< bytes per device; the client gets out_of_memory beyond
  Bytes client_fabric_address;
  std::uint32_t channel = 0;
  Clock::duration connect_timeout = std::chrono::seconds(10);
  /// For the ranks of pooled communicators: each has a fabric of its own, made with these. Its tcp_host is
  /// also where rank 0's worker listens for the others.
  transport::FabricOptions rank_fabric{};
  CollectiveOptions collectives{};
  /// What the images of the session's modules may take of this process's memory, together and decompressed;
  /// the client gets out_of_memory beyond.
  std::uint64_t module_bytes = std::uint64_t{512} << 20;
};

/// What the agent reports of a worker; readable while it serves.
struct WorkerLoad {
  struct PerDevice {
    std::uint64_t memory_used = 0, launches = 0, busy_ns = 0;
  };
  std::vector<PerDevice> devices;
};

class Worker {
 public:
  /// Ends the devices' contexts with whatever of the session still runs in them; see settled().
  virtual ~Worker() = default;
  /// `driver` and `fabric` outlive the worker, which alone uses the devices' primary contexts. The fabric's
  /// address is what the client connects to.
  static Result<std::unique_ptr<Worker>> create(cuda::Driver& driver, transport::Fabric& fabric,
                                                WorkerOptions options);
  /// Serves until the client closes (success), vanishes (peer_failed) or `cancel` is raised (cancelled),
  /// once. Decoding is bounds-checked: malformed commands end the session with protocol_error, never the
  /// process. On return everything that the client made on the devices is gone, unless a device did not come
  /// to the end of its work in 5 s. Sleeps in the kernel while idle.
  virtual Result<void> serve(const CancelFlag& cancel) = 0;
  /// After serve(): whether the devices have finished. If not, the destructor ends their contexts under the
  /// work, and a real driver takes its time for that while a kernel runs: a process may rather exit.
  [[nodiscard]] virtual bool settled() const = 0;
  /// Thread-safe.
  [[nodiscard]] virtual WorkerLoad load() const = 0;
};

}  // namespace cenote::pool::remote
