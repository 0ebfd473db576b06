// Dissemination (Hensgen, Finkel and Manber, 1988): in round k rank r tells r + 2^k what it has heard of, and
// hears from r - 2^k; after ceil(log2 N) rounds everybody has heard of everybody. The token is one element,
// and the reduction idempotent: some ranks are heard of twice. Two buffers alternate, as in recursive
// doubling.
#include "collectives/algorithms/steps.h"

namespace cenote::collectives {

Schedule dissemination_barrier(const Shape& shape) {
  using namespace steps;
  const auto n = shape.ranks;
  auto schedule = start(Operation::barrier, "dissemination", shape, 1);
  std::vector<Step> program;
  Buffer heard = Buffer::input;
  for (std::uint64_t distance = 1; distance < n; distance *= 2) {
    const auto step = static_cast<std::uint32_t>(distance);
    const auto to = heard == Buffer::scratch ? Buffer::output : Buffer::scratch;
    program.push_back(send((shape.rank + step) % n, slice(heard)));
    program.push_back(reduce((shape.rank + n - step) % n, slice(to), slice(heard)));
    heard = to;
  }
  if (heard != Buffer::output) program.push_back(copy(slice(Buffer::output), slice(heard)));
  schedule.program = {{1, program}};
  return schedule;
}

}  // namespace cenote::collectives
