// What a test is planned to be, and what is refused before anything is done.
#include "perf/tools/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cenote::perf {
namespace {

using ::testing::HasSubstr;

Work work(std::vector<std::uint64_t> sizes = {65536}) {
  Work work;
  work.sizes = std::move(sizes);
  work.iterations = 1000;
  return work;
}

TEST(Tools, AreThoseOfPerftestWithItsDefaults) {
  std::vector<std::string_view> names;
  for (const Tool* tool : all_tools()) {
    names.push_back(tool->name);
    EXPECT_EQ(find_tool(tool->name), tool);
    const std::uint64_t small = tool->verb == Verb::atomic ? 8 : 2;
    EXPECT_EQ(tool->latency ? tool->size : small, small) << tool->name;
    EXPECT_EQ(tool->iterations, tool == &write_bw ? 5000U : 1000U) << tool->name;
  }
  EXPECT_THAT(names, ::testing::ElementsAre("write_bw", "write_lat", "read_bw", "read_lat", "send_bw",
                                            "send_lat", "atomic_lat"));
  EXPECT_EQ(write_bw.size, 65536U);
  EXPECT_EQ(find_tool("write"), nullptr);
}

TEST(Tools, HalfARoundTripIsALatencyButOfReadsAndAtomics) {
  EXPECT_EQ(write_lat.halves(), 2);
  EXPECT_EQ(send_lat.halves(), 2);
  EXPECT_EQ(read_lat.halves(), 1);
  EXPECT_EQ(atomic_lat.halves(), 1);
}

TEST(Options, AllSizesArePowersOfTwoUpToEightMebibytes) {
  const auto sizes = all_sizes(1ULL << 40U);
  EXPECT_EQ(sizes.front(), 2U);
  EXPECT_EQ(sizes.back(), 8U << 20U);
  EXPECT_EQ(sizes.size(), 23U);
  EXPECT_EQ(all_sizes(8192).back(), 8192U);
}

TEST(Options, WhatIsWrongIsNamedWithTheReason) {
  const auto expect = [](const Tool& tool, const std::function<void(Work&, Show&)>& spoil, const char* flag,
                         const char* why) {
    Work w = work({tool.size});
    Show show;
    EXPECT_TRUE(check(tool, w, show));
    spoil(w, show);
    const auto result = check(tool, w, show);
    ASSERT_FALSE(result) << flag;
    EXPECT_EQ(result.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(result.error().cause, ::testing::StartsWith(flag));
    EXPECT_THAT(result.error().cause, HasSubstr(why));
  };
  using std::chrono::seconds;
  expect(
      write_bw, [](Work& w, Show&) { w.sizes = {most_size + 1}; }, "--size", "1 to 1073741824");
  expect(
      write_lat, [](Work& w, Show&) { w.bidirectional = true; }, "--bidirectional", "there and back");
  expect(
      write_bw, [](Work& w, Show&) { w.duration = seconds(4), w.margin = seconds(2); }, "--margin",
      "nothing");
  expect(
      write_bw, [](Work& w, Show&) { w.forever = true; }, "--run_infinitely", "--duration");
  expect(
      write_bw, [](Work&, Show& show) { show.plot_file = "a.svg"; }, "--plot", "more than one size");
  expect(
      write_bw,
      [](Work& w, Show&) {
        w.duration = seconds(4);
        w.validate = w.bidirectional = true;
      },
      "--duration", "windows");
  expect(
      atomic_lat, [](Work& w, Show&) { w.sizes = {16}; }, "--size", "8 bytes");
  expect(
      write_lat, [](Work& w, Show&) { w.poll_memory = w.validate = true; }, "--poll-memory", "signal");
}

TEST(Options, SmallMessagesWalkThroughAPageLargeOnesStay) {
  EXPECT_EQ(plan_of(write_bw, work(), 8, false).slots, 64U);
  EXPECT_EQ(plan_of(write_bw, work(), 65536, false).slots, 1U);
}

TEST(Options, OverSeveralRailsNoTwoMessagesInFlightGoToOnePlace) {
  const Plan plan = plan_of(write_bw, work(), 4096, true);
  EXPECT_EQ(plan.slots, 8 * plan.depth);                          // nor where the one has overtaken the other
  EXPECT_EQ(plan_of(write_bw, work(), 8 << 20, true).slots, 2U);  // but no more than 16 MiB of them
}

TEST(Options, MessagesThatAreTooLongToBeSentDoNotShareAPlace) {
  EXPECT_EQ(plan_of(send_bw, work(), 65536, false).slots, 16U);  // a MiB, that caches hold
  EXPECT_EQ(plan_of(send_bw, work(), 1 << 20, false).slots, 16U);
  EXPECT_EQ(plan_of(send_bw, work(), 8 << 20, false).slots, 2U);
}

TEST(Options, MemoryIsEnoughForEverySize) {
  const Work all = work(all_sizes(8 << 20));
  for (const Tool* tool : {&write_bw, &send_bw}) {
    for (const bool ways : {false, true}) {
      for (const std::uint64_t size : all.sizes) {
        const Plan plan = plan_of(*tool, all, size, ways);
        EXPECT_LE(plan.stride() * plan.slots, memory_of(*tool, all, ways)) << size;
      }
    }
  }
}

TEST(Options, OnlyLatencyByRoundsWarmsUp) {
  EXPECT_EQ(plan_of(write_lat, work(), 2, false).warm_up, 100U);
  EXPECT_EQ(plan_of(write_bw, work(), 2, false).warm_up, 0U);
  Work timed = work();
  timed.duration = std::chrono::seconds(3);
  timed.margin = std::chrono::seconds(1);
  const Plan plan = plan_of(write_lat, timed, 2, false);
  EXPECT_EQ(plan.warm_up, 0U);
  EXPECT_EQ(plan.iterations, 0U);
  EXPECT_EQ(plan.duration_ns, 3'000'000'000);
  EXPECT_EQ(plan.margin_ns, 1'000'000'000);
}

TEST(Memory, KindsAreCheckedWithoutOpeningThem) {
  for (const char* right : {"host", "cuda", "cuda:3", "emulated", "emulated:A100"})
    EXPECT_TRUE(MemorySource::check(right)) << right;
  for (const char* wrong : {"", "gpu", "host:1", "cuda:", "cuda:x", "cuda:-1", "emulated:"})
    EXPECT_FALSE(MemorySource::check(wrong)) << wrong;
}

TEST(Memory, ACardThatIsNotThereIsAnError) {
  const auto opened = MemorySource::open("emulated:H200");
  ASSERT_TRUE(opened) << opened.error().message();
  EXPECT_THAT((*opened)->name(), HasSubstr("emulated:0 (NVIDIA H200"));
}

}  // namespace
}  // namespace cenote::perf
