#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "pool/cli/cli.h"
#include "pool/cli/ladders.h"
#include "pool/cli/preflight_section.h"

namespace cenote::pool::cli {

namespace {

using transport::verbs::Finding;

std::string json_text(const std::vector<Rung>& rungs, const std::vector<Finding>& findings) {
  auto list = nlohmann::json::array();
  for (const auto& rung : rungs) {
    list.push_back({{"ladder", rung.ladder},
                    {"rung", rung.name},
                    {"usable", rung.usable},
                    {"reason", rung.reason},
                    {"remedy", rung.remedy}});
  }
  auto preflight = nlohmann::json::array();
  for (const auto& finding : findings) {
    preflight.push_back({{"subject", finding.subject},
                         {"verdict", to_string(finding.verdict)},
                         {"seen", finding.seen},
                         {"remedy", finding.remedy}});
  }
  const nlohmann::json whole{{"rungs", std::move(list)}, {"preflight", std::move(preflight)}};
  return whole.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
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

struct Flags {
  bool json = false;
  bool strict = false;
};

Result<int> doctor(const Cli& cli, const Flags& flags) {
  CENOTE_ASSIGN(const auto settings, cli.settings());
  auto rungs = machine_ladders(settings);
  for (auto& rung : pool_ladders(settings)) rungs.push_back(std::move(rung));
  const auto findings = preflight(transport::verbs::read_this_machine());
  CENOTE_TRY(print(flags.json ? json_text(rungs, findings) : text(rungs) + preflight_text(findings)));
  return flags.strict && has_problem(findings) ? exit_failed : exit_ok;
}

}  // namespace

void add_doctor(CLI::App& app, Cli& cli) {
  auto* command =
      app.add_subcommand("doctor", "Say what this machine can do, by which way, and why not by the others");
  auto flags = std::make_shared<Flags>();
  command->add_flag("--json", flags->json, "print JSON");
  command->add_flag("--strict", flags->strict, "end with 1 where the RDMA preflight finds a problem");
  command->footer(
      "Ends with 0 whatever it finds, for what is missing may not be needed here; with --strict, with 1 "
      "where "
      "the RDMA preflight finds a problem.");
  command->callback([&cli, flags] {
    cli.command = "doctor";
    cli.run = [&cli, flags] { return doctor(cli, *flags); };
  });
}

}  // namespace cenote::pool::cli
