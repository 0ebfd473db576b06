#include "runtime/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace cenote {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(Ledger, ShowsAnOperationFromBeginToEnd) {
  Ledger ledger(16);
  EXPECT_THAT(ledger.snapshot(), IsEmpty());
  const auto ticket = ledger.begin(5, 2, "allreduce", 9, 4096, "send", 3);
  auto rows = ledger.snapshot();
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(rows[0].group, 5U);
  EXPECT_EQ(rows[0].rank, 2U);
  EXPECT_EQ(rows[0].operation, "allreduce");
  EXPECT_EQ(rows[0].sequence, 9U);
  EXPECT_EQ(rows[0].bytes, 4096U);
  EXPECT_EQ(rows[0].stage, "send");
  EXPECT_EQ(rows[0].waits_for, 3U);
  ledger.stage(ticket, "receive");
  rows = ledger.snapshot();
  EXPECT_EQ(rows[0].stage, "receive");
  EXPECT_EQ(rows[0].waits_for, nobody);
  EXPECT_GE(rows[0].in_stage_since, rows[0].began);
  ledger.end(ticket);
  EXPECT_THAT(ledger.snapshot(), IsEmpty());
}

TEST(Ledger, AFullTableLosesTheRowNotTheOperation) {
  Ledger ledger(2);
  const auto first = ledger.begin(0, 0, "put", 1, 0, "posted");
  const auto second = ledger.begin(0, 0, "put", 2, 0, "posted");
  const auto third = ledger.begin(0, 0, "put", 3, 0, "posted");
  EXPECT_EQ(third.slot, nobody);
  ledger.stage(third, "done");
  ledger.end(third);
  EXPECT_THAT(ledger.snapshot(), SizeIs(2));
  ledger.end(first);
  const auto fourth = ledger.begin(0, 0, "put", 4, 0, "posted");
  EXPECT_NE(fourth.slot, nobody);
  ledger.end(second);
  ledger.end(fourth);
}

TEST(Ledger, OldestFirst) {
  Ledger ledger(8);
  for (std::uint64_t i = 0; i < 8; ++i) (void)ledger.begin(0, 0, "put", i, 0, "posted");
  const auto rows = ledger.snapshot();
  ASSERT_THAT(rows, SizeIs(8));
  EXPECT_TRUE(std::ranges::is_sorted(rows, {}, &LedgerRow::began));
}

TEST(Ledger, ReadersNeverSeeHalfARow) {
  Ledger ledger(4);
  std::atomic<bool> stop{false};
  std::vector<std::jthread> writers;
  for (std::uint32_t w = 0; w < 3; ++w)
    writers.emplace_back([&, w] {
      // All numbers of a row are alike: a mixed row would show.
      for (std::uint64_t i = w; !stop; i += 3) {
        const auto ticket = ledger.begin(i, static_cast<std::uint32_t>(i), "put", i, i, "one");
        ledger.stage(ticket, "two", static_cast<std::uint32_t>(i));
        ledger.end(ticket);
      }
    });
  int seen = 0;
  const auto deadline = Deadline::in(std::chrono::seconds(20));
  while (seen < 2000 && !deadline.passed()) {
    for (const auto& row : ledger.snapshot()) {
      ++seen;
      ASSERT_EQ(row.group, row.sequence);
      ASSERT_EQ(row.bytes, row.sequence);
      ASSERT_EQ(row.rank, static_cast<std::uint32_t>(row.sequence));
      ASSERT_EQ(row.waits_for, row.stage == "one" ? nobody : row.rank);
    }
  }
  stop = true;
  EXPECT_GT(seen, 0);
}

TEST(Ledger, PrintsWhoWaitsForWhom) {
  Ledger ledger(4);
  EXPECT_THAT(ledger_text(ledger.snapshot(), Clock::now()), HasSubstr("no operation in flight"));
  const auto ticket = ledger.begin(1, 0, "allreduce", 17, 1024, "round 2: receive", 3);
  const auto rows = ledger.snapshot();
  const auto text = ledger_text(rows, rows[0].began + std::chrono::milliseconds(4200));
  EXPECT_THAT(text, HasSubstr("4.200 s round 2: receive"));
  EXPECT_THAT(text, HasSubstr("rank 3"));
  ledger.end(ticket);
}

}  // namespace
}  // namespace cenote
