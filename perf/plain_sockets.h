// What the machine's loopback can do at most: blocking sockets, one process writing, one reading.
#pragma once

#include "perf/two_processes.h"

namespace cenote::perf {

/// 10^9 bytes a second for `count` writes of `bytes`, until the reader confirms the last.
Result<double> plain_socket_bandwidth(const Processors& processors, std::size_t bytes, int count);

}  // namespace cenote::perf
