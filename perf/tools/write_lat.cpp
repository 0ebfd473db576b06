// write_lat: a put there, a put back, each seen by its signal; half of that is the latency.
#include "perf/tools/tool.h"

namespace cenote::perf {
namespace {

bool put(Run& run, std::uint64_t message) {
  return run.post(
      [&] { return run.endpoint().put(run.own(message), run.theirs(message), slot_data, Run::aside); });
}

bool measure(Run& run, Samples& samples) {
  const bool validate = run.plan.validate;
  const bool well = rounds(run, samples.latency, [&](std::uint64_t i) {
    if (validate && !run.fill(run.own_buffer(), run.place(i), 2 * i)) return false;
    if (!put(run, i) || !run.await(slot_data)) return false;
    if (validate && !run.check(run.shared_buffer(), run.place(i), 2 * i + 1)) return false;
    return run.reap();
  });
  return well && run.conclude();
}

std::function<bool()> part(Run& run) {
  return [&run, next = std::uint64_t{0}]() mutable {
    if (!run.has(slot_data)) return run.answer_done();
    run.take(slot_data);
    if (run.plan.validate && (!run.check(run.shared_buffer(), run.place(next), 2 * next) ||
                              !run.fill(run.own_buffer(), run.place(next), 2 * next + 1)))
      return false;
    return put(run, next++) && run.reap();
  };
}

}  // namespace

const Tool write_lat{"write_lat",
                     "latency of RDMA writes (puts), half a round trip",
                     Verb::write,
                     true,
                     2,
                     1000,
                     prepare_nothing,
                     measure,
                     part};

}  // namespace cenote::perf
