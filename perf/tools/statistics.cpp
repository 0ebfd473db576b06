#include "perf/tools/statistics.h"

#include <algorithm>
#include <cmath>

namespace cenote::perf {
namespace {

/// The least sample that at least this part of all do not exceed.
double nearest_rank(const std::vector<std::int64_t>& sorted, double part) {
  const auto rank = static_cast<std::size_t>(std::ceil(part * static_cast<double>(sorted.size()) - 1e-9));
  return static_cast<double>(sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1]);
}

double median(const std::vector<std::int64_t>& sorted) {
  const std::size_t middle = sorted.size() / 2;
  const auto upper = static_cast<double>(sorted[middle]);
  return sorted.size() % 2 == 1 ? upper : (static_cast<double>(sorted[middle - 1]) + upper) / 2;
}

}  // namespace

void LatencyRecord::clear() {
  size_ = 0;
  count_ = 0;
  stride_ = 1;
  sum_ = squares_ = 0;
}

void LatencyRecord::thin_out() {
  for (std::size_t i = 0; i < kept_.size() / 2; ++i) kept_[i] = kept_[2 * i];
  size_ = kept_.size() / 2;
  stride_ *= 2;
}

LatencyFigures LatencyRecord::figures(double divisor) const {
  LatencyFigures out;
  if (count_ == 0) return out;
  const double scale = 1 / (divisor * 1e3);
  std::vector<std::int64_t> sorted(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(size_));
  std::sort(sorted.begin(), sorted.end());
  const auto count = static_cast<double>(count_);
  const double mean = static_cast<double>(sum_) / count;
  out.samples = count_;
  out.min = static_cast<double>(min_) * scale;
  out.max = static_cast<double>(max_) * scale;
  out.typical = median(sorted) * scale;
  out.average = (static_cast<double>(first_) + mean) * scale;
  out.deviation = std::sqrt(std::max(0.0, static_cast<double>(squares_) / count - mean * mean)) * scale;
  out.p99 = nearest_rank(sorted, 0.99) * scale;
  out.p999 = nearest_rank(sorted, 0.999) * scale;
  return out;
}

double best_window(std::span<const std::int64_t> posted, std::span<const std::int64_t> completed) {
  const std::size_t count = std::min(posted.size(), completed.size());
  if (count == 0) return 0;
  const std::int64_t zero = posted[0];
  const auto ratio = [&](std::size_t from, std::size_t to) {
    return static_cast<double>(completed[to] - posted[from]) / static_cast<double>(to - from + 1);
  };
  double best = ratio(0, count - 1);
  // For the best ratio r no window has (completed - posted) - r * messages below 0; while one has, its own
  // ratio is a better one.
  while (true) {
    std::size_t start = 0, from = 0, to = 0;
    double latest = 0, least = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double begin = static_cast<double>(posted[i] - zero) - best * static_cast<double>(i);
      if (i == 0 || begin > latest) {
        latest = begin;
        start = i;
      }
      const double excess =
          static_cast<double>(completed[i] - zero) - best * static_cast<double>(i + 1) - latest;
      if (excess < least) {
        least = excess;
        from = start;
        to = i;
      }
    }
    if (least >= 0) return best;
    const double better = ratio(from, to);
    if (!(better < best)) return best;
    best = better;
  }
}

}  // namespace cenote::perf
