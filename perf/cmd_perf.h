// `cenote perf TOOL`: measures what a fabric does, with the flags and columns of perftest.
#pragma once

namespace CLI {
class App;
}
namespace cenote::pool::cli {
struct Cli;
}

namespace cenote::perf {

void add_perf(CLI::App& app, pool::cli::Cli& cli);

}  // namespace cenote::perf
