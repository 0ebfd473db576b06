// cenote: the command. It stands here because this room is the highest that has commands: the pool's come
// from pool/cli, those that measure from this one.
#include "perf/cmd_perf.h"
#include "pool/cli/program.h"

int main(int argc, char** argv) {
  constexpr cenote::pool::cli::AddCommand more[] = {cenote::perf::add_perf};
  return cenote::pool::cli::run_program(argc, argv, more);
}
