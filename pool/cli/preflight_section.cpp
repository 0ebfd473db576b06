#include "pool/cli/preflight_section.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace cenote::pool::cli {

using transport::verbs::Finding;
using transport::verbs::Verdict;

std::string preflight_text(const std::vector<Finding>& findings) {
  std::size_t width = 0;
  for (const auto& finding : findings) width = std::max(width, finding.subject.size());
  std::string out = "RDMA preflight\n";
  std::array<std::size_t, 4> count{};
  for (const auto& finding : findings) {
    ++count[static_cast<std::size_t>(finding.verdict)];
    out +=
        fmt::format("  {:<8}{:<{}}  {}\n", to_string(finding.verdict), finding.subject, width, finding.seen);
    if (!finding.remedy.empty()) out += fmt::format("{:>{}}{}\n", "", width + 12, finding.remedy);
  }
  return out + fmt::format("  {} ok, {} warning{}, {} problem{}, {} unknown\n", count[0], count[1],
                           count[1] == 1 ? "" : "s", count[2], count[2] == 1 ? "" : "s", count[3]);
}

bool has_problem(const std::vector<Finding>& findings) {
  return std::ranges::any_of(findings,
                             [](const Finding& finding) { return finding.verdict == Verdict::problem; });
}

}  // namespace cenote::pool::cli
