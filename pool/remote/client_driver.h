// The remote client: a cuda::Driver whose devices are leased GPUs on other processes and machines.
//
// Calls with no result are batched and never wait; handles are chosen by the client; device addresses lie in
// a range agreed with each worker, disjoint for each device. Errors surface where CUDA lets them. When a
// worker is lost, every call on its devices returns launch_failed and last_error_detail() names device and
// peer; the other devices go on. docs/remote-cuda.md says which call waits for what.
//
// A batch leaves when it is full, when a call needs an answer, and when the batch before it left more than 50
// us ago. The driver has no thread: what a program issued in the last 50 us before it stops calling the
// driver stays batched until its next call, or flush(). Host functions run inside the program's next calls.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "runtime/deadline.h"
#include "runtime/types.h"
#include "transports/fabric.h"

namespace cenote::pool::remote {

/// One worker that was opened for this client: how to reach it and what it serves.
struct WorkerAddress {
  Bytes fabric_address;  ///< the worker's Fabric::address()
  std::uint32_t channel = 0;
  std::string peer;  ///< "lease 7f3a on agent-b (10.0.0.7:4701)", for errors
  std::vector<std::string>
      device_names;  ///< in the worker's order of ordinals, for errors: "lease 7f3a gpu 2 (H200 on agent-b)"
};

/// How long a worker may say nothing, when asked, before it counts as hung.
inline constexpr Clock::duration default_worker_timeout = std::chrono::seconds(10);

struct RemoteStats {
  std::uint64_t bytes_sent = 0;  ///< commands and data from the client to the workers
  std::uint64_t bytes_received = 0;
  std::uint64_t launches = 0;
  std::uint64_t commands = 0;
  std::uint64_t batches = 0;
  std::uint64_t signs_of_life = 0;      ///< that workers gave while they were waited for
  std::vector<std::string> transports;  ///< by worker
};

/// One rank pair of a pooled communicator, as its workers counted.
struct PairStats {
  std::uint32_t from, to;
  std::string transport;
  std::uint64_t bytes_sent;
};

/// A group of leased devices that reduce among themselves: the workers exchange directly, the client only
/// says what to do. Its calls are ordered in the given streams like any other work. Thread-safe as the
/// driver.
class RemoteCommunicator {
 public:
  virtual ~RemoteCommunicator() = default;
  [[nodiscard]] virtual std::size_t size() const = 0;
  /// One buffer, and one stream, for each rank. Returns when the commands are issued. Failures surface at the
  /// next synchronisation of a stream of that rank, and in `failure`.
  virtual Result<void> allreduce(const std::vector<cuda::DevicePtr>& send,
                                 const std::vector<cuda::DevicePtr>& recv, std::size_t count, DataType type,
                                 ReduceOp op, const std::vector<cuda::Stream>& streams) = 0;
  virtual Result<void> broadcast(const std::vector<cuda::DevicePtr>& buffers, std::size_t count,
                                 DataType type, std::uint32_t root,
                                 const std::vector<cuda::Stream>& streams) = 0;
  /// The first failure of the group, with the rank named; nullopt while it is well. Asks the workers.
  virtual std::optional<Error> failure() = 0;
  virtual Result<std::vector<PairStats>> stats() = 0;
};

class RemoteDriver : public cuda::Driver {
 public:
  /// Connects to every worker; device ordinals count through the workers in order. `deadline` bounds the
  /// setting up; raising `cancel` (may be null, outlives the driver) ends every wait, and all workers count
  /// as lost. So does one that is stopped or hung, after `worker_timeout` of silence in calls that wait (or
  /// failure()); however long a kernel runs, its worker answers.
  static Result<std::unique_ptr<RemoteDriver>> connect(
      std::unique_ptr<transport::Fabric> fabric, const std::vector<WorkerAddress>& workers, Deadline deadline,
      const CancelFlag* cancel = nullptr, Clock::duration worker_timeout = default_worker_timeout);
  /// `devices`: one ordinal for each rank; the same device may serve several ranks.
  virtual Result<std::unique_ptr<RemoteCommunicator>> communicator(const std::vector<cuda::DeviceId>& devices,
                                                                   Deadline deadline) = 0;
  [[nodiscard]] virtual RemoteStats remote_stats() const = 0;
  /// Sends what is batched. Every call that waits does so by itself.
  virtual Result<void> flush() = 0;
  /// The first failure of a worker, with its device and peer; nullopt while all are well. Progresses, never
  /// blocks: call it now and then while idle, to hear of a lost worker.
  virtual std::optional<Error> failure() = 0;
};

}  // namespace cenote::pool::remote
