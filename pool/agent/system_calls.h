// The system calls that a worker may make.
#pragma once

#include <cstddef>

#include "runtime/result.h"

namespace cenote::pool::agent {

/// Refuses all others from now on, in every thread of this process: EPERM for those that are known and not
/// for workers, ENOSYS for the rest, so that the C library takes an older way. Sets no_new_privs. Errors:
/// system_error (a kernel without filters).
Result<void> filter_system_calls();

/// How many are allowed, for people.
std::size_t allowed_system_calls();

}  // namespace cenote::pool::agent
