#include <CLI/CLI.hpp>

#include "pool/cli/checks.h"
#include "pool/cli/cli.h"
#include "pool/cli/interrupt.h"
#include "pool/cli/output.h"
#include "pool/client/pool_client.h"

namespace cenote::pool::cli {

namespace {

struct Options {
  bool json = false, watch = false;
  double interval = 1.0, timeout = 2.0;
};

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

Result<int> top(const Cli& cli, const Options& options) {
  CENOTE_ASSIGN(const auto interrupt, Interrupt::create());
  CENOTE_ASSIGN(const auto settings, cli.settings());
  CENOTE_ASSIGN(const auto client, make_client(settings));
  for (;;) {
    const auto state = client->top(Deadline::in(seconds(options.timeout)), &interrupt->flag());
    if (!state && interrupt->signal() != 0) return interrupted("top", *interrupt);
    if (!state && !options.watch) return fail(state.error());
    // While watching, an outage is a thing to show, not to end for.
    auto text = state ? (options.json ? top_json(*state) : top_text(*state)) : state.error().message() + "\n";
    if (options.watch && !options.json) text.insert(0, "\x1b[H\x1b[2J");
    CENOTE_TRY(print(text));
    if (!options.watch || interrupt->wait(Deadline::in(seconds(options.interval)))) return exit_ok;
  }
}

}  // namespace

void add_top(CLI::App& app, Cli& cli) {
  auto* command = app.add_subcommand("top", "Show agents, devices, their load and who holds them");
  auto options = std::make_shared<Options>();
  command->add_flag("--json", options->json, "print JSON");
  command->add_flag("--watch", options->watch, "again and again until Ctrl-C");
  command->add_option("--interval", options->interval, "seconds between two looks")
      ->capture_default_str()
      ->check(is_wait() & CLI::Range(0.05, 3600.0));
  command->add_option("--timeout", options->timeout, "seconds to wait for the broker")
      ->capture_default_str()
      ->check(is_wait());
  command->footer("Examples:\n  cenote top\n  cenote top --watch --interval 0.5");
  command->callback([&cli, options] {
    cli.command = "top";
    cli.run = [&cli, options] { return top(cli, *options); };
  });
}

}  // namespace cenote::pool::cli
