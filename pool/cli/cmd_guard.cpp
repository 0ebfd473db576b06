#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <thread>

#include "pool/cli/cli.h"

namespace cenote::pool::cli {

namespace {

// Reads descriptor 3 to its end: then whoever held the other end is gone, and so are its children (they die
// with it). The last of them may still be writing, hence the tries.
Result<int> guard(const std::string& folder) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, SIG_IGN);
  char byte = 0;
  for (;;) {
    const auto got = ::read(3, &byte, 1);
    if (got == 0 || (got < 0 && errno != EINTR)) break;
  }
  std::error_code error;
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::filesystem::remove_all(folder, error);
    if (!error && !std::filesystem::exists(folder)) return exit_ok;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return fail(system_error("remove " + folder, error.value()));
}

}  // namespace

// Not for people: see process_set.h.
void add_guard(CLI::App& app, Cli& cli) {
  auto* command = app.add_subcommand("guard", "Remove a folder when its owner is gone")->group("");
  auto folder = std::make_shared<std::string>();
  command->add_option("folder", *folder)->required();
  command->callback([&cli, folder] {
    cli.command = "guard";
    cli.run = [folder] { return guard(*folder); };
  });
}

}  // namespace cenote::pool::cli
