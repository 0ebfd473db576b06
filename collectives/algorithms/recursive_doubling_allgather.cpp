// Recursive doubling: in round k groups of 2^k exchange everything they have. Ranks beyond a power of two
// hand their block to a neighbour first and get everything from it last; folded pairs are neighbours, so what
// a group holds is always one run of blocks.
#include "collectives/algorithms/steps.h"

namespace cenote::collectives {

Schedule recursive_doubling_allgather(const Shape& shape) {
  using namespace steps;
  const auto n = shape.ranks;
  const auto r = shape.rank;
  auto schedule = start(Operation::allgather, "recursive_doubling", shape, 1);
  const Fold fold(n);
  const auto blocks = [](std::uint32_t first, std::uint32_t end) {
    return slice(Buffer::output, fixed(first), end - first);
  };
  if (fold.idle(r)) {
    schedule.program = {{1, {send(r - 1, slice(Buffer::input)), receive(r - 1, blocks(0, n))}}};
    return schedule;
  }
  std::vector<Step> program{copy(slice(Buffer::output, fixed(r)), slice(Buffer::input))};
  if (fold.paired(r)) program.push_back(receive(r + 1, blocks(r + 1, r + 2)));
  const auto v = fold.virtual_of(r);
  const auto begin_of = [&](std::uint32_t group) { return group == fold.power ? n : fold.real_of(group); };
  for (std::uint32_t size = 1; size < fold.power; size *= 2) {
    const auto mine = v & ~(size - 1);
    const auto theirs = mine ^ size;
    const auto peer = fold.real_of(v ^ size);
    program.push_back(send(peer, blocks(begin_of(mine), begin_of(mine + size))));
    program.push_back(receive(peer, blocks(begin_of(theirs), begin_of(theirs + size))));
  }
  if (fold.paired(r)) program.push_back(send(r + 1, blocks(0, n)));
  schedule.program = {{1, program}};
  return schedule;
}

}  // namespace cenote::collectives
