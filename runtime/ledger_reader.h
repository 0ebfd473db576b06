// Reading the ledgers of other processes of this machine, also of such that are stopped: nothing is asked of
// them. Whose ledgers: those of processes that this one may look into (the same user's; root: all).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/deadline.h"
#include "runtime/ledger.h"
#include "runtime/result.h"

namespace cenote {

/// One operation in flight.
struct LedgerRow {
  std::string operation;  ///< "allreduce"
  std::string stage;      ///< "receive"
  std::uint64_t sequence = 0, bytes = 0, count = 0, detail = 0;
  Ledger::Wait wait{};
  Clock::time_point began{}, in_stage_since{};
};

struct LedgerCopy {
  std::uint64_t pid = 0;  ///< as its own process counts
  std::uint64_t group = 0;
  std::uint32_t rank = 0, size = 0;
  std::uint64_t begun = 0;  ///< number of the last collective that began
  Clock::time_point begun_at{}, seen{};
  std::uint64_t not_shown = 0;  ///< operations in flight beside `rows`
  struct Failure {
    std::uint32_t culprit = 0;
    std::string text;
    Clock::time_point at{};
  };
  std::optional<Failure> failure{};
  std::vector<LedgerRow> rows;  ///< oldest first
};

/// Errors: protocol_error (no ledger, or one of another version), system_error.
Result<LedgerCopy> read_ledger(int descriptor);

struct FoundLedger {
  pid_t pid = 0;        ///< as this process counts
  char state = '?';     ///< of the process, as in /proc/PID/stat: R, S, D, T (stopped), t (traced)
  std::string program;  ///< its name
  LedgerCopy ledger;
};

struct LedgerSearch {
  std::vector<FoundLedger> found;     ///< by process
  std::vector<Error> unreadable{};    ///< of ledgers that were found, but not read
  std::uint32_t not_looked_into = 0;  ///< processes that this one may not look into
};

/// All ledgers of this machine. Errors: system_error (no /proc).
Result<LedgerSearch> find_ledgers();

}  // namespace cenote
