// Store: the broker's write-ahead log and snapshots. What append() acknowledged is there after any crash.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/bytes.h"
#include "runtime/result.h"

namespace cenote::pool {

/// One logged decision: an encoded command and the time it was applied at. Sequences count from 1, without
/// gaps.
struct Record {
  std::uint64_t sequence = 0;
  std::int64_t unix_ms = 0;
  Bytes command;
  friend bool operator==(const Record&, const Record&) = default;
};

/// What a start finds: the newest snapshot and the records after it.
struct Recovered {
  std::uint64_t snapshot_sequence = 0;  ///< of the last record that the snapshot contains; 0 = no snapshot
  Bytes snapshot;
  std::vector<Record> records;
};

/// One writer; calls come one at a time. An append that fails has stored all of its records or none:
/// recover() tells which, and whether their sequences are still free. It may be tried again: a disk that was
/// full may have room again.
class Store {
 public:
  virtual ~Store() = default;
  /// Errors: protocol_error when the log has gaps or its checksums do not agree, with the place.
  virtual Result<Recovered> recover() = 0;
  /// All or nothing; durable when it returns.
  virtual Result<void> append(std::span<const Record> records) = 0;
  /// Keeps `state` as the result of all records up to `sequence`, and drops those.
  virtual Result<void> snapshot(std::uint64_t sequence, std::span<const std::byte> state) = 0;
};

}  // namespace cenote::pool
