// Who holds a group of ranks up: what `cenote who-is-stuck` finds in the ledgers of this machine and of
// others, and what it makes of it. judge() is a pure function of what was found.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pool/cli/cli.h"
#include "runtime/ledger_reader.h"

namespace cenote::pool::cli {

struct StuckRow {
  std::string operation;  ///< "allreduce"
  std::string call;       ///< "allreduce of 12 float32 by sum"
  std::string stage;
  std::uint64_t sequence = 0, bytes = 0;
  std::optional<std::uint32_t> waits_for{}, at_the_end{};  ///< ranks
  double seconds = 0, stage_seconds = 0;                   ///< since it began; since that stage did
};

/// One rank. All times are ages, so that those of several machines go together.
struct StuckRank {
  std::string group;  ///< 16 hexadecimal digits
  std::uint32_t rank = 0, size = 0;
  std::string host, program, state;  ///< state: of its process, "T" stopped
  std::int64_t pid = 0;
  std::uint64_t begun = 0;  ///< number of the last collective that it began
  double begun_seconds = 0;
  double call_seconds = 0;  ///< since it last let its operations move
  std::uint64_t not_shown = 0;
  std::optional<std::uint32_t> failed_rank{};  ///< whose fault its group's end is
  std::string failure{};
  std::vector<StuckRow> rows{};
};

struct Verdict {
  bool stuck = false;
  std::vector<std::uint32_t> ranks{};  ///< that hold the others up
  std::string text;                    ///< a sentence that says so
};

/// `group`: those of its ranks that were found, by number. Operations younger than `after` seconds are no
/// reason to worry.
Verdict judge(std::span<const StuckRank> group, double after);

StuckRank stuck_rank(const FoundLedger& found, const std::string& host, Clock::time_point now);
/// Sorts by group and rank; who is there twice stays once.
std::vector<std::vector<StuckRank>> by_group(std::vector<StuckRank> ranks);

std::string stuck_text(std::span<const std::vector<StuckRank>> groups, double after);
std::string stuck_json(std::span<const std::vector<StuckRank>> groups, double after);
/// The ranks of such JSON. Errors: invalid_argument (says what is wrong in it).
Result<std::vector<StuckRank>> ranks_of_json(const std::string& text);

}  // namespace cenote::pool::cli
