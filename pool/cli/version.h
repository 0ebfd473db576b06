// What this build is.
#pragma once

#include <string>

namespace cenote::pool::cli {

/// "cenote 0.1.0 (g++ 12.2.0)"
std::string version_text();

}  // namespace cenote::pool::cli
