// The program `cenote`: the commands of this room, and those that a room above it adds. main() lives in the
// highest room that has any (perf/main.cpp).
#pragma once

#include <span>

#include "pool/cli/cli.h"

namespace cenote::pool::cli {

/// Adds one command, as those of cli.h do.
using AddCommand = void (*)(CLI::App& app, Cli& cli);

/// One run of the program, from its arguments to its exit code.
int run_program(int argc, char** argv, std::span<const AddCommand> more);

}  // namespace cenote::pool::cli
