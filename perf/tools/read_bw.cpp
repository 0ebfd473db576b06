// read_bw: gets one behind the other; complete is what has arrived.
#include "perf/tools/tool.h"

namespace cenote::perf {
namespace {

/// What was there before may not pass for what is read: each destination is overwritten first.
bool validated(Run& run, BandwidthRecord& record) {
  return windows(
      run, record,
      [&](std::uint64_t i) { return run.fill(run.own_buffer(), run.place(i), ~(i % run.plan.slots)); },
      [&](std::uint64_t i) { return run.endpoint().get(run.own(i), run.theirs(i), i); },
      [&](std::uint64_t first, std::uint64_t count) {
        for (std::uint64_t i = first; i < first + count; ++i) {
          if (!run.check(run.own_buffer(), run.place(i), i % run.plan.slots)) return false;
        }
        return true;
      });
}

bool measure(Run& run, Samples& samples) {
  BandwidthRecord& record = *samples.bandwidth;
  const bool well = run.plan.validate ? validated(run, record) : pump(run, record, [&](std::uint64_t i) {
    return run.endpoint().get(run.own(i), run.theirs(i), i);
  });
  if (!well) return false;
  record.finish(run.completed);
  return run.conclude();
}

}  // namespace

const Tool read_bw{
    "read_bw",  "bandwidth of RDMA reads (gets)", Verb::read, false, 65536, 1000, prepare_pattern, measure,
    only_answer};

}  // namespace cenote::perf
