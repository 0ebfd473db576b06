// Bare UCX: the least program that does with UCP what our transport does with it. Active messages of a header
// and a payload that the receiver puts in place.
#pragma once

#include <string>

#include "perf/two_processes.h"

namespace cenote::perf {

/// UCX as it comes, but for which of its transports it uses; or set as our transport sets it, so that it
/// survives a lost peer and memory that is unmapped.
enum class PlainUcx : bool { as_it_comes, with_our_settings };

/// Half a round trip of 8 bytes, in microseconds.
Result<double> plain_ucx_latency(const Processors& processors, const std::string& tls, PlainUcx settings,
                                 int iterations);
/// 10^9 bytes a second for `count` messages of `bytes`, until the receiver confirms the last.
Result<double> plain_ucx_bandwidth(const Processors& processors, const std::string& tls, PlainUcx settings,
                                   std::size_t bytes, int count);

}  // namespace cenote::perf
