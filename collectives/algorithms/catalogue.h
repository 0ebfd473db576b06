// The catalogue: every algorithm by name, and which one "auto" takes. An algorithm is one file with one pure
// function (shape -> schedule of one rank); listing it here gives it verifier, executor, documentation and
// tests.
//
// Letters of the formulas: N ranks, n bytes of one rank's vector, P the largest power of two that is at most
// N, L = log2 P, F = 1 where N is no power of two, else 0.
#pragma once

#include <span>
#include <string_view>

#include "collectives/schedule.h"

namespace cenote::collectives {

/// What an algorithm may look at.
struct Shape {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  std::uint32_t root = 0;
};

struct Algorithm {
  std::string_view name;
  Operation operation;
  Schedule (*make)(const Shape& shape);
  std::string_view rounds_text;  ///< messages one after the other on the longest path, in letters
  std::string_view bytes_text;   ///< bytes that the busiest rank sends, in letters
  std::uint64_t (*rounds)(std::uint32_t ranks);
  /// The same as a number of blocks, where one vector has schedule.parts of them.
  std::uint64_t (*blocks)(std::uint32_t ranks);
};

Schedule ring_allreduce(const Shape& shape);
Schedule recursive_doubling_allreduce(const Shape& shape);
Schedule ring_allgather(const Shape& shape);
Schedule recursive_doubling_allgather(const Shape& shape);
Schedule binomial_broadcast(const Shape& shape);
Schedule dissemination_barrier(const Shape& shape);

[[nodiscard]] std::span<const Algorithm> catalogue();

/// The algorithm called `name`, or for "auto" the cheaper one by rounds and bytes: a round costs as much as
/// `round_cost_bytes` more on the wire. `bytes`: of one rank's vector. The same at every rank that passes the
/// same. Errors: not_found (lists the names).
inline constexpr std::uint64_t round_cost_bytes = std::uint64_t{32} * 1024;
Result<const Algorithm*> choose(Operation operation, std::string_view name, std::uint32_t ranks,
                                std::uint64_t bytes);

}  // namespace cenote::collectives
