// Finding the root of a group whose host and secret are known, and of whose port it is known that it is one
// of a few.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/bootstrap.h"

namespace cenote::bootstrap {

/// Asks at all `ports` of `host` (a number), again and again, until one of them is the group's root and the
/// group has not formed yet. Who serves other groups, or something else, is passed over. Errors:
/// deadline_exceeded (with what was met at each port), cancelled.
Result<UniqueId> find_root(const std::string& host, std::span<const std::uint16_t> ports,
                           const std::array<std::uint8_t, 16>& secret, Deadline deadline,
                           const CancelFlag* cancel = nullptr);

}  // namespace cenote::bootstrap
