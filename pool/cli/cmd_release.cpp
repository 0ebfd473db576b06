#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "pool/cli/cli.h"
#include "pool/client/lease_file.h"
#include "pool/client/pool_client.h"
#include "pool/key_file.h"

namespace cenote::pool::cli {

namespace {

constexpr auto kPatience = std::chrono::seconds(10);

// The lease's private key is in there.
void warn_if_others_read(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || (status.st_mode & 077U) == 0) return;
  const auto text = fmt::format(
      "cenote release: warning: {} has mode {:04o}: others can use the lease while it lives\n  keep such "
      "files to "
      "yourself: chmod 600 {}, or umask 077 before cenote lease --detach\n",
      path, status.st_mode & 07777U, path);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

Result<bool> in_force(PoolClient& client, const std::string& lease) {
  CENOTE_ASSIGN(const auto leases, client.leases(Deadline::in(kPatience)));
  return std::ranges::find(leases, lease, &LeaseInfo::id) != leases.end();
}

Result<int> release(const Cli& cli, const std::string& path) {
  CENOTE_ASSIGN(const auto text, read_file(path));
  auto file = decode_lease_file(text);
  if (!file) return fail(std::move(file).error().on(path));
  warn_if_others_read(path);
  CENOTE_ASSIGN(auto settings, cli.settings());
  CENOTE_ASSIGN(const auto client, make_client(settings));
  CENOTE_ASSIGN(const auto lease, client->adopt(*file, false));
  CENOTE_ASSIGN(const auto was_in_force, in_force(*client, file->lease.id));
  const auto released = lease->release(Deadline::in(kPatience));
  // A broker remembers for a while what it ended, and then only that it does not know it.
  const bool forgotten = !released && !was_in_force && released.error().code == ErrorCode::not_found;
  if (!released && !forgotten) return fail(released.error());
  CENOTE_TRY(print(was_in_force ? fmt::format("released lease {}\n", file->lease.id)
                                : fmt::format("lease {} was over already: released before, or expired\n",
                                              file->lease.id)));
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
