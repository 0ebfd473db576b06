#include "pool/store/sqlite.h"

#include <fcntl.h>
#include <openssl/sha.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace cenote::pool {
namespace {

constexpr int kApplicationId = 0x43454e4f;  // "CENO"
constexpr int kSchemaVersion = 1;
using Checksum = std::array<unsigned char, 16>;

Checksum checksum(const Checksum& previous, std::uint64_t sequence, std::int64_t unix_ms,
                  std::span<const std::byte> body) {
  Writer in;
  in.raw(std::as_bytes(std::span(previous))).put(sequence).put(unix_ms).raw(body);
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(in.bytes().data()), in.bytes().size(), digest.data());
  Checksum out{};
  std::copy_n(digest.begin(), out.size(), out.begin());
  return out;
}

/// Holds `path`.lock for as long as it lives. The lock is the kernel's, not the file's existence.
class WriterLock {
 public:
  static Result<WriterLock> take(const std::filesystem::path& path);
  WriterLock(WriterLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  WriterLock& operator=(WriterLock&&) = delete;
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;
  ~WriterLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

 private:
  explicit WriterLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

std::string holder_of(int descriptor) {
  std::array<char, 32> text{};
  const auto size = ::pread(descriptor, text.data(), text.size() - 1, 0);
  std::string pid(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  while (!pid.empty() && (pid.back() == '\n' || pid.back() == '\0')) pid.pop_back();
  return pid.empty() ? "unknown" : pid;
}

Result<WriterLock> WriterLock::take(const std::filesystem::path& path) {
  auto lock_path = path;
  lock_path += ".lock";
  const auto stage = "lock the store " + path.string();
  WriterLock lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.descriptor_ < 0) return fail(system_error(stage, errno));
  if (::flock(lock.descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return fail(system_error(stage, errno));
    return fail(
        Error{ErrorCode::already_exists, stage,
              "a broker with pid " + holder_of(lock.descriptor_) + " holds it"}
            .fix("one store has one broker: stop that one, or give this one a state folder of its own"));
  }
  const auto pid = std::to_string(::getpid()) + "\n";
  if (::ftruncate(lock.descriptor_, 0) != 0 ||
      ::pwrite(lock.descriptor_, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return fail(system_error(stage, errno));
  }
  return lock;
}

struct CloseDatabase {
  void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
};
struct Finalize {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;
using Statement = std::unique_ptr<sqlite3_stmt, Finalize>;

/// SQLite's code becomes ours; the errno below it, where there is one, is `native`.
Error sqlite_error(sqlite3* database, std::string stage, int code) {
  Error error{ErrorCode::system_error, std::move(stage), {}};
  error.cause = database != nullptr ? sqlite3_errmsg(database) : sqlite3_errstr(code);
  const int system = database != nullptr ? sqlite3_system_errno(database) : 0;
  error.native = system;
  switch (code & 0xff) {
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
      error.code = ErrorCode::protocol_error;
      error.remedy = "restore the file from a backup; to start anew, move it away when every lease has ended";
      break;
    case SQLITE_FULL:
      error.remedy = "make room on the disk";
      break;
    case SQLITE_READONLY:
      error.remedy = "the broker must be able to write its state folder";
      break;
    default:
      break;
  }
  if (system != 0 && error.code == ErrorCode::system_error)
    error.cause += ": " + std::string(std::strerror(system));
  return error;
}

class SqliteStore : public Store {
 public:
  SqliteStore(WriterLock lock, Database database, std::string name)
      : lock_(std::move(lock)), database_(std::move(database)), name_(std::move(name)) {}

  Result<void> prepare();
  Result<Recovered> recover() override;
  Result<void> append(std::span<const Record> records) override;
  Result<void> snapshot(std::uint64_t sequence, std::span<const std::byte> state) override;

 private:
  [[nodiscard]] std::string stage(const char* what) const { return std::string(what) + " " + name_; }
  Result<void> run(const char* sql, const char* what);
  Result<Statement> statement(const char* sql, const char* what);
  Result<std::int64_t> number(const char* sql, const char* what);
  Result<void> step(sqlite3_stmt* statement, const char* what);
  Result<void> adopt();
  Result<void> insert(std::span<const Record> records, Checksum& last);
  Result<void> read_snapshot(Recovered& found);
  Result<void> read_log(Recovered& found);
  /// Runs `body` in a transaction; whatever fails, nothing of it stays.
  template <class Body>
  Result<void> transaction(const char* what, Body body);

  WriterLock lock_;
  Database database_;
  std::string name_;
  Checksum last_{};
  std::uint64_t next_ = 1;
};

Result<void> SqliteStore::run(const char* sql, const char* what) {
  const int code = sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return fail(sqlite_error(database_.get(), stage(what), code));
  return {};
}

Result<Statement> SqliteStore::statement(const char* sql, const char* what) {
  sqlite3_stmt* raw = nullptr;
  const int code = sqlite3_prepare_v2(database_.get(), sql, -1, &raw, nullptr);
  Statement prepared(raw);
  if (code != SQLITE_OK) return fail(sqlite_error(database_.get(), stage(what), code));
  return prepared;
}

Result<std::int64_t> SqliteStore::number(const char* sql, const char* what) {
  CENOTE_ASSIGN(const auto query, statement(sql, what));
  const int code = sqlite3_step(query.get());
  if (code == SQLITE_ROW) return sqlite3_column_int64(query.get(), 0);
  if (code == SQLITE_DONE) return 0;
  return fail(sqlite_error(database_.get(), stage(what), code));
}

Result<void> SqliteStore::step(sqlite3_stmt* prepared, const char* what) {
  const int code = sqlite3_step(prepared);
  if (code != SQLITE_DONE) return fail(sqlite_error(database_.get(), stage(what), code));
  return {};
}

template <class Body>
Result<void> SqliteStore::transaction(const char* what, Body body) {
  CENOTE_TRY(run("BEGIN IMMEDIATE", what));
  auto done = body();
  if (done) done = run("COMMIT", what);
  // A commit that failed may leave the transaction open.
  if (!done && sqlite3_get_autocommit(database_.get()) == 0) {
    sqlite3_exec(database_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
  return done;
}

/// Makes our tables in an empty file; refuses a file of somebody else.
Result<void> SqliteStore::adopt() {
  constexpr auto what = "open the store";
  CENOTE_ASSIGN(const auto id, number("PRAGMA application_id", what));
  CENOTE_ASSIGN(const auto tables, number("SELECT count(*) FROM sqlite_master", what));
  if (id == 0 && tables == 0) {
    const auto schema =
        "PRAGMA application_id = " + std::to_string(kApplicationId) +
        ";PRAGMA user_version = " + std::to_string(kSchemaVersion) +
        ";CREATE TABLE log (sequence INTEGER PRIMARY KEY, unix_ms INTEGER NOT NULL, command BLOB "
        "NOT NULL, checksum BLOB NOT NULL) STRICT"
        ";CREATE TABLE snapshot (one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT "
        "NULL, state BLOB NOT NULL, checksum BLOB NOT NULL, chain BLOB NOT NULL) STRICT";
    return transaction(what, [&] { return run(schema.c_str(), what); });
  }
  if (id != kApplicationId) {
    return fail(Error{ErrorCode::protocol_error, stage(what), "it is a database, but not a broker's"}.fix(
        "give the broker a state folder of its own"));
  }
  CENOTE_ASSIGN(const auto version, number("PRAGMA user_version", what));
  if (version != kSchemaVersion) {
    return fail(
        ErrorCode::protocol_error, stage(what),
        "schema version " + std::to_string(version) + ", this build knows " + std::to_string(kSchemaVersion));
  }
  return {};
}

Result<void> SqliteStore::prepare() {
  constexpr auto what = "open the store";
  sqlite3_extended_result_codes(database_.get(), 1);
  sqlite3_busy_timeout(database_.get(), 2'000);  // somebody may be reading it with the sqlite3 tool
  CENOTE_TRY(run("PRAGMA journal_mode = WAL", what));
  CENOTE_TRY(run("PRAGMA synchronous = FULL", what));
  CENOTE_TRY(run("PRAGMA trusted_schema = OFF", what));
  return adopt();
}

Bytes blob(sqlite3_stmt* row, int column) {
  const auto* data = static_cast<const std::byte*>(sqlite3_column_blob(row, column));
  const auto size = static_cast<std::size_t>(sqlite3_column_bytes(row, column));
  return data == nullptr ? Bytes() : Bytes(data, data + size);
}

bool read_checksum(sqlite3_stmt* row, int column, Checksum& out) {
  const auto bytes = blob(row, column);
  if (bytes.size() != out.size()) return false;
  std::memcpy(out.data(), bytes.data(), out.size());
  return true;
}

void bind_blob(sqlite3_stmt* statement, int index, std::span<const std::byte> bytes) {
  // A null pointer would bind NULL, also for an empty blob. (Not named bind: ADL would prefer std::bind.)
  static constexpr std::byte none{};
  sqlite3_bind_blob64(statement, index, bytes.empty() ? &none : bytes.data(), bytes.size(), SQLITE_TRANSIENT);
}

Error damaged(std::string stage, std::string cause) {
  return Error{ErrorCode::protocol_error, std::move(stage), std::move(cause)}.fix(
      "restore the file from a backup; to start anew, move it away when every lease has ended");
}

Result<void> SqliteStore::read_snapshot(Recovered& found) {
  constexpr auto what = "read the snapshot in";
  CENOTE_ASSIGN(const auto query, statement("SELECT sequence, state, checksum, chain FROM snapshot", what));
  const int code = sqlite3_step(query.get());
  if (code == SQLITE_DONE) return {};
  if (code != SQLITE_ROW) return fail(sqlite_error(database_.get(), stage(what), code));
  found.snapshot_sequence = static_cast<std::uint64_t>(sqlite3_column_int64(query.get(), 0));
  found.snapshot = blob(query.get(), 1);
  Checksum kept{};
  if (!read_checksum(query.get(), 2, kept) || !read_checksum(query.get(), 3, last_) ||
      kept != checksum(last_, found.snapshot_sequence, 0, found.snapshot)) {
    return fail(damaged(stage(what), "its checksum does not agree"));
  }
  next_ = found.snapshot_sequence + 1;
  return {};
}

Result<void> SqliteStore::read_log(Recovered& found) {
  constexpr auto what = "read the log in";
  CENOTE_ASSIGN(const auto query,
                statement("SELECT sequence, unix_ms, command, checksum FROM log ORDER BY sequence", what));
  int code = SQLITE_DONE;
  while ((code = sqlite3_step(query.get())) == SQLITE_ROW) {
    Record record{static_cast<std::uint64_t>(sqlite3_column_int64(query.get(), 0)),
                  sqlite3_column_int64(query.get(), 1), blob(query.get(), 2)};
    if (record.sequence != next_) {
      return fail(damaged(stage(what), "record " + std::to_string(next_) + " is missing"));
    }
    Checksum kept{};
    const auto sum = checksum(last_, record.sequence, record.unix_ms, record.command);
    if (!read_checksum(query.get(), 3, kept) || kept != sum) {
      return fail(
          damaged(stage(what), "the checksum of record " + std::to_string(next_) + " does not agree"));
    }
    last_ = sum;
    ++next_;
    found.records.push_back(std::move(record));
  }
  if (code != SQLITE_DONE) return fail(sqlite_error(database_.get(), stage(what), code));
  return {};
}

Result<Recovered> SqliteStore::recover() {
  Recovered found;
  last_ = {};
  next_ = 1;
  CENOTE_TRY(read_snapshot(found));
  CENOTE_TRY(read_log(found));
  return found;
}

Result<void> SqliteStore::insert(std::span<const Record> records, Checksum& last) {
  constexpr auto what = "write to";
  CENOTE_ASSIGN(
      const auto insert_row,
      statement("INSERT INTO log (sequence, unix_ms, command, checksum) VALUES (?, ?, ?, ?)", what));
  for (const auto& record : records) {
    last = checksum(last, record.sequence, record.unix_ms, record.command);
    sqlite3_bind_int64(insert_row.get(), 1, static_cast<sqlite3_int64>(record.sequence));
    sqlite3_bind_int64(insert_row.get(), 2, record.unix_ms);
    bind_blob(insert_row.get(), 3, record.command);
    bind_blob(insert_row.get(), 4, std::as_bytes(std::span(last)));
    CENOTE_TRY(step(insert_row.get(), what));
    sqlite3_reset(insert_row.get());
  }
  return {};
}

Result<void> SqliteStore::append(std::span<const Record> records) {
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (records[i].sequence != next_ + i) {
      return fail(
          ErrorCode::internal, stage("write to"),
          "record " + std::to_string(next_ + i) + " is due, not " + std::to_string(records[i].sequence));
    }
  }
  auto last = last_;
  CENOTE_TRY(transaction("write to", [&] { return insert(records, last); }));
  last_ = last;
  next_ += records.size();
  return {};
}

Result<void> SqliteStore::snapshot(std::uint64_t sequence, std::span<const std::byte> state) {
  constexpr auto what = "write a snapshot to";
  if (sequence + 1 != next_) {
    return fail(ErrorCode::internal, stage(what), "it is not of the last record");
  }
  return transaction(what, [&]() -> Result<void> {
    CENOTE_ASSIGN(const auto replace,
                  statement("INSERT OR REPLACE INTO snapshot (one, sequence, state, checksum, "
                            "chain) VALUES (1, ?, ?, ?, ?)",
                            what));
    const auto sum = checksum(last_, sequence, 0, state);
    sqlite3_bind_int64(replace.get(), 1, static_cast<sqlite3_int64>(sequence));
    bind_blob(replace.get(), 2, state);
    bind_blob(replace.get(), 3, std::as_bytes(std::span(sum)));
    bind_blob(replace.get(), 4, std::as_bytes(std::span(last_)));
    CENOTE_TRY(step(replace.get(), what));
    return run("DELETE FROM log", what);
  });
}

}  // namespace

Result<std::unique_ptr<Store>> open_sqlite_store(const std::filesystem::path& path) {
  CENOTE_ASSIGN(auto lock, WriterLock::take(path));
  sqlite3* raw = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &raw,
                                   SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  Database database(raw);
  if (code != SQLITE_OK) return fail(sqlite_error(raw, "open the store " + path.string(), code));
  ::chmod(path.c_str(), 0600);
  auto store = std::make_unique<SqliteStore>(std::move(lock), std::move(database), path.string());
  CENOTE_TRY(store->prepare());
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace cenote::pool
