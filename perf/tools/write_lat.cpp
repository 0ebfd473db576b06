// write_lat: a put there, a put back, each seen by its signal; half of that is the latency. With
// --poll-memory there are no signals: each put is seen by its last byte, and nothing is posted before the
// previous one is complete, as perftest has it.
#include <atomic>

#include "perf/tools/tool.h"

namespace cenote::perf {
namespace {

bool put(Run& run, std::uint64_t message, std::uint32_t signal, std::uint64_t tag) {
  return run.post([&] { return run.endpoint().put(run.own(message), run.theirs(message), signal, tag); });
}

/// What the last byte of a message is, there or back. Memory is zero before the first.
std::byte mark(std::uint64_t message) { return static_cast<std::byte>(message % 255 + 1); }

std::byte last_byte(const Run& run) {
  auto& byte = reinterpret_cast<unsigned char&>(run.shared_buffer().at(0, run.plan.size).back());
  return static_cast<std::byte>(std::atomic_ref(byte).load(std::memory_order_acquire));
}

bool prepare(Run& run) {
  if (run.plan.poll_memory) run.shared_buffer().at(0, run.plan.size).back() = std::byte{0};
  return true;
}

/// Puts message `message` of this end, which is complete when this returns.
bool put_marked(Run& run, std::uint64_t message) {
  run.own(message).back() = mark(message);
  if (!put(run, message, transport::no_signal, message)) return false;
  while (run.completed <= message) {
    if (!run.turn() || !run.reap()) return false;
  }
  return true;
}

bool measure_marks(Run& run, Samples& samples) {
  const bool well = rounds(run, samples.latency, [&](std::uint64_t i) {
    if (!put_marked(run, i)) return false;
    while (last_byte(run) != mark(i)) {
      if (!run.turn()) return false;
    }
    return true;
  });
  return well && run.conclude();
}

bool measure(Run& run, Samples& samples) {
  if (run.plan.poll_memory) return measure_marks(run, samples);
  const bool validate = run.plan.validate;
  const bool well = rounds(run, samples.latency, [&](std::uint64_t i) {
    if (validate && !run.fill(run.own_buffer(), run.place(i), 2 * i)) return false;
    if (!put(run, i, slot_data, Run::aside) || !run.await(slot_data)) return false;
    if (validate && !run.check(run.shared_buffer(), run.place(i), 2 * i + 1)) return false;
    return run.reap();
  });
  return well && run.conclude();
}

std::function<bool()> answer_marks(Run& run) {
  return [&run, next = std::uint64_t{0}]() mutable {
    if (last_byte(run) != mark(next)) return run.answer_done();
    return put_marked(run, next++);
  };
}

std::function<bool()> part(Run& run) {
  if (run.plan.poll_memory) return answer_marks(run);
  return [&run, next = std::uint64_t{0}]() mutable {
    if (!run.has(slot_data)) return run.answer_done();
    run.take(slot_data);
    if (run.plan.validate && (!run.check(run.shared_buffer(), run.place(next), 2 * next) ||
                              !run.fill(run.own_buffer(), run.place(next), 2 * next + 1)))
      return false;
    return put(run, next++, slot_data, Run::aside) && run.reap();
  };
}

}  // namespace

const Tool write_lat{"write_lat", "latency of RDMA writes (puts), half a round trip",
                     Verb::write, true,
                     2,           1000,
                     prepare,     measure,
                     part};

}  // namespace cenote::perf
