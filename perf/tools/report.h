// What is shown: perftest's columns and units for people, and the same as JSON.
#pragma once

#include <string>
#include <vector>

#include "perf/tools/session.h"

namespace cenote::perf {

struct Measurement {
  Plan plan;
  Figures figures;
};

/// Who measures what over what, then the heading of the columns.
std::string heading(const Tool& tool, const Show& show, const Plan& plan, const Joined& joined);
std::string line(const Tool& tool, const Show& show, const Measurement& measured);
std::string footing();

/// test_info and results, with perftest's names. A single size is an object with the figures in `results`, as
/// perftest writes it, and each result is an element of `runs` too.
std::string json_text(const Tool& tool, const Show& show, const Joined& joined,
                      const std::vector<Measurement>& measured);

/// Errors: system_error, with the path.
Result<void> can_write(const std::string& path);  ///< without changing what is there
Result<void> write_file(const std::string& path, const std::string& text);

}  // namespace cenote::perf
