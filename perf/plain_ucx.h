// Bare UCX: the least program that does with UCP what our transport does with it. Active messages of a header
// and a payload that the receiver puts in place; UCX as it comes, but for which of its transports it uses.
#pragma once

#include <string>

#include "perf/two_processes.h"

namespace cenote::perf {

/// Half a round trip of 8 bytes, in microseconds.
Result<double> plain_ucx_latency(const Processors& processors, const std::string& tls, int iterations);
/// 10^9 bytes a second for `count` messages of `bytes`, until the receiver confirms the last.
Result<double> plain_ucx_bandwidth(const Processors& processors, const std::string& tls, std::size_t bytes,
                                   int count);

}  // namespace cenote::perf
