// send_bw: messages one behind the other. They have no completion of their own: the receiver gives a signal
// for every few that it has taken, which is when they count as complete. An empty message is the last.
//
// What is longer than the transport's longest message goes as the contract has it: a put into a place that
// the receiver has kept for it, and a signal that it is there. Places are used in turn, and one that was not
// taken is not written again.
#include "perf/tools/tool.h"

namespace cenote::perf {
namespace {

/// Messages that may be on their way: each has a place.
std::uint64_t window(const Run& run) {
  return run.placed ? std::min<std::uint64_t>(run.plan.depth, run.plan.slots) : run.plan.depth;
}

/// Messages a signal stands for: a few in the window, so that the sender rarely waits for one.
std::uint64_t credit(const Run& run) { return std::max<std::uint64_t>(1, window(run) / 4); }

bool send(Run& run, std::uint64_t message) {
  if (run.plan.validate && !run.fill(run.own_buffer(), run.place(message), message)) return false;
  return run.post([&] {
    return run.placed ? run.endpoint().put(run.own(message), run.theirs(message), slot_data, Run::aside)
                      : run.endpoint().send(run.own(message));
  });
}

bool measure(Run& run, Samples& samples) {
  BandwidthRecord& record = *samples.bandwidth;
  const std::uint64_t each = credit(run), most = window(run);
  std::uint64_t posted = 0, taken = 0;
  const auto look = [&] {
    const std::uint64_t signals = run.waiting(slot_credit);
    if (signals == 0) return record.nothing();
    run.take(slot_credit, signals);
    record.completed(taken, taken + signals * each);
    run.done = taken += signals * each;
  };
  record.begin();
  while (record.more(posted)) {
    while (record.more(posted) && posted - taken < most) {
      record.posting(posted);
      if (!send(run, posted)) return false;
      ++posted;
      if (run.has(slot_credit)) look();
    }
    if (!run.turn() || !run.reap()) return false;
    look();
  }
  if (!run.placed && !run.post([&] { return run.endpoint().send({}); })) return false;
  if (!run.conclude()) return false;
  while (taken + each <= posted) {  // given before the confirmation, and perhaps seen after it
    if (!run.await(slot_credit)) return false;
    record.completed(taken, taken + each);
    taken += each;
  }
  record.completed(taken, posted);
  record.finish(posted);
  return true;
}

std::function<bool()> take_messages(Run& run) {
  return [&run, into = Bytes(run.plan.size), next = std::uint64_t{0}, ended = false]() mutable {
    for (int i = 0; i < 16 && !ended; ++i) {
      auto came = run.endpoint().receive(into);
      if (!came) return run.fail_with(std::move(came).error());
      if (!*came) return true;
      ended = **came == 0;
      if (ended) break;
      if (run.plan.validate && !run.check_bytes(into, next)) return false;
      if (++next % credit(run) == 0 && !run.signal(slot_credit)) return false;
    }
    return !ended || run.answer_done();
  };
}

std::function<bool()> take_placed(Run& run) {
  return [&run, next = std::uint64_t{0}]() mutable {
    const bool ended = run.has(slot_done);  // looked at first: what was put before it is there then
    while (run.has(slot_data)) {
      run.take(slot_data);
      if (run.plan.validate && !run.check(run.shared_buffer(), run.place(next), next)) return false;
      if (++next % credit(run) == 0 && !run.signal(slot_credit)) return false;
    }
    return !ended || run.answer_done();
  };
}

std::function<bool()> part(Run& run) { return run.placed ? take_placed(run) : take_messages(run); }

}  // namespace

const Tool send_bw{"send_bw", "bandwidth of messages", Verb::send, false, 8192,
                   1000,      prepare_nothing,         measure,    part};

}  // namespace cenote::perf
