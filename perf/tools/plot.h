// The figures of a size sweep as a picture: SVG in plain text, without a library, a script or a font of its
// own.
#pragma once

#include <string>
#include <vector>

#include "perf/tools/report.h"

namespace cenote::perf {

/// Sizes on a logarithmic axis. Bandwidth: average and peak on a linear axis from 0. Latency: typical, 99 %
/// and 99.9 % on a logarithmic one. What was not measured is left out.
std::string plot(const Tool& tool, const Show& show, const Joined& joined,
                 const std::vector<Measurement>& measured);

}  // namespace cenote::perf
