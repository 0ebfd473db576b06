// The worker process: what `cenote worker` runs.
#pragma once

#include <sys/types.h>

namespace cenote::pool::agent {

/// Reads its setup from kWorkerFd, serves the lease's session until the client leaves or the agent ends it,
/// and returns the exit code. `parent`: the agent; the worker dies with it.
int worker_main(pid_t parent);

}  // namespace cenote::pool::agent
