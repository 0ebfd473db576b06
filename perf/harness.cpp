#include "perf/harness.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace cenote::perf {
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// Student's t, two-sided 95 %, by degrees of freedom.
double student_t(std::size_t freedom) {
  constexpr std::array<double, 31> table{0,     12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365,
                                         2.306, 2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
                                         2.120, 2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069,
                                         2.064, 2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
  return freedom < table.size() ? table[freedom] : 1.96;
}

}  // namespace

Row summarise(const Comparison& comparison, const std::vector<Sample>& samples) {
  std::vector<double> ours, theirs, logs;
  for (const Sample& sample : samples) {
    ours.push_back(sample.ours);
    theirs.push_back(sample.theirs);
    const double ratio =
        comparison.better == Better::lower ? sample.theirs / sample.ours : sample.ours / sample.theirs;
    logs.push_back(std::log(ratio));
  }
  const auto count = static_cast<double>(logs.size());
  double mean = 0, squares = 0;
  for (const double value : logs) mean += value / count;
  for (const double value : logs) squares += (value - mean) * (value - mean);
  const double error = std::sqrt(squares / (count - 1) / count) * student_t(logs.size() - 1);
  Row row;
  row.name = comparison.name;
  row.pairs = samples.size();
  row.unit = comparison.unit;
  row.against = comparison.against;
  row.value = median(ours);
  row.against_value = median(theirs);
  row.ratio = std::exp(mean);
  row.spread[0] = std::exp(mean - error);
  row.spread[1] = std::exp(mean + error);
  row.bar = comparison.bar;
  row.met = !comparison.bar || row.ratio >= *comparison.bar;
  return row;
}

Result<Row> compare(const Comparison& comparison, int pairs, const std::function<Result<double>()>& ours,
                    const std::function<Result<double>()>& theirs) {
  if (pairs < 2)
    return fail(ErrorCode::invalid_argument, "measure " + comparison.name, "it takes two pairs at least");
  std::vector<Sample> samples;
  for (int pair = 0; pair < pairs; ++pair) {
    Sample sample;
    if (pair % 2 == 0) {
      CENOTE_ASSIGN(sample.ours, ours());
      CENOTE_ASSIGN(sample.theirs, theirs());
    } else {
      CENOTE_ASSIGN(sample.theirs, theirs());
      CENOTE_ASSIGN(sample.ours, ours());
    }
    samples.push_back(sample);
  }
  return summarise(comparison, samples);
}

std::string table(const std::vector<Row>& rows) {
  std::string out = fmt::format("{:<34} {:>10} {:<5}  {:<30} {:>10} {:>7}  {:<15} {:>6} {}\n", "name",
                                "value", "unit", "against", "its value", "ratio", "95 %", "bar", "met");
  for (const Row& row : rows) {
    const std::string spread = fmt::format("{:.2f} to {:.2f}", row.spread[0], row.spread[1]);
    out += fmt::format("{:<34} {:>10.3f} {:<5}  {:<30} {:>10.3f} {:>7.2f}  {:<15} {:>6} {}\n", row.name,
                       row.value, row.unit, row.against, row.against_value, row.ratio, spread,
                       row.bar ? fmt::format("{:.3f}", *row.bar) : "-",
                       row.bar ? (row.met ? "yes" : "NO") : "-");
  }
  return out;
}

Result<void> write_json(const std::vector<Row>& rows, const std::string& path) {
  auto all = nlohmann::json::array();
  for (const Row& row : rows) {
    all.push_back({{"name", row.name},
                   {"pairs", row.pairs},
                   {"value", row.value},
                   {"unit", row.unit},
                   {"against", row.against},
                   {"against_value", row.against_value},
                   {"ratio", row.ratio},
                   {"spread", {row.spread[0], row.spread[1]}},
                   {"bar", row.bar ? nlohmann::json(*row.bar) : nlohmann::json()},
                   {"met", row.met}});
  }
  std::ofstream file(path);
  file << all.dump(2) << '\n';
  file.flush();
  if (!file) return fail(system_error("write " + path, errno));
  return {};
}

}  // namespace cenote::perf
