// send_lat: a message there, a message back; half of that is the latency.
#include "perf/tools/tool.h"

namespace cenote::perf {
namespace {

bool send(Run& run, std::uint64_t message, std::uint64_t number) {
  if (run.plan.validate && !run.fill(run.own_buffer(), run.place(message), number)) return false;
  return run.post([&] { return run.endpoint().send(run.own(message)); });
}

/// 1: a message was taken; 0: there is none; -1: the run is over.
int receive(Run& run, std::span<std::byte> into, std::uint64_t number) {
  auto came = run.endpoint().receive(into);
  if (!came) {
    run.fail_with(std::move(came).error());
    return -1;
  }
  if (!*came) return 0;
  if (**came != into.size()) {
    run.fail_with({ErrorCode::internal, "receive", "a message of another length came"});
    return -1;
  }
  return !run.plan.validate || run.check_bytes(into, number) ? 1 : -1;
}

bool measure(Run& run, Samples& samples) {
  Bytes into(run.plan.size);
  const bool well = rounds(run, samples.latency, [&](std::uint64_t i) {
    if (!send(run, i, 2 * i)) return false;
    int came = 0;
    while ((came = receive(run, into, 2 * i + 1)) == 0) {
      if (!run.turn()) return false;
    }
    return came > 0;
  });
  return well && run.conclude();
}

std::function<bool()> part(Run& run) {
  return [&run, into = Bytes(run.plan.size), next = std::uint64_t{0}]() mutable {
    const int came = receive(run, into, 2 * next);
    if (came == 0) return run.answer_done();
    if (came < 0 || !send(run, next, 2 * next + 1)) return false;
    ++next;
    return true;
  };
}

}  // namespace

const Tool send_lat{
    "send_lat", "latency of messages, half a round trip", Verb::send, true, 2, 1000, prepare_nothing, measure,
    part};

}  // namespace cenote::perf
