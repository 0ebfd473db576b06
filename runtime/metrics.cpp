#include "runtime/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace cenote {
namespace {

bool valid_name(std::string_view name, bool colon) {
  auto letter = [colon](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (colon && c == ':');
  };
  return !name.empty() && letter(name.front()) &&
         std::ranges::all_of(name, [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

auto refuse(std::string_view name, std::string cause, ErrorCode code = ErrorCode::invalid_argument) {
  return fail(code, fmt::format("make metric '{}'", name), std::move(cause));
}

}  // namespace

std::uint64_t HistogramSnapshot::count() const {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

void Histogram::observe(double value) {
  // NaN is greater than every bound here: it counts, in the last bucket.
  std::size_t bucket = 0;
  while (bucket < bounds_.size() && !(value <= bounds_[bucket])) ++bucket;
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

HistogramSnapshot Histogram::snapshot() const {
  HistogramSnapshot taken{bounds_, {}, sum_.load(std::memory_order_relaxed)};
  taken.counts.reserve(counts_.size());
  for (const auto& count : counts_) taken.counts.push_back(count.load(std::memory_order_relaxed));
  return taken;
}

struct Metrics::Family {
  std::string help;
  MetricKind kind;
  std::vector<double> bounds{};
  std::map<Labels, std::unique_ptr<Counter>> counters{};
  std::map<Labels, std::unique_ptr<Gauge>> gauges{};
  std::map<Labels, std::unique_ptr<Histogram>> histograms{};
};

Metrics::Metrics() = default;
Metrics::~Metrics() = default;

Result<Metrics::Family*> Metrics::family(std::string_view name, std::string_view help, MetricKind kind,
                                         const Labels& labels) {
  if (!valid_name(name, true))
    return refuse(name, "its name needs letters, digits, _ and :, and starts with no digit");
  for (const auto& [label, value] : labels)
    if (!valid_name(label, false) || label.starts_with("__") || label == "le")
      return refuse(name, fmt::format("'{}' is no name for a label", label));
  auto at = families_.find(name);
  if (at == families_.end())
    at =
        families_.emplace(std::string(name), std::make_unique<Family>(Family{std::string(help), kind})).first;
  if (at->second->kind != kind) return refuse(name, "it exists as another kind", ErrorCode::already_exists);
  return at->second.get();
}

Result<Counter*> Metrics::counter(std::string_view name, std::string_view help, const Labels& labels) {
  const std::scoped_lock lock(mutex_);
  if (!name.ends_with("_total")) return refuse(name, "a counter's name ends in _total");
  CENOTE_ASSIGN(auto* const in, family(name, help, MetricKind::counter, labels));
  auto& slot = in->counters[labels];
  if (!slot) slot = std::make_unique<Counter>();
  return slot.get();
}

Result<Gauge*> Metrics::gauge(std::string_view name, std::string_view help, const Labels& labels) {
  const std::scoped_lock lock(mutex_);
  CENOTE_ASSIGN(auto* const in, family(name, help, MetricKind::gauge, labels));
  auto& slot = in->gauges[labels];
  if (!slot) slot = std::make_unique<Gauge>();
  return slot.get();
}

Result<Histogram*> Metrics::histogram(std::string_view name, std::string_view help,
                                      std::span<const double> bounds, const Labels& labels) {
  const std::scoped_lock lock(mutex_);
  const bool ascending =
      std::ranges::adjacent_find(bounds, [](double a, double b) { return !(a < b); }) == bounds.end();
  if (!ascending || !std::ranges::all_of(bounds, [](double b) { return std::isfinite(b); }))
    return refuse(name, "the bounds of its buckets do not ascend");
  CENOTE_ASSIGN(auto* const in, family(name, help, MetricKind::histogram, labels));
  if (in->histograms.empty()) in->bounds.assign(bounds.begin(), bounds.end());
  if (!std::ranges::equal(in->bounds, bounds))
    return refuse(name, "it exists with other bounds", ErrorCode::already_exists);
  auto& slot = in->histograms[labels];
  if (!slot) slot = std::make_unique<Histogram>(in->bounds);
  return slot.get();
}

std::vector<MetricFamily> Metrics::snapshot() const {
  const std::scoped_lock lock(mutex_);
  std::vector<MetricFamily> taken;
  taken.reserve(families_.size());
  for (const auto& [name, in] : families_) {
    MetricFamily family{name, in->help, in->kind, {}};
    for (const auto& [labels, counter] : in->counters) family.samples.push_back({labels, counter->value()});
    for (const auto& [labels, gauge] : in->gauges) family.samples.push_back({labels, 0, gauge->value()});
    for (const auto& [labels, histogram] : in->histograms)
      family.samples.push_back({labels, 0, 0, histogram->snapshot()});
    taken.push_back(std::move(family));
  }
  return taken;
}

namespace {

std::string escaped(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && quotes) {
      out += "\\\"";
    } else {
      out += c;
    }
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

/// {a="b",le="0.5"}, or nothing.
std::string label_text(const Labels& labels, std::string_view bound = {}) {
  std::string out;
  for (const auto& [name, value] : labels)
    out += fmt::format("{}{}=\"{}\"", out.empty() ? "" : ",", name, escaped(value, true));
  if (!bound.empty()) out += fmt::format("{}le=\"{}\"", out.empty() ? "" : ",", bound);
  return out.empty() ? out : "{" + out + "}";
}

void append_histogram(std::string& out, std::string_view name, const Labels& labels,
                      const HistogramSnapshot& histogram) {
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < histogram.counts.size(); ++i) {
    below += histogram.counts[i];
    const auto bound = i < histogram.bounds.size() ? number(histogram.bounds[i]) : "+Inf";
    out += fmt::format("{}_bucket{} {}\n", name, label_text(labels, bound), below);
  }
  out += fmt::format("{}_sum{} {}\n{}_count{} {}\n", name, label_text(labels), number(histogram.sum), name,
                     label_text(labels), below);
}

}  // namespace

std::string prometheus_text(std::span<const MetricFamily> families) {
  constexpr std::string_view kinds[] = {"counter", "gauge", "histogram"};
  std::string out;
  for (const auto& family : families) {
    out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", family.name, escaped(family.help, false), family.name,
                       kinds[static_cast<std::size_t>(family.kind)]);
    for (const auto& sample : family.samples) {
      if (family.kind == MetricKind::histogram) {
        append_histogram(out, family.name, sample.labels, sample.histogram);
        continue;
      }
      out += fmt::format(
          "{}{} {}\n", family.name, label_text(sample.labels),
          family.kind == MetricKind::counter ? std::to_string(sample.count) : number(sample.value));
    }
  }
  return out;
}

}  // namespace cenote
