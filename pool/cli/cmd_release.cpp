#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "pool/cli/cli.h"
#include "pool/client/lease_file.h"
#include "pool/client/pool_client.h"
#include "pool/key_file.h"

namespace cenote::pool::cli {

namespace {

Result<int> release(const Cli& cli, const std::string& path) {
  CENOTE_ASSIGN(const auto text, read_file(path));
  auto file = decode_lease_file(text);
  if (!file) return fail(std::move(file).error().on(path));
  CENOTE_ASSIGN(auto settings, cli.settings());
  CENOTE_ASSIGN(const auto client, make_client(settings));
  CENOTE_ASSIGN(const auto lease, client->adopt(*file, false));
  CENOTE_TRY(lease->release(Deadline::in(std::chrono::seconds(10))));
  CENOTE_TRY(print(fmt::format("released lease {}\n", file->lease.id)));
  return exit_ok;
}

}  // namespace

void add_release(CLI::App& app, Cli& cli) {
  auto* command = app.add_subcommand("release", "Give a detached lease back");
  auto path = std::make_shared<std::string>();
  command->add_option("file", *path, "the lease file, as `cenote lease --detach` printed it")->required();
  command->footer(
      "Only who holds a lease's private key can release it, so the lease file is needed, not the lease's "
      "name.\n"
      "Example:\n  cenote lease --gpus 2 --detach > lease.json && cenote release lease.json");
  command->callback([&cli, path] {
    cli.command = "release";
    cli.run = [&cli, path] { return release(cli, *path); };
  });
}

}  // namespace cenote::pool::cli
