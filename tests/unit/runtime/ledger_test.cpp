#include "runtime/ledger.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

#include "runtime/ledger_reader.h"

namespace cenote {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::unique_ptr<Ledger> make(const Ledger::Member& member = {}) {
  auto made = Ledger::create(member);
  if (!made) {
    ADD_FAILURE() << made.error().message();
    std::abort();
  }
  return std::move(*made);
}

LedgerCopy read(const Ledger& ledger) {
  auto copy = read_ledger(ledger.descriptor());
  EXPECT_TRUE(copy.has_value()) << copy.error().message();
  return copy.value_or(LedgerCopy{});
}

Ledger::Operation operation(std::uint64_t number) {
  return {"put", number, number, number, number, Clock::time_point(Clock::duration(number))};
}

TEST(Ledger, ShowsAnOperationFromBeginToEnd) {
  const auto ledger = make({5, 2, 9});
  EXPECT_THAT(read(*ledger).rows, IsEmpty());
  const auto began = Clock::now();
  ledger->begun(17, began);
  const auto ticket = ledger->begin({"allreduce", 17, 4096, 1024, 77, began});
  auto copy = read(*ledger);
  EXPECT_EQ(copy.group, 5U);
  EXPECT_EQ(copy.rank, 2U);
  EXPECT_EQ(copy.size, 9U);
  EXPECT_EQ(copy.pid, static_cast<std::uint64_t>(::getpid()));
  EXPECT_EQ(copy.begun, 17U);
  EXPECT_EQ(copy.begun_at, began);
  EXPECT_FALSE(copy.failure);
  ASSERT_THAT(copy.rows, SizeIs(1));
  EXPECT_EQ(copy.rows[0].operation, "allreduce");
  EXPECT_EQ(copy.rows[0].stage, "started");
  EXPECT_EQ(copy.rows[0].sequence, 17U);
  EXPECT_EQ(copy.rows[0].bytes, 4096U);
  EXPECT_EQ(copy.rows[0].count, 1024U);
  EXPECT_EQ(copy.rows[0].detail, 77U);
  EXPECT_EQ(copy.rows[0].wait.on, nobody);
  EXPECT_EQ(copy.rows[0].wait.at_the_end, nobody);
  EXPECT_EQ(copy.rows[0].began, began);
  const auto later = began + std::chrono::seconds(3);
  ledger->stage(ticket, "waits for stream", later, {3, 4});
  copy = read(*ledger);
  EXPECT_EQ(copy.rows[0].stage, "waits for stream");
  EXPECT_EQ(copy.rows[0].wait.on, 3U);
  EXPECT_EQ(copy.rows[0].wait.at_the_end, 4U);
  EXPECT_EQ(copy.rows[0].in_stage_since, later);
  ledger->seen(later);
  EXPECT_EQ(read(*ledger).seen, later);
  ledger->end(ticket);
  EXPECT_THAT(read(*ledger).rows, IsEmpty());
}

TEST(Ledger, KeepsTheFirstFailureAsFarAsThereIsRoom) {
  const auto ledger = make();
  const auto when = Clock::now();
  ledger->fail(3, "rank 3 has\x1b gone" + std::string(2000, '.'), when);
  const auto failure = read(*ledger).failure;
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->culprit, 3U);
  EXPECT_THAT(failure->text, HasSubstr("rank 3 has? gone..."));
  EXPECT_EQ(failure->text.size(), 511U);
  EXPECT_EQ(failure->at, when);
}

TEST(Ledger, AFullTableLosesTheRowNotTheOperation) {
  const auto ledger = make();
  std::vector<Ledger::Ticket> tickets;
  for (std::uint64_t i = 0; i < ledger_page::rows + 2; ++i) tickets.push_back(ledger->begin(operation(i)));
  EXPECT_THAT(read(*ledger).rows, SizeIs(ledger_page::rows));
  EXPECT_EQ(read(*ledger).not_shown, 2U);
  EXPECT_TRUE(std::ranges::is_sorted(read(*ledger).rows, {}, &LedgerRow::began));
  ledger->stage(tickets.back(), "receive", Clock::now(), {});
  for (const auto& ticket : tickets) ledger->end(ticket);
  ledger->end({});
  EXPECT_EQ(read(*ledger).not_shown, 0U);
  EXPECT_THAT(read(*ledger).rows, IsEmpty());
  ledger->end(ledger->begin(operation(1)));
}

TEST(Ledger, ReadersNeverSeeHalfARow) {
  const auto ledger = make();
  std::atomic<bool> stop{false};
  std::jthread writer([&] {
    // All numbers of a row are alike: a mixed row would show.
    for (std::uint64_t i = 1; !stop; ++i) {
      const auto ticket = ledger->begin(operation(i));
      ledger->stage(ticket, "two", Clock::time_point(Clock::duration(i)),
                    {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i)});
      ledger->end(ticket);
    }
  });
  int seen = 0;
  const auto deadline = Deadline::in(std::chrono::seconds(20));
  while (seen < 2000 && !deadline.passed()) {
    for (const auto& row : read(*ledger).rows) {
      ++seen;
      const auto low = static_cast<std::uint32_t>(row.sequence);
      ASSERT_EQ(row.bytes, row.sequence);
      ASSERT_EQ(row.count, row.sequence);
      ASSERT_EQ(row.detail, row.sequence);
      ASSERT_EQ(row.wait.on, row.stage == "two" ? low : nobody);
      ASSERT_EQ(row.wait.at_the_end, row.wait.on);
    }
  }
  stop = true;
  EXPECT_GT(seen, 0);
}

TEST(Ledger, RefusesWhatIsNone) {
  const UniqueFd empty(::memfd_create("empty", MFD_CLOEXEC));
  EXPECT_THAT(read_ledger(empty.get()).error().message(), HasSubstr("shorter than a ledger"));
  ASSERT_EQ(::ftruncate(empty.get(), sizeof(ledger_page::Copied)), 0);
  EXPECT_THAT(read_ledger(empty.get()).error().message(), HasSubstr("another version"));
  EXPECT_EQ(read_ledger(-1).error().code, ErrorCode::system_error);
}

/// Those of one group, of whatever process.
std::vector<FoundLedger> found_of(std::uint64_t group) {
  auto search = find_ledgers();
  EXPECT_TRUE(search.has_value()) << search.error().message();
  std::erase_if(search->found, [&](const auto& one) { return one.ledger.group != group; });
  return std::move(search->found);
}

TEST(Ledger, IsFoundInAProcessThatIsStopped) {
  const auto group = 0x5000'0000'0000'0000U + static_cast<std::uint64_t>(::getpid());
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const auto child = ::fork();
  if (child == 0) {
    auto ledger = Ledger::create({group, 1, 2});
    const auto ticket = (*ledger)->begin(operation(4));
    (void)!::write(ready[1], &ticket, 1);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::kill(child, SIGSTOP);
  ASSERT_EQ(::waitpid(child, nullptr, WUNTRACED), child);
  const auto found = found_of(group);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].pid, child);
  EXPECT_EQ(found[0].state, 'T');
  EXPECT_EQ(found[0].ledger.rank, 1U);
  ASSERT_THAT(found[0].ledger.rows, SizeIs(1));
  EXPECT_EQ(found[0].ledger.rows[0].sequence, 4U);
  // Killed outright, it leaves nothing behind.
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_THAT(found_of(group), IsEmpty());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(Ledger, IsFoundOnceThoughAChildOfForkHoldsItToo) {
  const auto group = 0x6000'0000'0000'0000U + static_cast<std::uint64_t>(::getpid());
  const auto ledger = make({group, 0, 1});
  const auto child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const auto found = found_of(group);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].pid, ::getpid());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace cenote
