#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <memory>
#include <random>

#include "pool/broker/journal.h"
#include "pool/key_file.h"
#include "pool/store/sqlite.h"
#include "tests/unit/pool/temp_dir.h"

namespace cenote::pool {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::TempDir;

Record record(std::uint64_t sequence, std::string_view body = "body") {
  const auto bytes = as_bytes(body);
  return {sequence, static_cast<std::int64_t>(sequence * 10), Bytes(bytes.begin(), bytes.end())};
}

std::unique_ptr<Store> open(const std::filesystem::path& path) {
  auto store = open_sqlite_store(path);
  EXPECT_TRUE(store) << store.error().message();
  return store ? std::move(*store) : nullptr;
}

Result<void> append(Store& store, const Record& one) { return store.append(std::span(&one, 1)); }

void sql(const std::filesystem::path& path, const char* statement) {
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(database, statement, nullptr, nullptr, nullptr), SQLITE_OK)
      << sqlite3_errmsg(database);
  sqlite3_close(database);
}

/// Ends a child that a failed test leaves behind.
class Child {
 public:
  template <class Body>
  explicit Child(Body body) : pid_(::fork()) {
    if (pid_ == 0) ::_exit(body());
  }
  ~Child() {
    if (pid_ > 0) kill();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }
  int kill() {
    ::kill(pid_, SIGKILL);
    return wait();
  }

 private:
  pid_t pid_;
};

TEST(SqliteStore, KeepsRecordsAndSnapshots) {
  const TempDir dir;
  {
    const auto store = open(dir / "broker.db");
    EXPECT_TRUE(store->recover()->records.empty());
    ASSERT_TRUE(append(*store, record(1)));
    const std::vector<Record> two = {record(2, ""), record(3, "third")};
    ASSERT_TRUE(store->append(two));
  }
  {
    const auto store = open(dir / "broker.db");
    const auto found = store->recover();
    ASSERT_TRUE(found) << found.error().message();
    EXPECT_EQ(found->records, (std::vector<Record>{record(1), record(2, ""), record(3, "third")}));
    ASSERT_TRUE(store->snapshot(3, as_bytes("state of three")));
    ASSERT_TRUE(append(*store, record(4)));
  }
  const auto store = open(dir / "broker.db");
  const auto found = store->recover();
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ(found->snapshot_sequence, 3U);
  EXPECT_EQ(as_text(found->snapshot), "state of three");
  EXPECT_EQ(found->records, std::vector<Record>{record(4)});
}

TEST(SqliteStore, TakesRecordsOnlyInOrder) {
  const TempDir dir;
  const auto store = open(dir / "broker.db");
  ASSERT_TRUE(append(*store, record(1)));
  EXPECT_EQ(append(*store, record(1)).error().code, ErrorCode::internal);
  EXPECT_EQ(append(*store, record(3)).error().code, ErrorCode::internal);
  EXPECT_FALSE(store->snapshot(2, {}));
  EXPECT_TRUE(append(*store, record(2)));
}

TEST(SqliteStore, HasOneWriterAndNamesIt) {
  const TempDir dir;
  const auto path = dir / "broker.db";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  Child holder([&] {
    const auto store = open_sqlite_store(path);
    const char said = store ? 'y' : 'n';
    if (::write(ready[1], &said, 1) != 1) return 1;
    ::pause();
    return 0;
  });
  char said = 0;
  ASSERT_EQ(::read(ready[0], &said, 1), 1);
  ASSERT_EQ(said, 'y');
  const auto second = open_sqlite_store(path);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::already_exists);
  std::string pid = *read_file(dir / "broker.db.lock");
  pid.pop_back();
  EXPECT_THAT(second.error().message(), HasSubstr("a broker with pid " + pid + " holds it"));
  holder.kill();
  EXPECT_TRUE(open_sqlite_store(path)) << "the kernel drops a dead holder's lock";
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(SqliteStore, RefusesAFileThatIsNoDatabase) {
  const TempDir dir;
  std::ofstream(dir / "broker.db") << std::string(8'192, 'x');
  const auto refused = open_sqlite_store(dir / "broker.db");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::protocol_error);
  EXPECT_THAT(refused.error().message(), HasSubstr("file is not a database"));
}

TEST(SqliteStore, RefusesSomebodyElsesDatabaseAndLeavesItAlone) {
  const TempDir dir;
  sql(dir / "broker.db", "CREATE TABLE diary (entry TEXT)");
  const auto refused = open_sqlite_store(dir / "broker.db");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::protocol_error);
  EXPECT_THAT(refused.error().message(), HasSubstr("not a broker's"));
  sql(dir / "broker.db", "INSERT INTO diary VALUES ('still here')");
}

TEST(SqliteStore, RefusesANewerSchema) {
  const TempDir dir;
  open(dir / "broker.db");
  sql(dir / "broker.db", "PRAGMA user_version = 9");
  EXPECT_THAT(open_sqlite_store(dir / "broker.db").error().message(),
              HasSubstr("schema version 9, this build knows 1"));
}

TEST(SqliteStore, FindsEveryKindOfDamage) {
  const std::pair<const char*, const char*> damages[] = {
      {"UPDATE log SET command = x'00' WHERE sequence = 5", "checksum of record 5"},
      {"UPDATE log SET unix_ms = unix_ms + 1 WHERE sequence = 5", "checksum of record 5"},
      {"UPDATE log SET checksum = x'' WHERE sequence = 5", "checksum of record 5"},
      {"DELETE FROM log WHERE sequence = 5", "record 5 is missing"},
      {"UPDATE snapshot SET state = x'00'", "its checksum does not agree"},
      {"DELETE FROM snapshot", "record 1 is missing"},
  };
  for (const auto& [damage, says] : damages) {
    const TempDir dir;
    {
      const auto store = open(dir / "broker.db");
      for (std::uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(append(*store, record(i)));
      ASSERT_TRUE(store->snapshot(3, as_bytes("three")));
      for (std::uint64_t i = 4; i <= 6; ++i) ASSERT_TRUE(append(*store, record(i)));
    }
    sql(dir / "broker.db", damage);
    const auto found = open(dir / "broker.db")->recover();
    ASSERT_FALSE(found) << damage;
    EXPECT_EQ(found.error().code, ErrorCode::protocol_error);
    EXPECT_THAT(found.error().message(), HasSubstr(says));
  }
}

TEST(SqliteStore, SaysWhenTheFolderIsMissing) {
  const TempDir dir;
  const auto refused = open_sqlite_store(dir / "missing" / "broker.db");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().native, ENOENT);
}

TEST(SqliteStore, AFullDiskRefusesTheRecordAndNothingElse) {
  const TempDir dir;
  const auto path = dir / "broker.db";
  // The file size limit of a child stands for the full disk: the kernel refuses the write, for root too.
  Child child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const auto store = open_sqlite_store(path);
    if (!store || !(*store)->recover()) return 1;
    if (!append(**store, record(1))) return 2;
    rlimit limit{};
    if (::getrlimit(RLIMIT_FSIZE, &limit) != 0) return 3;
    const auto before = limit.rlim_cur;
    limit.rlim_cur = 64 << 10;
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 3;
    const auto refused = append(**store, record(2, std::string(1 << 20, 'x')));
    if (refused || refused.error().code != ErrorCode::system_error) return 4;
    if (!(*store)->recover() || (*store)->recover()->records.size() != 1) return 5;
    limit.rlim_cur = before;
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 3;
    return append(**store, record(2, "there is room again")) ? 0 : 6;
  });
  EXPECT_EQ(child.wait(), 0);
  const auto store = open(path);
  const auto found = store->recover();
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ(found->records.size(), 2U);
}

TEST(SqliteStore, AFolderThatCannotBeWrittenIsNamed) {
  if (::geteuid() == 0) {
    // Root may write any folder; another user may not. Give the rights up in a child.
    const TempDir dir;
    Child child([&] {
      if (::setegid(65534) != 0 || ::seteuid(65534) != 0) return 1;
      const auto refused = open_sqlite_store(dir / "broker.db");
      return !refused && refused.error().native == EACCES ? 0 : 2;
    });
    EXPECT_EQ(child.wait(), 0);
  } else {
    const TempDir dir;
    std::filesystem::permissions(dir.path(),
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
    const auto refused = open_sqlite_store(dir / "broker.db");
    std::filesystem::permissions(dir.path(), std::filesystem::perms::owner_all);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().native, EACCES);
  }
}

// ---- crashes ----

constexpr std::uint64_t kGiB = 1ULL << 30U;

/// What a broker does all day, on a journal: grants, renewals, ends. Tells `acknowledged` the term and number
/// of commands that are durable, after each commit. Never returns but on an error.
int work(const std::filesystem::path& path, int acknowledged, std::uint64_t seed) {
  auto store = open_sqlite_store(path);
  if (!store) return 1;
  auto journal = Journal::open(*std::move(store), 7);
  if (!journal) return 2;
  std::mt19937_64 random(seed);
  const Command start = command::StartTerm{journal->state().term + 1, 0, 0};
  if (!journal->commit(std::span(&start, 1), 0)) return 3;
  const Command agent = command::RegisterAgent{"a", "h", "1", {{"g0", "m", kGiB, 0}, {"g1", "m", kGiB, 1}}};
  if (!journal->commit(std::span(&agent, 1), 0)) return 4;
  for (std::uint64_t step = 0;; ++step) {
    const auto& state = journal->state();
    std::vector<Command> commands;
    if (state.leases.empty() || (state.leases.size() < 2 && random() % 2 == 0)) {
      const auto* device = state.devices.at("g0").holders.empty() ? "g0" : "g1";
      if (!state.devices.at(device).holders.empty()) continue;
      const auto id = std::to_string(state.term) + "." + std::to_string(step);
      commands.emplace_back(command::Grant{.lease_id = id,
                                           .request_id = id,
                                           .client = "c",
                                           .client_key = {},
                                           .expires_ms = 1'000'000,
                                           .note = {},
                                           .reason = {},
                                           .shares = {{.device = device,
                                                       .agent = "a",
                                                       .memory_bytes = kGiB,
                                                       .epoch = state.devices.at(device).epoch + 1}}});
    } else {
      const auto& id = state.leases.begin()->first;
      commands.emplace_back(command::End{id, EndCause::failed, "", 0});
      commands.emplace_back(command::Confirm{id, "a"});
    }
    if (!journal->commit(commands, static_cast<std::int64_t>(step)) || !journal->compact()) return 5;
    const std::uint64_t epochs[2] = {journal->state().devices.at("g0").epoch,
                                     journal->state().devices.at("g1").epoch};
    if (::write(acknowledged, epochs, sizeof(epochs)) != sizeof(epochs)) return 6;
  }
}

TEST(StoreCrash, NothingAcknowledgedIsLostAndNothingIsGrantedTwice) {
  const TempDir dir;
  const auto path = dir / "broker.db";
  std::mt19937_64 random(7);
  std::uint64_t known[2] = {0, 0};
  for (int round = 0; round < 25; ++round) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    Child child([&] { return work(path, pipe[1], random()); });
    ::close(pipe[1]);
    // Killed after a random number of acknowledgements: the next commit is then at any point of its way.
    std::uint64_t epochs[2];
    for (auto left = random() % 40; left > 0; --left) {
      ASSERT_EQ(::read(pipe[0], epochs, sizeof(epochs)), static_cast<ssize_t>(sizeof(epochs)));
      std::copy(epochs, epochs + 2, known);
    }
    EXPECT_TRUE(WIFSIGNALED(child.kill()));
    while (::read(pipe[0], epochs, sizeof(epochs)) == static_cast<ssize_t>(sizeof(epochs))) {
      std::copy(epochs, epochs + 2, known);
    }
    ::close(pipe[0]);

    auto store = open_sqlite_store(path);
    ASSERT_TRUE(store) << store.error().message();
    const auto journal = Journal::open(*std::move(store), 7);
    ASSERT_TRUE(journal) << "round " << round << ": " << journal.error().message();
    const auto& devices = journal->state().devices;
    if (devices.empty()) continue;
    for (const auto index : {0, 1}) {
      const auto& device = devices.at(index == 0 ? "g0" : "g1");
      EXPECT_GE(device.epoch, known[index]) << "an acknowledged grant is there after the crash";
      EXPECT_LE(device.epoch, known[index] + 1) << "at most the one in flight is there besides";
      EXPECT_LE(device.holders.size(), 1U);
    }
  }
  EXPECT_GT(known[0], 25U) << "the rounds should have granted something";
}

}  // namespace
}  // namespace cenote::pool
