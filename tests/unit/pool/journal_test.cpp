// What the journal knows after a store failed it: neither more nor less than a restart would.
#include "pool/broker/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cenote::pool {
namespace {

using ::testing::HasSubstr;

/// A disk that outlives its journal, and fails where it is told to. Takes each sequence once, like SQLite.
struct Disk {
  Recovered kept;
  bool fails_before_writing = false;
  bool fails_after_writing = false;
  bool unreadable = false;
};

class DiskStore final : public Store {
 public:
  explicit DiskStore(Disk& disk) : disk_(disk) {}
  Result<Recovered> recover() override {
    if (disk_.unreadable) return fail(ErrorCode::system_error, "read the disk", "Input/output error");
    return disk_.kept;
  }
  Result<void> append(std::span<const Record> records) override {
    const Error broken{ErrorCode::system_error, "write to the disk", "Input/output error"};
    if (disk_.fails_before_writing) return fail(broken);
    auto next = disk_.kept.snapshot_sequence + disk_.kept.records.size();
    for (const auto& record : records) {
      if (record.sequence != ++next) {
        return fail(ErrorCode::internal, "write to the disk", "record " + std::to_string(next) + " is due");
      }
    }
    disk_.kept.records.insert(disk_.kept.records.end(), records.begin(), records.end());
    if (disk_.fails_after_writing) return fail(broken);
    return {};
  }
  Result<void> snapshot(std::uint64_t sequence, std::span<const std::byte> state) override {
    disk_.kept = {sequence, Bytes(state.begin(), state.end()), {}};
    return {};
  }

 private:
  Disk& disk_;
};

class JournalTest : public ::testing::Test {
 protected:
  static Journal open(Disk& disk) {
    auto journal = Journal::open(std::make_unique<DiskStore>(disk), 4);
    EXPECT_TRUE(journal) << journal.error().message();
    return std::move(*journal);
  }
  Result<std::vector<Event>> start_term(std::uint64_t term) {
    const Command command = command::StartTerm{term, 0, 0};
    return journal_.commit(std::span(&command, 1), 1'000);
  }
  void expect_as_after_a_restart() { EXPECT_EQ(journal_.state(), open(disk_).state()); }

  Disk disk_;
  Journal journal_ = open(disk_);
};

TEST_F(JournalTest, AnAppendThatWroteNothingChangesNothing) {
  ASSERT_TRUE(start_term(1));
  disk_.fails_before_writing = true;
  const auto refused = start_term(2);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("cannot be logged: Input/output error"));
  EXPECT_EQ(journal_.state().term, 1U);
  disk_.fails_before_writing = false;
  EXPECT_TRUE(start_term(2));
  expect_as_after_a_restart();
}

TEST_F(JournalTest, AnAppendThatFailedButIsDurableCountsAndStopsNothing) {
  ASSERT_TRUE(start_term(1));
  disk_.fails_after_writing = true;
  EXPECT_FALSE(start_term(2)) << "nobody is told of what may not be there after a power cut";
  EXPECT_EQ(journal_.state().term, 2U);
  expect_as_after_a_restart();
  disk_.fails_after_writing = false;
  const auto next = start_term(3);
  ASSERT_TRUE(next) << next.error().message();
  ASSERT_TRUE(journal_.compact());
  expect_as_after_a_restart();
}

TEST_F(JournalTest, TheSameAfterASnapshot) {
  for (std::uint64_t term = 1; term <= 4; ++term) ASSERT_TRUE(start_term(term));
  ASSERT_TRUE(journal_.compact());
  ASSERT_EQ(disk_.kept.snapshot_sequence, 4U);
  disk_.fails_after_writing = true;
  EXPECT_FALSE(start_term(5));
  disk_.fails_after_writing = false;
  EXPECT_TRUE(start_term(6));
  expect_as_after_a_restart();
}

TEST_F(JournalTest, ADiskThatCannotBeReadEitherIsAskedAgainBeforeTheNextCommit) {
  ASSERT_TRUE(start_term(1));
  disk_.fails_after_writing = disk_.unreadable = true;
  EXPECT_FALSE(start_term(2));
  EXPECT_EQ(journal_.state().term, 1U) << "what is known for sure";
  disk_.fails_after_writing = false;
  const auto refused = start_term(2);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("read the disk"));
  EXPECT_EQ(journal_.state().term, 1U);
  disk_.unreadable = false;
  EXPECT_FALSE(start_term(2)) << "it was logged the first time";
  EXPECT_EQ(journal_.state().term, 2U);
  EXPECT_TRUE(start_term(3));
  expect_as_after_a_restart();
}

TEST_F(JournalTest, ALogThatLostWhatWasAcknowledgedIsNotContinued) {
  ASSERT_TRUE(start_term(1));
  ASSERT_TRUE(start_term(2));
  disk_.kept.records.pop_back();
  disk_.fails_before_writing = true;
  EXPECT_FALSE(start_term(3));
  disk_.fails_before_writing = false;
  const auto refused = start_term(3);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::protocol_error);
  EXPECT_THAT(refused.error().message(), HasSubstr("it ends at record 1, but 2 was written"));
  EXPECT_EQ(journal_.state().term, 2U);
}

}  // namespace
}  // namespace cenote::pool
