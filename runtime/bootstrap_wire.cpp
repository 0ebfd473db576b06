#include "runtime/bootstrap_wire.h"

namespace cenote::bootstrap {

std::string to_string(Operation operation) {
  switch (operation) {
    case Operation::allgather:
      return "allgather";
    case Operation::broadcast:
      return "broadcast";
    case Operation::barrier:
      return "barrier";
  }
  return "unknown operation";
}

std::string list_ranks(std::uint32_t size, const std::function<bool(std::uint32_t)>& is_missing) {
  constexpr int most_groups = 12;
  std::string listed;
  int groups = 0;
  std::uint32_t count = 0;
  std::uint32_t shown = 0;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    if (!is_missing(rank)) continue;
    const auto first = rank;
    while (rank + 1 < size && is_missing(rank + 1)) ++rank;
    count += rank - first + 1;
    if (++groups > most_groups) continue;
    shown = count;
    listed += (listed.empty() ? "" : ", ") + std::to_string(first);
    if (rank > first) listed += (rank == first + 1 ? ", " : "-") + std::to_string(rank);
  }
  if (count == 0) return {};
  if (count > shown) listed += " and " + std::to_string(count - shown) + " more";
  return (count == 1 ? "rank " : "ranks ") + listed + " of " + std::to_string(size);
}

std::string have(const std::string& ranks) { return ranks.starts_with("ranks") ? " have" : " has"; }

}  // namespace cenote::bootstrap
