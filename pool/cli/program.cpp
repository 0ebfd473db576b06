#include "pool/cli/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <optional>

#include "pool/cli/cli.h"
#include "pool/cli/version.h"
#include "pool/proto/channel.h"
#include "runtime/unique_fd.h"

namespace cenote::pool::cli {
namespace {

// What starts processes of its own (the demo, tests) has them die with it, however it ends.
Result<void> die_with(int parent) {
  if (parent == 0) return {};
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
    return fail(system_error("tie this process to its parent", errno));
  if (::getppid() != parent) return fail(ErrorCode::peer_failed, "start", "the parent process is gone");
  return {};
}

// Where one of the three was closed by the caller, what is opened next would have its number, and be written
// to as output. Open for reading only: what is written there is an error, as it should be.
void keep_standard_descriptors() {
  UniqueFd fd;
  do {
    (void)fd.release();
    fd.reset(::open("/dev/null", O_RDONLY));
  } while (fd && fd.get() <= STDERR_FILENO);
}

void add_globals(CLI::App& app, Globals& globals, int& parent) {
  app.add_option("--config", globals.config_file, "settings file (TOML)");
  app.add_option("--set", globals.overrides, "a setting, as NAME=VALUE; beats environment and file")
      ->allow_extra_args(false);
  app.add_option("--log-level", globals.log_level, "error, warn, info, debug or trace");
  app.add_option("--die-with", parent, "end with this parent process")->group("");
}

void add_commands(CLI::App& app, Cli& cli, std::span<const AddCommand> more) {
  for (const auto add : {add_broker, add_agent, add_lease, add_release, add_leases, add_top, add_who_is_stuck,
                         add_doctor, add_config, add_demo, add_version, add_completion, add_worker, add_guard,
                         add_session, add_demo_client}) {
    add(app, cli);
  }
  for (const auto add : more) add(app, cli);
}

// The commands that were given, the outermost first: "perf", "write_bw".
std::vector<const CLI::App*> given(const CLI::App& app) {
  std::vector<const CLI::App*> chain;
  for (const auto* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    chain.push_back(at);
  }
  return chain;
}

std::string name_of(const std::vector<const CLI::App*>& chain) {
  std::string name;
  for (const auto* command : chain) name += (name.empty() ? "" : " ") + command->get_name();
  return name;
}

// What CLI11 says of a word that is neither command nor option, or of none at all, names neither.
std::string cause_of(const CLI::App& app, const CLI::ParseError& error) {
  const auto chain = given(app);
  const auto* deepest = chain.empty() ? &app : chain.back();
  const bool no_command = !deepest->get_subcommands([](const CLI::App*) { return true; }).empty();
  const auto& kind = error.get_name();
  if (!no_command || (kind != "RequiredError" && kind != "ExtrasError")) {
    const std::string_view cause = error.what();
    return std::string(
        cause.substr(cause.starts_with(": ") ? 2 : 0));  // a hidden option's, which has no name
  }
  const auto rest = app.remaining(true);
  if (rest.empty()) return "no command was given";
  return fmt::format("there is no {} {}", rest.front().starts_with('-') ? "option" : "command", rest.front());
}

// CLI11 reports wrong usage by throwing; nothing of it leaves this function. nullopt = go on.
std::optional<int> parse(CLI::App& app, Cli& cli, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    return print(app.help()) ? exit_ok : exit_failed;
  } catch (const CLI::CallForVersion& version) {
    return print(std::string(version.what()) + "\n") ? exit_ok : exit_failed;
  } catch (const CLI::ParseError& error) {
    cli.command = name_of(given(app));
    const auto help =
        cli.command.empty() ? std::string("cenote --help") : "cenote " + cli.command + " --help";
    print_error(
        cli.command,
        Error{ErrorCode::invalid_argument, "read command line", cause_of(app, error)}.fix("see: " + help));
    return exit_usage;
  }
}

// A wrong setting is wrong usage, whatever the command is and wherever the value came from. Commands that
// people do not type take what those who start them have checked.
std::optional<int> refuse_wrong_settings(const CLI::App& app, const Cli& cli) {
  if (app.get_subcommands().front()->get_group().empty()) return std::nullopt;
  const auto settings = cli.settings();
  const auto checked = !settings ? fail(settings.error()) : cli.check ? cli.check(*settings) : Result<void>{};
  if (checked) return std::nullopt;
  print_error(cli.command, checked.error());
  return exit_usage;
}

}  // namespace

int run_program(int argc, char** argv, std::span<const AddCommand> more) {
  ::signal(SIGPIPE, SIG_IGN);
  keep_standard_descriptors();
  quiet_grpc();
  Cli cli;
  int parent = 0;
  CLI::App app("One pool out of the GPUs of many machines.", "cenote");
  app.require_subcommand(1);
  app.fallthrough();  // --set and the like may stand after the command too
  app.set_version_flag("--version", version_text());
  add_globals(app, cli.globals, parent);
  add_commands(app, cli, more);
  app.footer(
      "Exit codes: 0 done, 1 failed (one line says why, the next what to do), 2 wrong usage (an option, a "
      "value\n"
      "or a setting is wrong; nothing was done), 128 + signal when one ended the work.\n"
      "Start here: cenote demo");
  if (const auto code = parse(app, cli, argc, argv)) return *code;
  if (const auto code = refuse_wrong_settings(app, cli)) return *code;
  if (const auto tied = die_with(parent); !tied) {
    print_error(cli.command, tied.error());
    return exit_failed;
  }
  const auto result = cli.run();
  if (result) return *result;
  print_error(cli.command, result.error());
  return exit_failed;
}

}  // namespace cenote::pool::cli
