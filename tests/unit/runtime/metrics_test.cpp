#include "runtime/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>
#include <vector>

namespace cenote {
namespace {

TEST(Metrics, CountsFromManyThreadsWithoutLosingAny) {
  Metrics metrics;
  constexpr double bounds[] = {10, 100};
  auto* counter = *metrics.counter("puts_total", "puts");
  auto* gauge = *metrics.gauge("in_flight", "operations in flight");
  auto* histogram = *metrics.histogram("bytes", "sizes", bounds);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 10'000; ++i) {
          counter->add();
          gauge->add(i % 2 == 0 ? 1 : -1);
          histogram->observe(i % 3 == 0 ? 10 : 1000);
        }
      });
  }
  EXPECT_EQ(counter->value(), 40'000U);
  EXPECT_EQ(gauge->value(), 0);
  const auto taken = histogram->snapshot();
  EXPECT_EQ(taken.count(), 40'000U);
  EXPECT_THAT(taken.counts, testing::ElementsAre(4 * 3334, 0, 4 * 6666));
  EXPECT_EQ(taken.sum, 4 * (3334 * 10.0 + 6666 * 1000.0));
}

TEST(Metrics, TheSameNameAndLabelsAreTheSameCounter) {
  Metrics metrics;
  auto* shm = *metrics.counter("bytes_total", "bytes", {{"transport", "shm"}});
  EXPECT_EQ(*metrics.counter("bytes_total", "bytes", {{"transport", "shm"}}), shm);
  EXPECT_NE(*metrics.counter("bytes_total", "bytes", {{"transport", "tcp"}}), shm);
  Metrics other;
  EXPECT_NE(*other.counter("bytes_total", "bytes", {{"transport", "shm"}}), shm);
}

TEST(Metrics, RefusesNamesThatPrometheusWouldAndKindsThatClash) {
  Metrics metrics;
  for (const auto* name : {"", "1_total", "a b_total", "a-b_total", "no_suffix"})
    EXPECT_FALSE(metrics.counter(name, ""));
  EXPECT_FALSE(metrics.gauge("g", "", {{"le", "1"}}));
  EXPECT_FALSE(metrics.gauge("g", "", {{"__x", "1"}}));
  EXPECT_FALSE(metrics.gauge("g", "", {{"a:b", "1"}}));
  ASSERT_TRUE(metrics.gauge("x_total", ""));
  EXPECT_EQ(metrics.counter("x_total", "").error().code, ErrorCode::already_exists);
  constexpr double ascending[] = {1, 2};
  constexpr double falling[] = {2, 1};
  constexpr double endless[] = {1, std::numeric_limits<double>::infinity()};
  EXPECT_FALSE(metrics.histogram("h", "", falling));
  EXPECT_FALSE(metrics.histogram("h", "", endless));
  ASSERT_TRUE(metrics.histogram("h", "", ascending));
  EXPECT_EQ(metrics.histogram("h", "", std::span(ascending).first(1)).error().code,
            ErrorCode::already_exists);
}

TEST(Metrics, PrometheusTextIsExact) {
  Metrics metrics;
  constexpr double bounds[] = {0.5, 2};
  (*metrics.counter("a_total", "first\nline \\ \"quoted\"", {{"peer", "say \"hi\"\\\n"}, {"n", "1"}}))
      ->add(3);
  (*metrics.gauge("b", "second"))->set(-1.5);
  (*metrics.gauge("c", "third"))->set(std::nan(""));
  auto* histogram = *metrics.histogram("d_seconds", "fourth", bounds, {{"op", "put"}});
  for (const double value : {0.5, 1.0, 7.0}) histogram->observe(value);
  EXPECT_EQ(prometheus_text(metrics.snapshot()),
            "# HELP a_total first\\nline \\\\ \"quoted\"\n"
            "# TYPE a_total counter\n"
            "a_total{n=\"1\",peer=\"say \\\"hi\\\"\\\\\\n\"} 3\n"
            "# HELP b second\n"
            "# TYPE b gauge\n"
            "b -1.5\n"
            "# HELP c third\n"
            "# TYPE c gauge\n"
            "c NaN\n"
            "# HELP d_seconds fourth\n"
            "# TYPE d_seconds histogram\n"
            "d_seconds_bucket{op=\"put\",le=\"0.5\"} 1\n"
            "d_seconds_bucket{op=\"put\",le=\"2\"} 2\n"
            "d_seconds_bucket{op=\"put\",le=\"+Inf\"} 3\n"
            "d_seconds_sum{op=\"put\"} 8.5\n"
            "d_seconds_count{op=\"put\"} 3\n");
}

}  // namespace
}  // namespace cenote
