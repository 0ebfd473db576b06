#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "pool/cli/cli.h"
#include "pool/cli/ladders.h"

namespace cenote::pool::cli {

namespace {

std::string json_text(const std::vector<Rung>& rungs) {
  auto list = nlohmann::json::array();
  for (const auto& rung : rungs) {
    list.push_back({{"ladder", rung.ladder},
                    {"rung", rung.name},
                    {"usable", rung.usable},
                    {"reason", rung.reason},
                    {"remedy", rung.remedy}});
  }
  return nlohmann::json{{"rungs", std::move(list)}}.dump(2, ' ', false,
                                                         nlohmann::json::error_handler_t::replace) +
         "\n";
}

std::string text(const std::vector<Rung>& rungs) {
  std::string out, ladder;
  for (const auto& rung : rungs) {
    if (rung.ladder != ladder) out += rung.ladder + "\n";
    ladder = rung.ladder;
    out += fmt::format("  {} {:<14} {}\n", rung.usable ? "yes" : "no ", rung.name, rung.reason);
    if (!rung.remedy.empty()) out += fmt::format("{:>21}{}\n", "", rung.remedy);
  }
  return out;
}

Result<int> doctor(const Cli& cli, bool json) {
  CENOTE_ASSIGN(const auto settings, cli.settings());
  auto rungs = machine_ladders(settings);
  for (auto& rung : pool_ladders(settings)) rungs.push_back(std::move(rung));
  CENOTE_TRY(print(json ? json_text(rungs) : text(rungs)));
  return exit_ok;
}

}  // namespace

void add_doctor(CLI::App& app, Cli& cli) {
  auto* command =
      app.add_subcommand("doctor", "Say what this machine can do, by which way, and why not by the others");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print JSON");
  command->footer("Ends with 0 whatever it finds: what is missing may not be needed here.");
  command->callback([&cli, json] {
    cli.command = "doctor";
    cli.run = [&cli, json] { return doctor(cli, *json); };
  });
}

}  // namespace cenote::pool::cli
