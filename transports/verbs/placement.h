// Where a transport's data is, and how far its ports are from there: what the plan of rails needs to prefer
// the nearest.
#pragma once

#include <vector>

#include "transports/verbs/port.h"
#include "transports/verbs/verbs.h"

namespace cenote::transport::verbs {

/// Sets the ports' distances. The data is at options.near; where that is empty, at the NUMA node whose
/// processors are all that this process may use; else anywhere. Errors: not_found, naming verbs.near.
Result<RailHome> place_ports(std::vector<Port>& ports, const VerbsOptions& options);

}  // namespace cenote::transport::verbs
