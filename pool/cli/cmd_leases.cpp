#include <CLI/CLI.hpp>

#include "pool/cli/checks.h"
#include "pool/cli/cli.h"
#include "pool/cli/output.h"
#include "pool/client/calls.h"
#include "pool/client/pool_client.h"

namespace cenote::pool::cli {

namespace {

Result<int> leases(const Cli& cli, bool json, double timeout) {
  CENOTE_ASSIGN(const auto settings, cli.settings());
  CENOTE_ASSIGN(const auto client, make_client(settings));
  const auto span = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout));
  CENOTE_ASSIGN(const auto list, client->leases(Deadline::in(span)));
  CENOTE_TRY(print(json ? leases_json(list) : lease_table(list, unix_ms())));
  return exit_ok;
}

}  // namespace

void add_leases(CLI::App& app, Cli& cli) {
  auto* command = app.add_subcommand("leases", "List the leases in force");
  auto json = std::make_shared<bool>(false);
  auto timeout = std::make_shared<double>(2.0);
  command->add_flag("--json", *json, "print JSON");
  command->add_option("--timeout", *timeout, "seconds to wait for the broker")
      ->capture_default_str()
      ->check(is_wait());
  command->footer("Example:\n  cenote leases --json | jq '.leases[].id'");
  command->callback([&cli, json, timeout] {
    cli.command = "leases";
    cli.run = [&cli, json, timeout] { return leases(cli, *json, *timeout); };
  });
}

}  // namespace cenote::pool::cli
