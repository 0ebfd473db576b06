// write_bw: puts one behind the other; the last figure is taken when the peer says that it has them all.
#include "perf/tools/tool.h"

namespace cenote::perf {
namespace {

/// Each window of slots is checked by the peer before it is written again.
bool validated(Run& run, BandwidthRecord& record) {
  return windows(
      run, record, [&](std::uint64_t i) { return run.fill(run.own_buffer(), run.place(i), i); },
      [&](std::uint64_t i) { return run.endpoint().put(run.own(i), run.theirs(i), slot_data, i); },
      [&](std::uint64_t /*first*/, std::uint64_t /*count*/) { return run.await(slot_credit); });
}

bool measure(Run& run, Samples& samples) {
  BandwidthRecord& record = *samples.bandwidth;
  const bool well = run.plan.validate ? validated(run, record) : pump(run, record, [&](std::uint64_t i) {
    return run.endpoint().put(run.own(i), run.theirs(i), transport::no_signal, i);
  });
  if (!well || !run.conclude()) return false;
  record.finish(run.completed);
  return true;
}

std::function<bool()> part(Run& run) {
  if (!run.plan.validate) return only_answer(run);
  return [&run, next = std::uint64_t{0}]() mutable {
    const Plan& plan = run.plan;
    const std::uint64_t left = plan.iterations == 0 ? plan.slots : plan.iterations - next;
    const std::uint64_t count = std::min<std::uint64_t>(plan.slots, left);
    if (count == 0 || !run.has(slot_data, count)) return run.answer_done();
    run.take(slot_data, count);
    for (const std::uint64_t end = next + count; next < end; ++next) {
      if (!run.check(run.shared_buffer(), run.place(next), next)) return false;
    }
    return run.signal(slot_credit);
  };
}

}  // namespace

const Tool write_bw{
    "write_bw", "bandwidth of RDMA writes (puts)", Verb::write, false, 65536, 5000, prepare_nothing, measure,
    part};

}  // namespace cenote::perf
