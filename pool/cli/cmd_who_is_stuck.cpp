#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>

#include "pool/cli/checks.h"
#include "pool/cli/cli.h"
#include "pool/cli/output.h"
#include "pool/cli/stuck.h"
#include "runtime/process.h"

namespace cenote::pool::cli {

namespace {

struct Options {
  bool json = false, strict = false;
  double after = 1.0;
  std::vector<std::int64_t> pids;
  std::vector<std::string> files;
};

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "?";
  return name.data();
}

Result<std::vector<StuckRank>> ranks_of_file(const std::string& path) {
  constexpr std::size_t most = std::size_t{256} << 20;
  CENOTE_ASSIGN(const auto text, read_file(path, most));
  return ranks_of_json(text).map_error([&](Error error) { return std::move(error.on(path)); });
}

bool has_any_of(const std::vector<StuckRank>& group, const std::vector<std::int64_t>& pids) {
  return std::ranges::any_of(
      group, [&](const auto& rank) { return std::ranges::find(pids, rank.pid) != pids.end(); });
}

Result<int> who_is_stuck(const Options& options) {
  CENOTE_ASSIGN(const auto search, find_ledgers());
  const auto now = Clock::now();
  const auto host = host_name();
  std::vector<StuckRank> ranks;
  for (const auto& one : search.found) ranks.push_back(stuck_rank(one, host, now));
  for (const auto& path : options.files) {
    CENOTE_ASSIGN(auto more, ranks_of_file(path));
    std::ranges::move(more, std::back_inserter(ranks));
  }
  auto groups = by_group(std::move(ranks));
  if (!options.pids.empty())
    std::erase_if(groups, [&](const auto& group) { return !has_any_of(group, options.pids); });
  for (const auto& error : search.unreadable) print_error("who-is-stuck", error);
  if (options.json) {
    CENOTE_TRY(print(stuck_json(groups, options.after)));
  } else if (groups.empty()) {
    const auto others = search.not_looked_into;
    CENOTE_TRY(print(
        fmt::format("no communicator among the processes looked at{}\n",
                    others == 0 ? "" : fmt::format("; {} of other users were not looked into", others))));
  } else {
    CENOTE_TRY(print(stuck_text(groups, options.after)));
  }
  const bool stuck =
      std::ranges::any_of(groups, [&](const auto& group) { return judge(group, options.after).stuck; });
  return options.strict && stuck ? exit_failed : exit_ok;
}

}  // namespace

void add_who_is_stuck(CLI::App& app, Cli& cli) {
  auto* command = app.add_subcommand(
      "who-is-stuck", "Show what the ranks of communicators have in flight, and who holds the others up");
  auto options = std::make_shared<Options>();
  command->add_flag("--json", options->json, "print JSON");
  command->add_flag("--strict", options->strict, "end with 1 where a group is stuck");
  command
      ->add_option("--after", options->after,
                   "seconds that an operation may take before anybody is suspected")
      ->capture_default_str()
      ->check(is_wait());
  command->add_option("--pid", options->pids, "only groups that this process has a rank in; may be repeated")
      ->check(CLI::PositiveNumber)
      ->allow_extra_args(false);
  command->add_option("file", options->files, "what --json printed on other machines at about the same time");
  command->footer(
      "It looks at the processes of this machine that it may look into: yours; all of them, as root. They "
      "need\n"
      "not answer: one that is stopped is read too, and nothing in them is touched.\n"
      "Examples:\n  cenote who-is-stuck\n"
      "  ssh node2 cenote who-is-stuck --json > node2.json; cenote who-is-stuck node2.json");
  command->callback([&cli, options] {
    cli.command = "who-is-stuck";
    cli.run = [options] { return who_is_stuck(*options); };
  });
}

}  // namespace cenote::pool::cli
