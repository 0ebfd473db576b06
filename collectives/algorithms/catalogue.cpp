#include "collectives/algorithms/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>

namespace cenote::collectives {
namespace {

using N = std::uint32_t;

std::uint64_t log2_floor(N ranks) { return static_cast<std::uint64_t>(std::bit_width(ranks)) - 1; }
std::uint64_t log2_ceil(N ranks) { return static_cast<std::uint64_t>(std::bit_width(ranks - 1)); }
std::uint64_t folded(N ranks) { return std::has_single_bit(ranks) ? 0 : 1; }

/// Blocks that a rank of recursive doubling sends: its group's, doubled each round. The busiest rank is an
/// even one of a folded pair (it also sends everything to the other), or any where nothing is folded.
std::uint64_t doubling_allgather_blocks(N ranks) {
  std::uint64_t most = 0;
  const auto power = std::bit_floor(ranks);
  const auto extra = ranks - power;
  const auto begin = [&](std::uint64_t v) { return v == power ? ranks : (v < extra ? 2 * v : v + extra); };
  for (std::uint64_t v = 0; v < power; ++v) {
    std::uint64_t sent = v < extra ? ranks : 0;
    for (std::uint64_t size = 1; size < power; size *= 2) {
      const auto mine = v & ~(size - 1);
      sent += begin(mine + size) - begin(mine);
    }
    most = std::max(most, sent);
  }
  return most;
}

constexpr std::array algorithms{
    Algorithm{"recursive_doubling", Operation::allreduce, recursive_doubling_allreduce, "L + 2F", "(L + F) n",
              [](N n) { return log2_floor(n) + 2 * folded(n); },
              [](N n) { return log2_floor(n) + folded(n); }},
    Algorithm{"ring", Operation::allreduce, ring_allreduce, "2 (N - 1)", "2 (N - 1) n / N",
              [](N n) { return 2 * (std::uint64_t{n} - 1); }, [](N n) { return 2 * (std::uint64_t{n} - 1); }},
    Algorithm{"recursive_doubling", Operation::allgather, recursive_doubling_allgather, "L + 2F",
              "(N - 1) n; where F = 1, less than 3 N n", [](N n) { return log2_floor(n) + 2 * folded(n); },
              doubling_allgather_blocks},
    Algorithm{"ring", Operation::allgather, ring_allgather, "N - 1", "(N - 1) n",
              [](N n) { return std::uint64_t{n} - 1; }, [](N n) { return std::uint64_t{n} - 1; }},
    Algorithm{"binomial", Operation::broadcast, binomial_broadcast, "L + F", "(L + F) n", log2_ceil,
              log2_ceil},
    Algorithm{"dissemination", Operation::barrier, dissemination_barrier, "L + F", "4 (L + F)", log2_ceil,
              log2_ceil},
};

std::uint64_t parts_of(const Algorithm& algorithm, N ranks) {
  return algorithm.make == ring_allreduce ? ranks : 1;
}

double cost(const Algorithm& algorithm, N ranks, std::uint64_t bytes) {
  const auto wire = static_cast<double>(algorithm.blocks(ranks)) * static_cast<double>(bytes) /
                    static_cast<double>(parts_of(algorithm, ranks));
  return static_cast<double>(algorithm.rounds(ranks)) * static_cast<double>(round_cost_bytes) + wire;
}

}  // namespace

std::span<const Algorithm> catalogue() { return algorithms; }

Result<const Algorithm*> choose(Operation operation, std::string_view name, N ranks, std::uint64_t bytes) {
  const Algorithm* best = nullptr;
  std::string names;
  bool known = name == "auto";
  for (const auto& algorithm : algorithms) {
    known = known || algorithm.name == name;
    if (algorithm.operation != operation) {
      continue;
    }
    names += fmt::format("{}{}", names.empty() ? "" : ", ", algorithm.name);
    if (algorithm.name == name) return &algorithm;
    if (best == nullptr || cost(algorithm, ranks, bytes) < cost(*best, ranks, bytes)) best = &algorithm;
  }
  if (best == nullptr || !known) {
    return fail(Error{ErrorCode::not_found, fmt::format("choose an algorithm for {}", to_string(operation)),
                      fmt::format("no algorithm is called '{}'", name)}
                    .fix(fmt::format("take auto, {}", names)));
  }
  return best;  // the name belongs to another operation: here the choice is free
}

}  // namespace cenote::collectives
