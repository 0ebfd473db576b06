// Telling whoever started a broker or an agent that it listens, and where.
#pragma once

#include <string>

#include "runtime/result.h"

namespace cenote::pool::cli {

/// Writes `endpoint` and a newline to descriptor `fd` and closes it; -1 = nobody asked.
Result<void> tell_ready(int fd, const std::string& endpoint);

}  // namespace cenote::pool::cli
