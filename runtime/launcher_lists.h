// The lists in which Slurm writes the nodes of a step, and PMIx the ranks of a machine. Pure, for bytes of
// anybody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/result.h"

namespace cenote::launcher {

inline constexpr std::size_t most_nodes = 65536;

/// "gpu[1-3,07],login,r[0-1]n[0-1]" in full: gpu1 gpu2 gpu3 gpu07 login r0n0 r0n1 r1n0 r1n1. Numbers keep the
/// zeros that the first of their range has. Errors: invalid_argument (no such list: where it stops making
/// sense; or more than most_nodes).
Result<std::vector<std::string>> expand_nodes(std::string_view list);

/// "2(x3),1": 2 2 2 1. Errors: invalid_argument, as above.
Result<std::vector<std::uint32_t>> expand_counts(std::string_view list);

}  // namespace cenote::launcher
