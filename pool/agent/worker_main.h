// The worker process: what `cenote worker` runs.
#pragma once

#include <sys/types.h>

#include <memory>

#include "cuda/driver.h"
#include "pool/agent/worker_host.h"
#include "pool/remote/worker.h"
#include "runtime/log.h"
#include "transports/fabric.h"

namespace cenote::pool::agent {

/// Reads its setup from kWorkerFd, serves the lease's session until the client leaves or the agent ends it,
/// and returns the exit code. `parent`: the agent; the worker dies with it.
int worker_main(pid_t parent);

/// What serves a lease's session; each uses those before it.
struct PreparedWorker {
  std::unique_ptr<Logger> log;
  std::unique_ptr<cuda::Driver> driver;
  std::unique_ptr<transport::Fabric> fabric;
  std::unique_ptr<remote::Worker> worker;
};
/// Where a worker's lines go. Errors: of the log's file.
Result<std::unique_ptr<Logger>> worker_log(const WorkerSetup& setup);
/// Errors: of the driver, the fabric, the worker.
Result<PreparedWorker> prepare_worker(const WorkerSetup& setup, std::unique_ptr<Logger> log);

}  // namespace cenote::pool::agent
