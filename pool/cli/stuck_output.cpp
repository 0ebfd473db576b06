#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pool/cli/output.h"
#include "pool/cli/stuck.h"

namespace cenote::pool::cli {
namespace {

using nlohmann::json;

json number_or_null(const std::optional<std::uint32_t>& rank) { return rank ? json(*rank) : json(nullptr); }

json to_json(const StuckRank& rank) {
  auto rows = json::array();
  for (const auto& row : rank.rows) {
    rows.push_back({{"operation", row.operation},
                    {"call", row.call},
                    {"sequence", row.sequence},
                    {"bytes", row.bytes},
                    {"stage", row.stage},
                    {"waits_for", number_or_null(row.waits_for)},
                    {"at_the_end", number_or_null(row.at_the_end)},
                    {"seconds", row.seconds},
                    {"stage_seconds", row.stage_seconds}});
  }
  return {{"group", rank.group},
          {"rank", rank.rank},
          {"size", rank.size},
          {"host", rank.host},
          {"program", rank.program},
          {"state", rank.state},
          {"pid", rank.pid},
          {"begun", rank.begun},
          {"begun_seconds", rank.begun_seconds},
          {"call_seconds", rank.call_seconds},
          {"not_shown", rank.not_shown},
          {"failed_rank", number_or_null(rank.failed_rank)},
          {"failure", rank.failure},
          {"operations", std::move(rows)}};
}

std::optional<std::uint32_t> optional_rank(const json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<std::uint32_t>());
}

// Throws json::exception where it is not what to_json made.
StuckRank rank_of(const json& from) {
  StuckRank rank;
  from.at("group").get_to(rank.group);
  from.at("rank").get_to(rank.rank);
  from.at("size").get_to(rank.size);
  from.at("host").get_to(rank.host);
  from.at("program").get_to(rank.program);
  from.at("state").get_to(rank.state);
  from.at("pid").get_to(rank.pid);
  from.at("begun").get_to(rank.begun);
  from.at("begun_seconds").get_to(rank.begun_seconds);
  from.at("call_seconds").get_to(rank.call_seconds);
  from.at("not_shown").get_to(rank.not_shown);
  rank.failed_rank = optional_rank(from.at("failed_rank"));
  from.at("failure").get_to(rank.failure);
  for (const auto& row : from.at("operations")) {
    rank.rows.push_back({row.at("operation").get<std::string>(), row.at("call").get<std::string>(),
                         row.at("stage").get<std::string>(), row.at("sequence").get<std::uint64_t>(),
                         row.at("bytes").get<std::uint64_t>(), optional_rank(row.at("waits_for")),
                         optional_rank(row.at("at_the_end")), row.at("seconds").get<double>(),
                         row.at("stage_seconds").get<double>()});
  }
  return rank;
}

std::string state_text(const std::string& state) {
  if (state == "R") return "runs";
  if (state == "S") return "sleeps";
  if (state == "D") return "in kernel";
  if (state == "T") return "stopped";
  if (state == "t") return "traced";
  return state;
}

void add_rows(Table& table, const StuckRank& rank) {
  const std::vector<std::string> process{fmt::format("{}", rank.rank), rank.host, fmt::format("{}", rank.pid),
                                         rank.program, state_text(rank.state)};
  const auto add = [&](std::initializer_list<std::string> rest) {
    auto cells = process;
    cells.insert(cells.end(), rest);
    table.add(std::move(cells));
  };
  if (rank.rows.empty()) {
    add({rank.failed_rank ? "ended" : "nothing in flight", fmt::format("{} was last", rank.begun), "", "", "",
         fmt::format("{:.1f} s", rank.begun_seconds)});
  }
  for (const auto& row : rank.rows) {
    const auto wait = !row.waits_for ? std::string("-")
                      : row.at_the_end && row.at_the_end != row.waits_for
                          ? fmt::format("rank {}, which waits for {}", *row.waits_for, *row.at_the_end)
                          : fmt::format("rank {}", *row.waits_for);
    add({row.operation, fmt::format("{}", row.sequence), bytes_text(row.bytes), row.stage, wait,
         fmt::format("{:.1f} s", row.seconds)});
  }
  if (rank.not_shown > 0) add({fmt::format("and {} more", rank.not_shown), "", "", "", "", ""});
}

}  // namespace

std::string stuck_text(std::span<const std::vector<StuckRank>> groups, double after) {
  std::string out;
  for (const auto& group : groups) {
    const auto verdict = judge(group, after);
    out += fmt::format("{}group {}, {} of {}\n", out.empty() ? "" : "\n", group.front().group,
                       count_text(group.size(), "rank"), group.front().size);
    Table table({"rank", "host", "pid", "program", "state", "operation", "sequence", "bytes", "stage",
                 "waits for", "since"},
                {0, 2, 6, 7, 10});
    for (const auto& rank : group) add_rows(table, rank);
    out += table.text("  ");
    out += fmt::format("{}: {}\n", verdict.stuck ? "stuck" : "not stuck", verdict.text);
  }
  return out;
}

std::string stuck_json(std::span<const std::vector<StuckRank>> groups, double after) {
  auto ranks = json::array();
  auto verdicts = json::array();
  for (const auto& group : groups) {
    const auto verdict = judge(group, after);
    verdicts.push_back({{"group", group.front().group},
                        {"stuck", verdict.stuck},
                        {"ranks", verdict.ranks},
                        {"text", verdict.text}});
    for (const auto& rank : group) ranks.push_back(to_json(rank));
  }
  const json whole{{"verdicts", std::move(verdicts)}, {"ranks", std::move(ranks)}};
  return whole.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<std::vector<StuckRank>> ranks_of_json(const std::string& text) {
  try {
    std::vector<StuckRank> ranks;
    const auto whole = json::parse(text);
    for (const auto& rank : whole.at("ranks")) ranks.push_back(rank_of(rank));
    return ranks;
  } catch (const json::exception& error) {
    return fail(
        Error{ErrorCode::invalid_argument, "read what cenote who-is-stuck --json wrote", error.what()});
  }
}

}  // namespace cenote::pool::cli
