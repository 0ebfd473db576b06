// What samples come to: latencies to the figures that perftest prints, pairs of times to the best window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cenote::perf {

/// Microseconds. `typical` is the median; percentiles are by nearest rank. Minimum, maximum, average and
/// standard deviation (of the population, as perftest's) are over all samples, without rounding.
struct LatencyFigures {
  std::uint64_t samples = 0;
  double min = 0, max = 0, typical = 0, average = 0, deviation = 0, p99 = 0, p999 = 0;
};

/// Takes any number of samples in the memory it starts with: when that is full it keeps every other one for
/// the percentiles, then every fourth. The other figures miss none.
class LatencyRecord {
 public:
  /// `capacity`: samples kept, a power of two; the memory is touched at once.
  explicit LatencyRecord(std::size_t capacity = std::size_t{1} << 20U) : kept_(capacity) {}
  void clear();
  /// True when it took a while (it thinned out what it keeps): read the clock anew.
  bool add(std::int64_t ns) {
    if (count_ == 0) first_ = min_ = max_ = ns;
    min_ = ns < min_ ? ns : min_;
    max_ = ns > max_ ? ns : max_;
    const std::int64_t difference = ns - first_;
    sum_ += difference;
    squares_ += Wide{difference} * difference;
    if ((count_++ & (stride_ - 1)) != 0) return false;
    kept_[size_++] = ns;
    if (size_ < kept_.size()) [[likely]]
      return false;
    thin_out();
    return true;
  }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  /// Each sample divided by `divisor`: 2 where half a round trip is the latency. All zero without samples.
  [[nodiscard]] LatencyFigures figures(double divisor) const;

 private:
  __extension__ using Wide = __int128;
  void thin_out();

  std::vector<std::int64_t> kept_;
  std::size_t size_ = 0;
  std::uint64_t count_ = 0, stride_ = 1;
  std::int64_t first_ = 0, min_ = 0, max_ = 0;
  std::int64_t sum_ = 0;  ///< of the differences to the first
  Wide squares_ = 0;
};

/// The least time per message over all windows from a post i to a completion j >= i, in nanoseconds:
/// min (completed[j] - posted[i]) / (j - i + 1). Both of one length, times of one clock, in order. 0 without
/// messages. Exact, in a few passes: Dinkelbach's method for a ratio, where perftest tries all pairs.
double best_window(std::span<const std::int64_t> posted, std::span<const std::int64_t> completed);

}  // namespace cenote::perf
