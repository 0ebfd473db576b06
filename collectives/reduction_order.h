// In which order an allreduce combines the ranks, made for replay: a single device that holds all shards gets
// the same bits as the pooled allreduce by running these pair steps, each a kernel dst[i] = op(dst[i],
// src[i]).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/result.h"
#include "runtime/types.h"

namespace cenote::collectives {

/// shard[dst][i] = op(shard[dst][i], shard[src][i])
struct PairStep {
  std::uint32_t dst;
  std::uint32_t src;
  bool operator==(const PairStep&) const = default;
};

/// Elements [first, first + count) of every shard. After the steps, in order, shard `result` holds the
/// reduction (for an average: the sum; divide each element once, as reduce/reduce.h does). Shards are
/// overwritten.
struct OrderedRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::vector<PairStep> steps;
  std::uint32_t result = 0;
  std::string expression;  ///< "((0 + 1) + 2)", for people
};

/// The order that a communicator of `ranks` follows for allreduce(count, type) with that algorithm ("auto"
/// chooses as it does). Ranges cover [0, count) without gaps; equal neighbours are one. `op` must be a
/// reduction; the order does not depend on it. Errors: not_found, invalid_argument.
Result<std::vector<OrderedRange>> reduction_order(ReduceOp op, std::string_view algorithm,
                                                  std::uint32_t ranks, std::uint64_t count, DataType type);

}  // namespace cenote::collectives
