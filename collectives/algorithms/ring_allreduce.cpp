// Ring: reduce-scatter, then allgather, over N blocks. Block b starts at rank b and is summed once around the
// ring, so its order is op(rank b - 1, ... op(rank b + 1, rank b)). Bandwidth-optimal (Patarasuk and Yuan,
// 2009).
#include "collectives/algorithms/steps.h"

namespace cenote::collectives {

Schedule ring_allreduce(const Shape& shape) {
  using namespace steps;
  const auto n = shape.ranks;
  auto schedule = start(Operation::allreduce, "ring", shape, n);
  const auto in = slice(Buffer::input, fixed(0), n);
  const auto out = slice(Buffer::output, fixed(0), n);
  if (n == 1) {
    schedule.program = {{1, {copy(out, in), finish(out)}}};
    return schedule;
  }
  const auto r = shape.rank;
  const auto next = (r + 1) % n;
  const auto previous = (r + n - 1) % n;
  const auto input = [&](Index block) { return slice(Buffer::input, block); };
  const auto output = [&](Index block) { return slice(Buffer::output, block); };

  schedule.program.push_back(
      {1, {send(next, input(fixed(r))), reduce(previous, output(fixed(previous)), input(fixed(previous)))}});
  if (n > 2) {
    const auto partial = falling(previous, n);
    const auto mine = falling(previous + n - 1, n);
    schedule.program.push_back(
        {n - 2, {send(next, output(partial)), reduce(previous, output(mine), input(mine))}});
  }
  schedule.program.push_back({1, {finish(output(fixed(next)))}});
  schedule.program.push_back(
      {n - 1, {send(next, output(falling(next, n))), receive(previous, output(falling(r, n)))}});
  return schedule;
}

}  // namespace cenote::collectives
