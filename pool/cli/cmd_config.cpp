#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "pool/cli/cli.h"
#include "pool/cli/output.h"

namespace cenote::pool::cli {

namespace {

struct Options {
  std::string name;
  bool json = false;
  bool help_texts = false;
};

std::vector<std::string> row(const SettingEntry& entry, bool help_texts) {
  std::vector<std::string> cells{std::string(entry.description->name),
                                 entry.value.empty() ? "\"\"" : entry.value, entry.source};
  if (help_texts) cells.emplace_back(entry.description->help);
  return cells;
}

nlohmann::json to_json(const SettingEntry& entry) {
  return {{"name", entry.description->name},
          {"value", entry.value},
          {"source", entry.source},
          {"type", to_string(entry.description->type)},
          {"default", entry.description->default_text},
          {"allowed", entry.description->allowed},
          {"unit", entry.description->unit},
          {"help", entry.description->help},
          {"environment", Settings::environment_name(entry.description->name)}};
}

Result<int> config(const Cli& cli, const Options& options) {
  CENOTE_ASSIGN(const auto settings, cli.settings());
  std::vector<SettingEntry> entries;
  if (options.name.empty()) {
    entries = settings.entries();
  } else {
    CENOTE_ASSIGN(auto entry, settings.entry(options.name));
    entries.push_back(std::move(entry));
  }
  if (options.json) {
    auto list = nlohmann::json::array();
    for (const auto& entry : entries) list.push_back(to_json(entry));
    CENOTE_TRY(print(nlohmann::json{{"settings", std::move(list)}}.dump(2) + "\n"));
    return exit_ok;
  }
  std::vector<std::string> heading{"SETTING", "VALUE", "FROM"};
  if (options.help_texts) heading.emplace_back("WHAT IT DOES");
  Table table(std::move(heading));
  for (const auto& entry : entries) table.add(row(entry, options.help_texts));
  CENOTE_TRY(print(table.text()));
  return exit_ok;
}

}  // namespace

void add_config(CLI::App& app, Cli& cli) {
  auto* command = app.add_subcommand("config", "Show every setting, its value and where the value came from");
  auto options = std::make_shared<Options>();
  command->add_option("name", options->name, "show only this one");
  command->add_flag("--json", options->json, "print JSON");
  command->add_flag("--explain", options->help_texts, "also say what each setting does");
  command->footer(
      "Examples:\n"
      "  cenote config --explain\n"
      "  CENOTE_LOG_LEVEL=debug cenote --config /etc/cenote.toml config log.level");
  command->callback([&cli, options] {
    cli.command = "config";
    cli.run = [&cli, options] { return config(cli, *options); };
  });
}

}  // namespace cenote::pool::cli
