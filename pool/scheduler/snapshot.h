// What the scheduler knows besides the state: how the pool is doing at this moment. Never logged.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace cenote::pool {

struct LoadSnapshot {
  std::int64_t now_ms = 0;
  /// Agents that were heard of in this term and are not silent. Nothing is placed elsewhere.
  std::set<std::string> reachable;
  /// 0 to 1 by device uuid, where known. Breaks ties between shared devices.
  std::map<std::string, double> utilisation;
};

}  // namespace cenote::pool
