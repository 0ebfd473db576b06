#include "pool/cli/stuck.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "collectives/wire.h"

namespace cenote::pool::cli {
namespace {

/// A rank that has let nothing move for so long is busy elsewhere; one that waits wakes twice a second.
constexpr double away_seconds = 3;
constexpr std::uint64_t one_rank = 1;

std::string seconds_text(double seconds) { return fmt::format("{:.1f} s", seconds); }

std::string list(const std::vector<std::uint32_t>& ranks) {
  constexpr std::size_t most = 8;
  std::string text = ranks.size() == one_rank ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), most); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  return ranks.size() > most ? fmt::format("{} and {} more", text, ranks.size() - most) : text;
}

std::string who(const StuckRank& rank) {
  return fmt::format("rank {} ({} {} on {})", rank.rank, rank.program, rank.pid, rank.host);
}

/// Of 17: "operation 17, allreduce of 12 float32 by sum". While a group forms there is no number.
std::string what(const StuckRow& row) {
  if (row.sequence == 0) return "the creation of the communicator";
  return fmt::format("operation {}, {}", row.sequence, row.call);
}

bool collective(const StuckRow& row) {
  return row.operation == "create" || row.operation == "allreduce" || row.operation == "allgather" ||
         row.operation == "broadcast" || row.operation == "barrier";
}

bool is_stopped(const StuckRank& rank) { return rank.state == "T" || rank.state == "t"; }

const StuckRow* row_of(const StuckRank& rank, std::uint64_t sequence) {
  for (const auto& row : rank.rows)
    if (collective(row) && row.sequence == sequence) return &row;
  return nullptr;
}

std::vector<std::uint32_t> missing_of(std::span<const StuckRank> group) {
  std::set<std::uint32_t> there;
  for (const auto& rank : group) there.insert(rank.rank);
  std::vector<std::uint32_t> missing;
  for (std::uint32_t r = 0; r < group.front().size && missing.size() < 1024; ++r)
    if (!there.contains(r)) missing.push_back(r);
  return missing;
}

std::string missing_text(const std::vector<std::uint32_t>& missing) {
  if (missing.empty()) return {};
  return fmt::format("; {} {} not among the processes looked at", list(missing),
                     missing.size() == one_rank ? "is" : "are");
}

/// What most of the ranks call it; of two that are as many, that of the lowest rank.
std::string usual_call(std::span<const StuckRank> group, std::uint64_t sequence) {
  std::map<std::string, std::size_t> votes;
  std::string usual;
  for (const auto& rank : group)
    if (const auto* row = row_of(rank, sequence)) ++votes[row->call];
  for (const auto& rank : group) {
    const auto* row = row_of(rank, sequence);
    if (row != nullptr && (usual.empty() || votes[row->call] > votes[usual])) usual = row->call;
  }
  return usual;
}

/// Why `rank` is the one that the others wait for in collective `row`; "" where it is not.
std::string blame(const StuckRank& rank, const StuckRow& row, const std::string& usual) {
  const auto* own = row_of(rank, row.sequence);
  const bool behind = rank.begun < row.sequence;
  if (own == nullptr && !behind) return {};  // it is through
  const auto doing =
      behind ? fmt::format("its last is {}, begun {} ago", rank.begun, seconds_text(rank.begun_seconds))
             : fmt::format("it has begun it {} ago", seconds_text(own->seconds));
  if (own != nullptr && own->call != usual)
    return fmt::format("{} calls {} as operation {}", who(rank), own->call, row.sequence);
  if (is_stopped(rank))
    return fmt::format("{} is stopped ({}); it goes on after: kill -CONT {}", who(rank), doing, rank.pid);
  if (behind) return fmt::format("{} has not begun it: {}", who(rank), doing);
  if (rank.call_seconds >= away_seconds)
    return fmt::format("{} has begun it but has made no call that moves it for {}", who(rank),
                       seconds_text(rank.call_seconds));
  return {};
}

/// Nobody here is to blame: whom do the waiting ones name?
Verdict follow(std::span<const StuckRank> group, const StuckRow& row, Verdict verdict) {
  const auto missing = missing_of(group);
  std::map<std::uint32_t, std::size_t> named;
  std::string waits;
  for (const auto& rank : group) {
    const auto* own = row_of(rank, row.sequence);
    if (own == nullptr || !own->waits_for) continue;
    waits += fmt::format("{}rank {} for rank {}", waits.empty() ? "" : ", ", rank.rank, *own->waits_for);
    ++named[own->at_the_end.value_or(*own->waits_for)];
  }
  for (const auto& [rank, votes] : named)
    if (std::ranges::find(missing, rank) != missing.end()) verdict.ranks.push_back(rank);
  if (!verdict.ranks.empty()) {
    verdict.text += fmt::format(
        "{} hold{} it up, not among the processes looked at: on another machine, of another user, or dead",
        list(verdict.ranks), verdict.ranks.size() == one_rank ? "s" : "");
  } else if (!missing.empty()) {
    verdict.ranks = missing;
    verdict.text += fmt::format("nobody here holds it up: {} {} not among the processes looked at",
                                list(missing), missing.size() == one_rank ? "is" : "are");
  } else {
    verdict.text += fmt::format("all ranks are in it and wait for data that is on its way ({})",
                                waits.empty() ? "none says for whom" : waits);
  }
  return verdict;
}

Verdict judge_collective(std::span<const StuckRank> group, const StuckRow& row) {
  Verdict verdict{true, {}, {}};
  const auto usual = usual_call(group, row.sequence);
  std::vector<std::string> reasons;
  for (const auto& rank : group) {
    auto reason = blame(rank, row, usual);
    if (reason.empty()) continue;
    verdict.ranks.push_back(rank.rank);
    if (reasons.size() < 4) reasons.push_back(std::move(reason));
  }
  auto named = row;
  if (!usual.empty()) named.call = usual;
  verdict.text = fmt::format("{}, for {}: ", what(named), seconds_text(row.seconds));
  if (reasons.empty()) return follow(group, row, std::move(verdict));
  verdict.text += fmt::format("{}", fmt::join(reasons, "; "));
  if (verdict.ranks.size() > reasons.size())
    verdict.text += fmt::format("; and {} more", verdict.ranks.size() - reasons.size());
  verdict.text += missing_text(missing_of(group));
  return verdict;
}

Verdict judge_one_sided(std::span<const StuckRank> group, const StuckRank& waiting, const StuckRow& row) {
  const auto of = row.waits_for.value_or(waiting.rank);
  Verdict verdict{true, {of}, {}};
  const bool signal = row.operation == "wait for signal";
  verdict.text = fmt::format("{}, in \"{}{}\" for {}: ", who(waiting), row.operation,
                             signal ? fmt::format(" {}", row.sequence) : "", seconds_text(row.seconds));
  const auto found = std::ranges::find(group, of, &StuckRank::rank);
  if (found == group.end()) {
    verdict.text += fmt::format("rank {} is not among the processes looked at", of);
  } else if (is_stopped(*found)) {
    verdict.text += fmt::format("{} is stopped; it goes on after: kill -CONT {}", who(*found), found->pid);
  } else if (signal) {
    verdict.text += fmt::format("{} has not signalled it", who(*found));
  } else {
    verdict.text += fmt::format("{} has made no call that moves it for {}", who(*found),
                                seconds_text(found->call_seconds));
  }
  return verdict;
}

}  // namespace

Verdict judge(std::span<const StuckRank> group, double after) {
  const auto failed =
      std::ranges::find_if(group, [](const auto& rank) { return rank.failed_rank.has_value(); });
  if (failed != group.end()) {
    return {true,
            {*failed->failed_rank},
            fmt::format("the group has ended: {} says: {}", who(*failed), failed->failure)};
  }
  const StuckRow* oldest = nullptr;  // the collective that the group must get through first
  const StuckRow* other = nullptr;
  const StuckRank* others = nullptr;
  for (const auto& rank : group) {
    for (const auto& row : rank.rows) {
      if (row.seconds < after) continue;
      if (collective(row)) {
        const bool first = oldest == nullptr || row.sequence < oldest->sequence ||
                           (row.sequence == oldest->sequence && row.seconds > oldest->seconds);
        if (first) oldest = &row;
      } else if (other == nullptr || row.seconds > other->seconds) {
        other = &row;
        others = &rank;
      }
    }
  }
  // A rank that waits for a signal is late for the collective because of it.
  if (other != nullptr && (oldest == nullptr || other->seconds > oldest->seconds))
    return judge_one_sided(group, *others, *other);
  if (oldest != nullptr) return judge_collective(group, *oldest);
  return {false, {}, fmt::format("nothing has been in flight for {} or longer", seconds_text(after))};
}

StuckRank stuck_rank(const FoundLedger& found, const std::string& host, Clock::time_point now) {
  const auto age = [&](Clock::time_point then) {
    return std::max(0.0, std::chrono::duration<double>(now - then).count());
  };
  const auto rank_or_none = [](std::uint32_t rank) {
    return rank == nobody ? std::nullopt : std::optional(rank);
  };
  const auto& ledger = found.ledger;
  StuckRank rank{fmt::format("{:016x}", ledger.group), ledger.rank, ledger.size, host, found.program,
                 std::string(1, found.state),          found.pid};
  rank.begun = ledger.begun;
  rank.begun_seconds = age(ledger.begun_at);
  rank.call_seconds = age(std::max(ledger.seen, ledger.begun_at));
  rank.not_shown = ledger.not_shown;
  if (ledger.failure) {
    rank.failed_rank = ledger.failure->culprit;
    rank.failure = ledger.failure->text;
  }
  for (const auto& row : ledger.rows) {
    const auto call = collectives::wire::unpacked(row.detail, row.count);
    rank.rows.push_back({row.operation, row.detail == 0 ? row.operation : collectives::wire::text(call),
                         row.stage, row.sequence, row.bytes, rank_or_none(row.wait.on),
                         rank_or_none(row.wait.at_the_end), age(row.began), age(row.in_stage_since)});
  }
  return rank;
}

std::vector<std::vector<StuckRank>> by_group(std::vector<StuckRank> ranks) {
  std::ranges::stable_sort(ranks, [](const auto& a, const auto& b) {
    return std::tie(a.group, a.rank, a.host, a.pid) < std::tie(b.group, b.rank, b.host, b.pid);
  });
  std::vector<std::vector<StuckRank>> groups;
  for (auto& rank : ranks) {
    if (groups.empty() || groups.back().front().group != rank.group) groups.emplace_back();
    auto& group = groups.back();
    if (!group.empty() && std::tie(group.back().rank, group.back().host, group.back().pid) ==
                              std::tie(rank.rank, rank.host, rank.pid))
      continue;
    group.push_back(std::move(rank));
  }
  return groups;
}

}  // namespace cenote::pool::cli
