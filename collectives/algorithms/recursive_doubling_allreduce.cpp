// Recursive doubling: in round k everybody exchanges its whole vector with the rank whose bit k differs.
// Latency- optimal. Ranks beyond a power of two fold onto a neighbour first and get the result from it last
// (Thakur, Rabenseifner and Gropp, 2005). The running sum alternates between two buffers, so that what is
// being sent is never overwritten.
#include "collectives/algorithms/steps.h"

namespace cenote::collectives {

Schedule recursive_doubling_allreduce(const Shape& shape) {
  using namespace steps;
  auto schedule = start(Operation::allreduce, "recursive_doubling", shape, 1);
  const auto r = shape.rank;
  const Fold fold(shape.ranks);
  std::vector<Step> program;
  if (fold.idle(r)) {
    program = {send(r - 1, slice(Buffer::input)), receive(r - 1, slice(Buffer::output))};
    schedule.program = {{1, program}};
    return schedule;
  }
  // In place, input and output are the same memory: the first exchange must leave it.
  Buffer running = Buffer::input;
  const auto other = [](Buffer buffer) {
    return buffer == Buffer::scratch ? Buffer::output : Buffer::scratch;
  };
  if (fold.paired(r)) {
    program.push_back(reduce(r + 1, slice(Buffer::output), slice(running)));
    running = Buffer::output;
  }
  for (std::uint32_t bit = 1; bit < fold.power; bit *= 2) {
    const auto peer = fold.real_of(fold.virtual_of(r) ^ bit);
    const auto to = other(running);
    program.push_back(send(peer, slice(running)));
    program.push_back(reduce(peer, slice(to), slice(running)));
    running = to;
  }
  if (running != Buffer::output) program.push_back(copy(slice(Buffer::output), slice(running)));
  program.push_back(finish(slice(Buffer::output)));
  if (fold.paired(r)) program.push_back(send(r + 1, slice(Buffer::output)));
  schedule.program = {{1, program}};
  return schedule;
}

}  // namespace cenote::collectives
