// Runs Debian's ucx_perftest, server and client pinned like our own two processes.
#pragma once

#include <string>

#include "perf/two_processes.h"
#include "runtime/result.h"

namespace cenote::perf {

struct UcxRun {
  std::string transports;  ///< UCX_TLS
  std::string test;        ///< "ucp_put_lat", "ucp_put_bw"
  std::size_t bytes = 8;
  int iterations = 1000;
  int warmup = 100;
};

struct UcxResult {
  double latency_us = 0;      ///< half a round trip, overall
  double bandwidth_gbps = 0;  ///< 10^9 bytes a second, overall
};

/// Errors: not_found (with the Debian package that brings it), peer_failed (it ran and printed no result).
Result<UcxResult> run_ucx(const UcxRun& run, const Processors& processors);

}  // namespace cenote::perf
