// Gate: holds an operation's buffers back until what was asked for before, elsewhere, is done.
#pragma once

#include <functional>

#include "runtime/result.h"

namespace cenote::collectives {

/// Whether the buffers may be touched. Asked by the thread that progresses the operation until it says true,
/// or fails, which ends the operation.
using Gate = std::function<Result<bool>()>;

}  // namespace cenote::collectives
