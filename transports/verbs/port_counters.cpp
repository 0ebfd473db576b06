#include "transports/verbs/port_counters.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

namespace cenote::transport::verbs {
namespace {

/// Of names: mlx5's, rxe's, irdma's and bnxt's counters of faults have one of these words, those of traffic
/// none.
bool counts_faults(std::string_view name) {
  constexpr std::array<std::string_view, 14> words{"err",     "discard", "downed",    "drop",    "retry",
                                                   "retrans", "nak",     "nack",      "timeout", "out_of_",
                                                   "dup",     "overrun", "violation", "recovery"};
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return name.find(word) != std::string_view::npos; });
}

}  // namespace

std::filesystem::path folder_of_port(const std::string& port_name) {
  const auto colon = port_name.rfind(':');
  return std::filesystem::path("/sys/class/infiniband") / port_name.substr(0, colon) / "ports" /
         port_name.substr(colon == std::string::npos ? port_name.size() : colon + 1);
}

std::string faults_counted(const std::filesystem::path& port) {
  std::vector<std::string> found;
  bool any = false;
  for (const char* folder : {"counters", "hw_counters"}) {
    std::error_code missing;
    for (const auto& entry : std::filesystem::directory_iterator(port / folder, missing)) {
      std::ifstream in(entry.path());
      std::uint64_t value = 0;
      const std::string name = entry.path().filename().string();
      if (!counts_faults(name) || !(in >> value)) continue;
      any = true;
      if (value != 0) found.push_back(name + " " + std::to_string(value));
    }
  }
  if (!any) return "its counters cannot be read";
  if (found.empty()) return "no error is counted";
  std::sort(found.begin(), found.end());
  std::string out;
  for (const auto& each : found) out += (out.empty() ? "" : ", ") + each;
  return out;
}

}  // namespace cenote::transport::verbs
