// What every bench shares: alternating pairs of measurements, the rows they become, table and JSON.
//
// Absolute figures depend on the machine and the hour; what is compared is measured in turns in the same run,
// and the ratio carries a 95 % interval over the pairs.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/result.h"

namespace cenote::perf {

enum class Better : bool { lower, higher };

/// What is compared, and how often.
struct Comparison {
  std::string name;
  std::string unit;
  std::string against;  ///< a peer, or a limit of the machine
  Better better = Better::lower;
  std::optional<double> bar{};  ///< the least ratio it should have
};

/// One line of the result. `ratio` above 1 = better than what it is compared with.
struct Row {
  std::string name;
  std::size_t pairs = 0;  ///< measured
  double value = 0;
  std::string unit;
  std::string against;
  double against_value = 0;
  double ratio = 0;
  double spread[2] = {0, 0};
  std::optional<double> bar{};
  bool met = true;
};

struct Sample {
  double ours = 0;
  double theirs = 0;
};

/// Medians of both sides; geometric mean of the ratios, with the 95 % interval of Student's t on their
/// logarithms. At least two samples.
Row summarise(const Comparison& comparison, const std::vector<Sample>& samples);

/// Measures `pairs` times, ours and theirs in turns, and which comes first in turns as well.
Result<Row> compare(const Comparison& comparison, int pairs, const std::function<Result<double>()>& ours,
                    const std::function<Result<double>()>& theirs);

/// The rows as a table for people.
std::string table(const std::vector<Row>& rows);
/// The rows as a JSON array. Errors: system_error.
Result<void> write_json(const std::vector<Row>& rows, const std::string& path);

}  // namespace cenote::perf
