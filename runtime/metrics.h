// Metrics: counters, gauges and histograms of one context. Making one takes a lock and may allocate; using
// one is a relaxed atomic operation, from any thread. What a registry hands out lives as long as the
// registry.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/result.h"

namespace cenote {

/// Only grows. On a cache line of its own, so that neighbours do not slow each other down.
class alignas(64) Counter {
 public:
  void add(std::uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

/// Goes up and down.
class alignas(64) Gauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  void add(double amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  [[nodiscard]] double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

struct HistogramSnapshot {
  std::vector<double> bounds;         ///< upper, inclusive, ascending; one more bucket holds the rest
  std::vector<std::uint64_t> counts;  ///< by bucket, not cumulated; bounds.size() + 1 of them
  double sum = 0;
  [[nodiscard]] std::uint64_t count() const;
};

/// How often values fell into each bucket.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);
  void observe(double value);
  [[nodiscard]] HistogramSnapshot snapshot() const;

 private:
  std::vector<double> bounds_;
  std::vector<std::atomic<std::uint64_t>> counts_;
  std::atomic<double> sum_{0};
};

/// "transport" -> "shm"
using Labels = std::map<std::string, std::string>;

enum class MetricKind : std::uint8_t { counter, gauge, histogram };

/// One of the three, by the kind of its family.
struct MetricSample {
  Labels labels;
  std::uint64_t count = 0;
  double value = 0;
  HistogramSnapshot histogram{};
};

struct MetricFamily {
  std::string name;
  std::string help;
  MetricKind kind = MetricKind::counter;
  std::vector<MetricSample> samples;
};

class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  /// The one of that name and labels, made on first use. Names are Prometheus' ([a-zA-Z_:][a-zA-Z0-9_:]*);
  /// counters end in _total. Errors: invalid_argument (bad name or label), already_exists (the name is of
  /// another kind, or a histogram with other bounds).
  Result<Counter*> counter(std::string_view name, std::string_view help, const Labels& labels = {});
  Result<Gauge*> gauge(std::string_view name, std::string_view help, const Labels& labels = {});
  /// `bounds`: upper ends of the buckets, ascending.
  Result<Histogram*> histogram(std::string_view name, std::string_view help, std::span<const double> bounds,
                               const Labels& labels = {});

  /// Everything, sorted by name and labels. Each value is read once; together they are not of one instant.
  [[nodiscard]] std::vector<MetricFamily> snapshot() const;

 private:
  struct Family;
  Result<Family*> family(std::string_view name, std::string_view help, MetricKind kind, const Labels& labels);

  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Family>, std::less<>> families_;
};

/// The text format that Prometheus scrapes (version 0.0.4).
std::string prometheus_text(std::span<const MetricFamily> families);

}  // namespace cenote
