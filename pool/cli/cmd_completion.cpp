#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "pool/cli/cli.h"

namespace cenote::pool::cli {

namespace {

// Long options of a command, for the completer: taken from the parser, so that the two cannot disagree.
std::string options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  }
  return fmt::format("{}", fmt::join(names, " "));
}

bool any(const CLI::App* /*command*/) { return true; }

struct Found {
  std::vector<std::string> patterns;  // "words before:next word" that go one command deeper
  std::string cases;                  // what may follow
};

// Commands may have commands of their own. `path`: " perf", " perf write_bw".
void collect(const CLI::App& app, const std::string& path, Found& found) {
  std::vector<std::string> names;
  for (const auto* command : app.get_subcommands(any)) {
    if (command->get_group().empty()) continue;
    names.push_back(command->get_name());
    found.patterns.push_back(fmt::format("'{} {}'", path, command->get_name()));
    collect(*command, fmt::format("{} {}", path, command->get_name()), found);
  }
  const auto options = options_of(app);
  found.cases +=
      fmt::format("    '{}') words='{}{}{}' deeper='{}' ;;\n", path, fmt::join(names, " "),
                  names.empty() || options.empty() ? "" : " ", options, names.empty() ? "" : "yes");
}

std::string bash(const CLI::App& app) {
  Found found;
  collect(app, "", found);
  return fmt::format(
      "# bash completion of cenote: source <(cenote completion bash)\n"
      "_cenote() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} command='' words='' deeper='' i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case \"$command ${{COMP_WORDS[i]}}\" in\n"
      "      {}) command=\"$command ${{COMP_WORDS[i]}}\" ;;\n"
      "    esac\n"
      "  done\n"
      "  case $command in\n"
      "{}"
      "  esac\n"
      "  if [[ $word == -* || -n $deeper ]]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
      "  else\n"
      "    mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
      "  fi\n"
      "}}\n"
      "complete -F _cenote cenote\n",
      fmt::join(found.patterns, "|"), found.cases);
}

}  // namespace

void add_completion(CLI::App& app, Cli& cli) {
  auto* command = app.add_subcommand("completion", "Print a completion script for the shell");
  auto shell = std::make_shared<std::string>("bash");
  command->add_option("shell", *shell, "which shell")->capture_default_str()->check(CLI::IsMember({"bash"}));
  command->footer("Example:\n  source <(cenote completion bash)");
  command->callback([&app, &cli, shell] {  // the option writes to `shell` until the line is parsed
    cli.command = "completion";
    cli.run = [&app]() -> Result<int> {
      CENOTE_TRY(print(bash(app)));
      return exit_ok;
    };
  });
}

}  // namespace cenote::pool::cli
