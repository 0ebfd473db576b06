// Binomial tree: in round k the ranks that have the vector pass it to those 2^k away; chunks flow through the
// tree one behind the other.
#include "collectives/algorithms/steps.h"

namespace cenote::collectives {

Schedule binomial_broadcast(const Shape& shape) {
  using namespace steps;
  const auto n = shape.ranks;
  auto schedule = start(Operation::broadcast, "binomial", shape, 1);
  // Ranks counted from the root; the lowest set bit says when a rank is reached and how far it reaches.
  const auto v = (shape.rank + n - shape.root) % n;
  const auto real = [&](std::uint32_t of) {
    return static_cast<std::uint32_t>((std::uint64_t{of} + shape.root) % n);
  };
  std::vector<Step> program;
  if (v == 0) {
    program.push_back(copy(slice(Buffer::output), slice(Buffer::input)));
  } else {
    program.push_back(receive(real(v & (v - 1)), slice(Buffer::output)));
  }
  const auto reach = v == 0 ? std::bit_ceil(n) : v & (~v + 1);
  for (auto step = reach / 2; step > 0; step /= 2) {
    if (std::uint64_t{v} + step < n) program.push_back(send(real(v + step), slice(Buffer::output)));
  }
  schedule.program = {{1, program}};
  return schedule;
}

}  // namespace cenote::collectives
