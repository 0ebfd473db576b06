// What is shown: perftest's columns, the JSON that programs read, and the picture.
#include "perf/tools/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "perf/tools/plot.h"
#include "perf/tools/progress_line.h"
#include "runtime/process.h"

namespace cenote::perf {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const Joined joined{"10.0.0.2:18515", "tcp",  "tcp: shm refused: <other> \"host\" & more",
                    "host",           "host", 8192};

Measurement bandwidth(std::uint64_t size, std::optional<double> peak = 2.0 * (1 << 20)) {
  Measurement m;
  m.plan.size = size;
  m.plan.iterations = 100;
  m.figures.bandwidth = BandwidthFigures{100, 1 << 20, peak, 2e6};
  return m;
}

Measurement latency(std::uint64_t size) {
  Measurement m;
  m.plan.size = size;
  m.plan.iterations = 100;
  m.figures.latency = LatencyFigures{100, 1, 9.5, 2, 2.25, 0.125, 8, 9};
  return m;
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

TEST(Table, HasTheColumnsOfPerftest) {
  EXPECT_THAT(
      heading(write_bw, {}, {}, joined),
      EndsWith(" #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n"));
  EXPECT_THAT(heading(write_bw, {.gbits = true}, {}, joined), HasSubstr("BW average[Gb/sec]"));
  EXPECT_THAT(heading(write_lat, {}, {}, joined),
              EndsWith(" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
                       "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]\n"));
}

TEST(Table, BandwidthIsInMebibytesOrInTenToTheNinthBits) {
  EXPECT_EQ(words(line(write_bw, {}, bandwidth(65536))),
            (std::vector<std::string>{"65536", "100", "2.00", "1.00", "2.000000"}));
  Measurement fast = bandwidth(65536);
  fast.figures.bandwidth->average = 12.5e9;
  EXPECT_EQ(words(line(write_bw, {.gbits = true}, fast))[3], "100.00");
}

TEST(Table, APeakThatWasNotMeasuredIsNoZero) {
  EXPECT_EQ(words(line(write_bw, {}, bandwidth(8, std::nullopt)))[2], "-");
}

TEST(Table, LatencyHasEveryFigure) {
  EXPECT_EQ(words(line(write_lat, {}, latency(2))),
            (std::vector<std::string>{"2", "100", "1.00", "9.50", "2.00", "2.25", "0.12", "8.00", "9.00"}));
}

TEST(Table, EachValueStandsBelowItsHeading) {
  for (const bool gbits : {false, true}) {
    const Show show{.gbits = gbits, .cpu = true};
    for (const Tool* tool : {&write_bw, &write_lat}) {
      auto head = heading(*tool, show, {}, joined);
      head = head.substr(head.rfind('\n', head.size() - 2) + 1);
      const auto row = line(*tool, show, tool->latency ? latency(2) : bandwidth(2));
      const std::size_t at = row.find_last_of(' ') + 1;  // the last column's value
      EXPECT_EQ(at, head.find("CPU_Util")) << head << row;
    }
  }
}

TEST(Table, TheLargestSizeDoesNotRunIntoItsNeighbour) {
  EXPECT_EQ(words(line(write_lat, {}, latency(8 << 20)))[0], "8388608");
  EXPECT_EQ(words(line(write_bw, {}, bandwidth(1 << 30)))[0], "1073741824");
}

TEST(Json, OfOneSizeReadsLikePerftests) {
  const auto out = nlohmann::json::parse(json_text(write_bw, {}, joined, {bandwidth(65536)}));
  EXPECT_EQ(out["test_info"]["test"], "write_bw");
  EXPECT_EQ(out["test_info"]["transport"], "tcp");
  EXPECT_EQ(out["test_info"]["BW_unit"], "MiB/sec");
  EXPECT_EQ(out["results"]["MsgSize"], 65536);
  EXPECT_EQ(out["results"]["n_iterations"], 100);
  EXPECT_DOUBLE_EQ(out["results"]["BW_peak"], 2);
  EXPECT_DOUBLE_EQ(out["results"]["BW_average"], 1);
  EXPECT_DOUBLE_EQ(out["results"]["MsgRate"], 2);
  EXPECT_EQ(out["runs"].size(), 1U);
}

TEST(Json, LatencyIsNotRounded) {
  const auto out = nlohmann::json::parse(json_text(read_lat, {}, joined, {latency(2)}))["results"];
  const std::map<std::string, double> expected{{"t_min", 1},    {"t_max", 9.5},     {"t_typical", 2},
                                               {"t_avg", 2.25}, {"t_stdev", 0.125}, {"t_99", 8},
                                               {"t_99.9", 9}};
  for (const auto& [key, value] : expected) EXPECT_DOUBLE_EQ(out[key], value) << key;
}

TEST(Json, OfASweepIsAList) {
  const auto out =
      nlohmann::json::parse(json_text(write_bw, {}, joined, {bandwidth(2), bandwidth(4, std::nullopt)}));
  ASSERT_EQ(out["results"].size(), 2U);
  EXPECT_EQ(out["runs"], out["results"]);
  EXPECT_TRUE(out["results"][1]["BW_peak"].is_null());
}

TEST(Json, AFileThatCannotBeWrittenIsNamed) {
  const auto folder = TemporaryFolder::create("perf-report");
  ASSERT_TRUE(folder);
  const auto path = folder->path() + "/no/such/folder.json";
  for (const auto& result : {write_file(path, "{}"), can_write(path)}) {
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().message(), HasSubstr(path));
  }
}

TEST(Json, AskingWhetherAFileCanBeWrittenLeavesItAsItWas) {
  const auto folder = TemporaryFolder::create("perf-report");
  ASSERT_TRUE(folder);
  const auto path = folder->file("a.json");
  ASSERT_TRUE(can_write(path));
  EXPECT_FALSE(read_file(path, 100));
  ASSERT_TRUE(write_file(path, "before"));
  ASSERT_TRUE(can_write(path));
  EXPECT_EQ(*read_file(path, 100), "before");
}

/// Tags that open and close each other's, attributes in quotes, no bare '&' or '<': what an XML parser asks.
std::string fault_of(const std::string& xml) {
  std::vector<std::string> open;
  std::size_t at = 0;
  for (; at < xml.size(); ++at) {
    if (xml[at] == '&') {
      const auto end = xml.find(';', at);
      const auto entity = xml.substr(at, end == std::string::npos ? 1 : end - at + 1);
      if (entity != "&lt;" && entity != "&gt;" && entity != "&amp;" && entity != "&quot;") return "bare &";
    }
    if (xml[at] != '<') continue;
    const auto end = xml.find('>', at);
    if (end == std::string::npos) return "a tag without an end";
    const auto tag = xml.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos) return "bare <";
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "an open quote in " + tag;
    at = end;
    if (tag.front() == '?') continue;
    const auto name = tag.substr(tag.front() == '/', tag.find_first_of(" /", 1) - (tag.front() == '/'));
    if (tag.front() == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "an end without its beginning: " + tag;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : open.back() + " is not closed";
}

TEST(Plot, TheCheckerKnowsABadDocument) {
  EXPECT_EQ(fault_of("<a><b x=\"1\"/>t</a>"), "");
  for (const char* bad : {"<a>", "<a></b>", "<a x=\"></a>", "<a>&</a>", "<a><</a>"})
    EXPECT_NE(fault_of(bad), "") << bad;
}

TEST(Plot, IsAWellFormedPictureThatNeedsNothingElse) {
  std::vector<Measurement> sweep, times;
  for (std::uint64_t size = 2; size <= 8 << 20; size *= 2) {
    sweep.push_back(bandwidth(size, size < 1024 ? std::nullopt : std::optional(3e9)));
    times.push_back(latency(size));
  }
  for (const auto& picture : {plot(write_bw, {}, joined, sweep), plot(write_lat, {}, joined, times)}) {
    EXPECT_EQ(fault_of(picture), "");
    EXPECT_THAT(picture, StartsWith("<?xml"));
    EXPECT_THAT(picture, HasSubstr("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    EXPECT_THAT(picture, HasSubstr("<polyline"));
    for (const char* outside : {"href", "<script", "<image", "@import", "url(", "nan", "inf"})
      EXPECT_THAT(picture, Not(HasSubstr(outside)));
  }
}

TEST(Plot, EveryPointLiesInsideThePicture) {
  std::vector<Measurement> sweep{bandwidth(2), bandwidth(4096), bandwidth(8 << 20)};
  sweep[1].figures.bandwidth->average = 4e9;
  const auto picture = plot(write_bw, {}, joined, sweep);
  int circles = 0;
  for (std::size_t at = 0; (at = picture.find("<circle cx=\"", at)) != std::string::npos; ++at, ++circles) {
    double x = 0, y = 0;
    ASSERT_EQ(std::sscanf(picture.c_str() + at, "<circle cx=\"%lf\" cy=\"%lf\"", &x, &y), 2);
    EXPECT_TRUE(x >= 0 && x <= 900 && y >= 0 && y <= 520) << x << " " << y;
  }
  EXPECT_EQ(circles, 6);  // average and peak
}

TEST(Plot, WithoutAnyFigureIsStillAPicture) {
  Measurement nothing = bandwidth(2, std::nullopt);
  nothing.figures.bandwidth->average = 0;
  EXPECT_EQ(fault_of(plot(write_bw, {}, joined, {nothing})), "");
  EXPECT_EQ(fault_of(plot(write_lat, {}, joined, {})), "");
}

TEST(Progress, SaysHowFarItIs) {
  Plan plan;
  plan.size = 64;
  plan.iterations = 1000;
  EXPECT_EQ(progress_text(plan, 10, std::chrono::seconds(3)), "64 bytes: 10 of 1000");
  plan.iterations = 0;
  plan.duration_ns = 10'000'000'000;
  EXPECT_EQ(progress_text(plan, 10, std::chrono::seconds(3)), "64 bytes: 3 of 10 s, 10 messages");
}

}  // namespace
}  // namespace cenote::perf
