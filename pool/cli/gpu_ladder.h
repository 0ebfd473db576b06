// The ladder of `cenote doctor` for GPU memory: by which way a network card comes to it, and what has to be
// done before the GPU shows what the card has written.
#pragma once

#include <vector>

#include "pool/cli/ladders.h"

namespace cenote::pool::cli {

/// The ways of verbs.gpu_memory, then how writes become visible. Registers nothing.
std::vector<Rung> gpu_memory_ladder(const Settings& settings);

}  // namespace cenote::pool::cli
