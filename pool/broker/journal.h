// Journal: a State whose every change is in a Store before anyone hears of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pool/state/state.h"
#include "pool/store/store.h"
#include "runtime/result.h"

namespace cenote::pool {

/// Not thread-safe: its owner holds a lock.
class Journal {
 public:
  /// Replays what the store has. Errors: the store's; protocol_error, with the record, when it does not
  /// replay.
  static Result<Journal> open(std::unique_ptr<Store> store, std::uint32_t snapshot_every);

  [[nodiscard]] const State& state() const { return state_; }

  /// Applies all commands or none, and returns when they are durable. When the store fails, the state is what
  /// the store holds: a decision that is not in the log was never made, and one that is there although its
  /// append failed counts, though nobody was told: who asks again finds it.
  Result<std::vector<Event>> commit(std::span<const Command> commands, std::int64_t now_ms);

  /// How often the store has refused a commit.
  [[nodiscard]] std::uint64_t store_failures() const { return store_failures_; }

  /// Writes a snapshot when enough records have gathered. A failure loses nothing: the log goes on.
  Result<void> compact();

 private:
  Journal(std::unique_ptr<Store> store, std::uint32_t snapshot_every)
      : store_(std::move(store)), snapshot_every_(snapshot_every) {}
  Result<void> read();
  Result<void> replay();

  std::unique_ptr<Store> store_;
  std::uint32_t snapshot_every_;
  Bytes base_;                ///< the newest snapshot...
  std::vector<Record> tail_;  ///< ...and what came after it: the state before a commit that failed
  std::uint64_t last_ = 0;
  std::uint64_t compact_at_ = 0;
  std::uint64_t store_failures_ = 0;
  bool in_doubt_ = false;  ///< an append failed, and the store could not say what it holds
  State state_;
};

}  // namespace cenote::pool
