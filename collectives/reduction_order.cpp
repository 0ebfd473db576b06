#include "collectives/reduction_order.h"

#include "collectives/algorithms/catalogue.h"
#include "collectives/verifier.h"

namespace cenote::collectives {
namespace {

/// Emits the steps of a tree; the result lies in the shard that this returns.
std::uint32_t replay(const ReductionTrees& trees, std::uint32_t node, std::vector<PairStep>& steps) {
  const auto& n = trees.nodes[node];
  if (n.finished) return replay(trees, n.left, steps);
  if (n.left == 0) return n.lowest;
  const auto left = replay(trees, n.left, steps);
  const auto right = replay(trees, n.right, steps);
  steps.push_back({left, right});
  return left;
}

}  // namespace

Result<std::vector<OrderedRange>> reduction_order(ReduceOp op, std::string_view algorithm,
                                                  std::uint32_t ranks, std::uint64_t count, DataType type) {
  if (ranks == 0 || size_of(type) == 0 || to_string(op) == "unknown reduction") {
    return fail(ErrorCode::invalid_argument, "reduction order", "no ranks, or an unknown type or reduction");
  }
  CENOTE_ASSIGN(const auto* chosen, choose(Operation::allreduce, algorithm, ranks, count * size_of(type)));
  std::vector<Schedule> schedules;
  for (std::uint32_t r = 0; r < ranks; ++r) schedules.push_back(chosen->make({r, ranks, 0}));
  const auto parts = schedules[0].parts;
  // One element stands for each block: a schedule treats all elements of a block alike.
  CENOTE_ASSIGN(auto proof, verify(schedules, parts));
  std::vector<OrderedRange> ranges;
  std::uint32_t before = 0;
  for (std::uint32_t block = 0; block < parts; ++block) {
    const auto first = block_offset(count, parts, block);
    const auto size = block_offset(count, parts, block + 1) - first;
    if (size == 0) continue;
    const auto tree = proof.output[block];
    if (tree == before) {
      ranges.back().count += size;
      continue;
    }
    before = tree;
    OrderedRange range{first, size, {}, 0, proof.trees.text(tree)};
    range.result = replay(proof.trees, tree, range.steps);
    ranges.push_back(std::move(range));
  }
  return ranges;
}

}  // namespace cenote::collectives
