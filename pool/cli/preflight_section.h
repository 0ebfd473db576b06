// The part of `cenote doctor` that says what is in the way of RDMA, and what to do about it.
#pragma once

#include <string>
#include <vector>

#include "transports/verbs/preflight.h"

namespace cenote::pool::cli {

/// A line a finding, its remedy below it; at the end how many are what.
std::string preflight_text(const std::vector<transport::verbs::Finding>& findings);
/// Whether one of them is a problem.
bool has_problem(const std::vector<transport::verbs::Finding>& findings);

}  // namespace cenote::pool::cli
