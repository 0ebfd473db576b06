// read_lat: one get at a time; its whole round trip is the latency.
#include "perf/tools/tool.h"

namespace cenote::perf {
namespace {

bool measure(Run& run, Samples& samples) {
  const bool validate = run.plan.validate;
  const bool well = rounds(run, samples.latency, [&](std::uint64_t i) {
    const std::uint64_t slot =
        validate ? i % run.plan.slots : 0;  // a division is a tenth of what this end does
    if (validate && !run.fill(run.own_buffer(), run.place(i), ~slot)) return false;
    if (!run.post([&] { return run.endpoint().get(run.own(i), run.theirs(i), i); })) return false;
    while (run.completed <= i) {
      if (!run.turn() || !run.reap()) return false;
    }
    return !validate || run.check(run.own_buffer(), run.place(i), slot);
  });
  return well && run.conclude();
}

}  // namespace

const Tool read_lat{"read_lat",
                    "latency of RDMA reads (gets), a whole round trip",
                    Verb::read,
                    true,
                    2,
                    1000,
                    prepare_pattern,
                    measure,
                    only_answer};

}  // namespace cenote::perf
