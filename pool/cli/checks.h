// Checks of option values, so that a wrong one is wrong usage: said at once, with what is allowed, exit
// code 2.
#pragma once

#include <string>

#include "runtime/deadline.h"

namespace CLI {
class Validator;
}

namespace cenote::pool::cli {

/// "40GiB", and more than nothing.
CLI::Validator is_size();
/// "30s", and not shorter than `least`.
CLI::Validator is_duration(Clock::duration least);
/// A number of seconds that a wait can take: more than 0, a month at most, and not "nan".
CLI::Validator is_wait();
/// What the setting of this name would take.
CLI::Validator is_setting(std::string name);

}  // namespace cenote::pool::cli
