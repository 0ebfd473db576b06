// Reads what valgrind's callgrind writes: how many instructions each object (program or library) executed
// itself.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "runtime/result.h"

namespace cenote::perf {

/// By the object's path. `text` is an output file of callgrind, one event (Ir), any of its name and position
/// compressions (https://valgrind.org/docs/manual/cl-format.html). Errors: protocol_error (not such a file).
Result<std::map<std::string, std::uint64_t>> instructions_by_object(std::string_view text);

}  // namespace cenote::perf
