// atomic_lat: one fetch-and-add at a time; its whole round trip is the latency.
#include <cstring>

#include "perf/tools/tool.h"

namespace cenote::perf {
namespace {

bool finished(Run& run, std::uint64_t count) {
  while (run.completed < count) {
    if (!run.turn() || !run.reap()) return false;
  }
  return true;
}

bool expect(Run& run, std::uint64_t what, std::uint64_t expected, std::uint64_t add) {
  if (what == expected) return true;
  return run.fail_with(Error{
      ErrorCode::internal, "validate",
      "add " + std::to_string(add) + " found " + std::to_string(what) + ", not " + std::to_string(expected)});
}

/// The word begins at 0 in every run.
bool prepare(Run& run) {
  const std::uint64_t zero = 0;
  auto cleared = run.shared_buffer().write(0, std::as_bytes(std::span(&zero, 1)));
  return cleared ? true : run.failed_by(cleared);
}

bool measure(Run& run, Samples& samples) {
  std::uint64_t old = 0, sum = 0, adds = 0;
  const bool well = rounds(run, samples.latency, [&](std::uint64_t i) {
    const std::uint64_t value = 2 * i + 1;
    if (!run.post([&] { return run.endpoint().atomic_add(run.theirs(0), value, &old, i); })) return false;
    if (!finished(run, i + 1)) return false;
    if (run.plan.validate && !expect(run, old, sum, i)) return false;
    sum += value;
    adds = i + 1;
    return true;
  });
  if (!well) return false;
  if (run.plan.validate) {  // the word itself, by a read
    const auto get = [&] { return run.endpoint().get(run.own(0), run.theirs(0), adds); };
    if (!run.post(get) || !finished(run, adds + 1)) return false;
    auto copied = run.own_buffer().read(0, std::as_writable_bytes(std::span(&old, 1)));
    if (!copied) return run.failed_by(copied);
    if (!expect(run, old, sum, adds)) return false;
  }
  return run.conclude();
}

}  // namespace

const Tool atomic_lat{"atomic_lat",
                      "latency of a fetch-and-add of 8 bytes, a whole round trip",
                      Verb::atomic,
                      true,
                      8,
                      1000,
                      prepare,
                      measure,
                      only_answer};

}  // namespace cenote::perf
