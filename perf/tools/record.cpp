#include "perf/tools/record.h"

namespace cenote::perf {

BandwidthRecord::BandwidthRecord(const Plan& plan)
    : plan_(plan),
      timed_(plan.iterations == 0),
      stamps_(plan.peak && !timed_ && plan.iterations <= most_stamps) {
  if (!stamps_) return;
  posted_.assign(plan.iterations, 0);
  completed_.assign(plan.iterations, 0);
}

void BandwidthRecord::begin() {
  begin_ = first_time_ = last_time_ = now_ns();
  end_ = begin_ + plan_.duration_ns;
}

void BandwidthRecord::see(std::uint64_t complete) {
  const std::int64_t now = now_ns();
  if (now <= begin_ + plan_.margin_ns) {
    first_time_ = now;
    first_count_ = complete;
  }
  if (now <= end_ - plan_.margin_ns) {
    last_time_ = now;
    last_count_ = complete;
  }
  over_ = now >= end_;
}

void BandwidthRecord::finish(std::uint64_t messages) {
  if (timed_) return;
  last_time_ = now_ns();
  last_count_ = messages;
}

BandwidthFigures BandwidthRecord::figures() const {
  BandwidthFigures out;
  const auto size = static_cast<double>(plan_.size);
  const double seconds = static_cast<double>(last_time_ - first_time_) / 1e9;
  if (last_count_ <= first_count_ || seconds <= 0) return out;
  out.messages = last_count_ - first_count_;
  out.message_rate = static_cast<double>(out.messages) / seconds;
  out.average = out.message_rate * size;
  if (stamps_) {
    const double ns = best_window(posted_, completed_);
    if (ns > 0) out.peak = size / ns * 1e9;
  }
  return out;
}

}  // namespace cenote::perf
