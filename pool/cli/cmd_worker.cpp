#include <CLI/CLI.hpp>

#include "pool/agent/worker_main.h"
#include "pool/cli/cli.h"

namespace cenote::pool::cli {

// Not for people: an agent starts it and talks to it over descriptor 3.
void add_worker(CLI::App& app, Cli& cli) {
  auto* command = app.add_subcommand("worker", "Serve one lease (started by an agent)")->group("");
  auto parent = std::make_shared<int>(0);
  command->add_option("--parent", *parent, "process id of the agent")->required();
  command->callback([&cli, parent] {
    cli.command = "worker";
    cli.run = [parent]() -> Result<int> { return agent::worker_main(*parent); };
  });
}

}  // namespace cenote::pool::cli
