// Figures against samples worked out by hand.
#include "perf/tools/statistics.h"

#include <gtest/gtest.h>

#include <random>

namespace cenote::perf {
namespace {

LatencyFigures of(const std::vector<std::int64_t>& samples, double divisor = 1, std::size_t capacity = 1024) {
  LatencyRecord record(capacity);
  for (const auto ns : samples) record.add(ns);
  return record.figures(divisor);
}

// 2, 4, 4, 4, 5, 5, 7, 9: the textbook's mean of 5 and deviation of 2.
TEST(Latency, AFewSamplesByHand) {
  const auto figures = of({2000, 4000, 4000, 4000, 5000, 5000, 7000, 9000});
  EXPECT_EQ(figures.samples, 8U);
  EXPECT_DOUBLE_EQ(figures.min, 2);
  EXPECT_DOUBLE_EQ(figures.max, 9);
  EXPECT_DOUBLE_EQ(figures.typical, 4.5);
  EXPECT_DOUBLE_EQ(figures.average, 5);
  EXPECT_NEAR(figures.deviation, 2, 1e-9);
  EXPECT_DOUBLE_EQ(figures.p99, 9);
}

TEST(Latency, HalfARoundTripHalvesEveryFigure) {
  const auto whole = of({1000, 2000, 6000}), half = of({1000, 2000, 6000}, 2);
  EXPECT_DOUBLE_EQ(half.min, whole.min / 2);
  EXPECT_DOUBLE_EQ(half.max, whole.max / 2);
  EXPECT_DOUBLE_EQ(half.typical, whole.typical / 2);
  EXPECT_DOUBLE_EQ(half.average, whole.average / 2);
  EXPECT_DOUBLE_EQ(half.deviation, whole.deviation / 2);
  EXPECT_DOUBLE_EQ(half.p999, whole.p999 / 2);
}

// perftest's t_stdev makes integers of the differences: these, all below 1 us, would come out as 0.
TEST(Latency, TheDeviationKeepsWhatIsBelowAMicrosecond) {
  EXPECT_NEAR(of({1000, 1000, 1400, 1400}).deviation, 0.2, 1e-12);
}

// perftest drops the slowest two first: here they are the only slow ones.
TEST(Latency, TheMaximumIsOfAllSamples) {
  std::vector<std::int64_t> samples(1000, 1000);
  samples[17] = 900'000;
  samples[400] = 800'000;
  EXPECT_DOUBLE_EQ(of(samples).max, 900);
}

TEST(Latency, PercentilesAreByNearestRank) {
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 1; i <= 1000; ++i) samples.push_back(i * 1000);
  std::shuffle(samples.begin(), samples.end(), std::mt19937(7));
  const auto figures = of(samples);
  EXPECT_DOUBLE_EQ(figures.p99, 990);
  EXPECT_DOUBLE_EQ(figures.p999, 999);
  EXPECT_DOUBLE_EQ(figures.typical, 500.5);
}

TEST(Latency, OneSampleIsAllOfThem) {
  const auto figures = of({1500});
  EXPECT_DOUBLE_EQ(figures.min, 1.5);
  EXPECT_DOUBLE_EQ(figures.p999, 1.5);
  EXPECT_DOUBLE_EQ(figures.deviation, 0);
}

TEST(Latency, NoSampleIsNoFigure) {
  const auto figures = of({});
  EXPECT_EQ(figures.samples, 0U);
  EXPECT_DOUBLE_EQ(figures.max, 0);
}

TEST(Latency, ASpikeBeyondWhatIsKeptStillCountsInMaximumAverageAndDeviation) {
  LatencyRecord record(16);
  bool thinned = false;
  for (int i = 0; i < 100; ++i) thinned = record.add(i == 77 ? 101'000 : 1'000) || thinned;
  EXPECT_TRUE(thinned);
  const auto figures = record.figures(1);
  EXPECT_EQ(figures.samples, 100U);
  EXPECT_DOUBLE_EQ(figures.max, 101);
  EXPECT_DOUBLE_EQ(figures.average, 2);
  EXPECT_NEAR(figures.deviation, 9.9498743710662, 1e-9);  // sqrt((99 * 1^2 + 99^2) / 100)
  EXPECT_DOUBLE_EQ(figures.typical, 1);
}

TEST(Latency, WhatIsKeptStaysSpreadOverTheWholeRun) {
  LatencyRecord record(64);
  for (std::int64_t i = 0; i < 100'000; ++i) record.add(i);
  EXPECT_NEAR(record.figures(1).typical, 50, 4);
  EXPECT_GT(record.figures(1).p99, 90);
}

TEST(Latency, ANewRunBeginsWithNothing) {
  LatencyRecord record(16);
  for (int i = 0; i < 100; ++i) record.add(5000);
  record.clear();
  record.add(1000);
  EXPECT_EQ(record.figures(1).samples, 1U);
  EXPECT_DOUBLE_EQ(record.figures(1).max, 1);
  EXPECT_DOUBLE_EQ(record.figures(1).average, 1);
}

// Four messages posted at once, completed 10 apart, and a pause before the last: the first three are best.
TEST(BestWindow, IsFromAPostToACompletion) {
  const std::int64_t posted[] = {0, 0, 0, 0}, completed[] = {10, 20, 30, 100};
  EXPECT_DOUBLE_EQ(best_window(posted, completed), 10);
}

TEST(BestWindow, MayBeInTheMiddle) {
  const std::int64_t posted[] = {0, 100, 105, 110, 500}, completed[] = {90, 120, 124, 126, 900};
  EXPECT_DOUBLE_EQ(best_window(posted, completed), 26.0 / 3);
}

TEST(BestWindow, OfNothingIsNothing) { EXPECT_DOUBLE_EQ(best_window({}, {}), 0); }

TEST(BestWindow, IsTheLeastOverAllPairs) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> posted, completed;
    std::int64_t now = 1'000'000'000'000, done = now;
    for (std::size_t i = 0, count = 1 + random() % 60; i < count; ++i) {
      now += static_cast<std::int64_t>(random() % 100);
      posted.push_back(now);
      done = std::max(done, now) + static_cast<std::int64_t>(1 + random() % 300);
      completed.push_back(done);
    }
    double least = 1e300;
    for (std::size_t i = 0; i < posted.size(); ++i) {
      for (std::size_t j = i; j < posted.size(); ++j)
        least =
            std::min(least, static_cast<double>(completed[j] - posted[i]) / static_cast<double>(j - i + 1));
    }
    ASSERT_NEAR(best_window(posted, completed), least, 1e-6) << round;
  }
}

}  // namespace
}  // namespace cenote::perf
