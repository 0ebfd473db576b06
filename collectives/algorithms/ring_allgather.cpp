// Ring: everybody passes on what it got last; N - 1 rounds, each block crosses each link once.
#include "collectives/algorithms/steps.h"

namespace cenote::collectives {

Schedule ring_allgather(const Shape& shape) {
  using namespace steps;
  const auto n = shape.ranks;
  const auto r = shape.rank;
  auto schedule = start(Operation::allgather, "ring", shape, 1);
  schedule.program.push_back({1, {copy(slice(Buffer::output, fixed(r)), slice(Buffer::input))}});
  if (n == 1) return schedule;
  const auto previous = (r + n - 1) % n;
  schedule.program.push_back({n - 1,
                              {send((r + 1) % n, slice(Buffer::output, falling(r, n))),
                               receive(previous, slice(Buffer::output, falling(previous, n)))}});
  return schedule;
}

}  // namespace cenote::collectives
