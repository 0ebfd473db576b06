// What a run writes down while it goes: when bandwidth's messages were posted and completed, how long each
// round of a latency took. All memory is there before it begins.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "perf/tools/plan.h"
#include "perf/tools/run.h"
#include "perf/tools/statistics.h"

namespace cenote::perf {

/// By iterations: from the first post to finish(). By duration: between the margins, by what completed there.
class BandwidthRecord {
 public:
  static constexpr std::uint64_t most_stamps = std::uint64_t{1} << 20U;  ///< beyond: no peak

  explicit BandwidthRecord(const Plan& plan);
  void begin();
  /// Whether a message beyond `posted` is to be posted.
  [[nodiscard]] bool more(std::uint64_t posted) const { return timed_ ? !over_ : posted < plan_.iterations; }
  void posting(std::uint64_t message) {
    if (stamps_) posted_[message] = now_ns();
  }
  /// Messages [from, to) are complete.
  void completed(std::uint64_t from, std::uint64_t to) {
    if (timed_) return see(to);
    if (!stamps_) return;
    const std::int64_t now = now_ns();
    for (std::uint64_t i = from; i < to; ++i) completed_[i] = now;
  }
  /// Nothing was complete: the time may be over all the same.
  void nothing() {
    if (timed_ && ++looks_ % 64 == 0) over_ = now_ns() >= end_;
  }
  /// The peer has it all.
  void finish(std::uint64_t messages);
  [[nodiscard]] BandwidthFigures figures() const;

 private:
  void see(std::uint64_t complete);

  const Plan& plan_;
  bool timed_, stamps_, over_ = false;
  std::uint64_t looks_ = 0;
  std::int64_t begin_ = 0, end_ = 0;
  std::uint64_t first_count_ = 0, last_count_ = 0;
  std::int64_t first_time_ = 0, last_time_ = 0;
  std::vector<std::int64_t> posted_, completed_;
};

struct Samples {
  LatencyRecord latency;
  std::optional<BandwidthRecord> bandwidth;
};

/// Keeps up to `depth` operations in flight until the record has enough; `post(i)` posts message i with any
/// tag but Run::aside.
template <class Post>
bool pump(Run& run, BandwidthRecord& record, Post&& post) {
  std::uint64_t posted = 0, seen = 0;
  record.begin();
  while (true) {
    while (record.more(posted) && posted - run.completed < run.plan.depth) {
      record.posting(posted);
      if (!run.post([&] { return post(posted); })) return false;
      ++posted;
    }
    if (!run.turn() || !run.reap()) return false;
    if (run.completed == seen) {
      record.nothing();
    } else {
      record.completed(seen, run.completed);
      run.done = seen = run.completed;
    }
    if (seen == posted && !record.more(posted)) return true;
  }
}

/// For --validate: as many messages at a time as there are slots; `before(i)` each, `post(i)` each, and when
/// those are complete `after(first, count)`.
template <class Before, class Post, class After>
bool windows(Run& run, BandwidthRecord& record, Before&& before, Post&& post, After&& after) {
  std::uint64_t posted = 0;
  record.begin();
  while (record.more(posted)) {
    const std::uint64_t first = posted;
    std::uint64_t count = run.plan.slots;
    if (run.plan.iterations != 0) count = std::min(count, run.plan.iterations - first);
    for (std::uint64_t i = first; i < first + count; ++i) {
      if (!before(i)) return false;
    }
    for (; posted < first + count; ++posted) {
      record.posting(posted);
      if (!run.post([&] { return post(posted); })) return false;
    }
    while (run.completed < posted) {
      if (!run.turn() || !run.reap()) return false;
    }
    if (!after(first, count)) return false;
    record.completed(first, posted);
    run.done = posted;
  }
  return true;
}

/// Rounds of a latency: `once(i)` makes one. The clock is read once a round.
template <class Once>
bool rounds(Run& run, LatencyRecord& record, Once&& once) {
  const Plan& plan = run.plan;
  record.clear();
  const std::int64_t begin = now_ns();
  std::int64_t last = begin;
  for (std::uint64_t i = 0;; ++i) {
    if (!once(i)) return false;
    const std::int64_t now = now_ns();
    run.done = i + 1;
    bool counts = i >= plan.warm_up;
    if (plan.iterations == 0)
      counts = last - begin >= plan.margin_ns && now - begin <= plan.duration_ns - plan.margin_ns;
    const bool late = counts && record.add(now - last);
    if (plan.iterations != 0 ? i + 1 == plan.warm_up + plan.iterations : now - begin >= plan.duration_ns)
      return true;
    last = late ? now_ns() : now;
  }
}

}  // namespace cenote::perf
