// Rows of docs/faults.md: a test that injects faults says what it did, in its report, and
// tools/dev/faults_page.py makes the page of all reports. Rows that differ only in `times` are added up.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace cenote::test {

/// `times`: how often in this run, the same in every run. `seen`: what the test holds to be so.
struct FaultRow {
  std::string where;  ///< the heading that it stands under
  std::string fault;
  std::uint64_t times = 0;
  std::string promise;
  std::string seen;
};

inline void tried(const FaultRow& row) {
  static int rows = 0;
  testing::Test::RecordProperty(
      "fault_row_" + std::to_string(rows++),
      row.where + "|" + row.fault + "|" + std::to_string(row.times) + "|" + row.promise + "|" + row.seen);
}

}  // namespace cenote::test
