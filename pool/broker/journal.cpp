#include "pool/broker/journal.h"

#include <utility>

namespace cenote::pool {

Result<Journal> Journal::open(std::unique_ptr<Store> store, std::uint32_t snapshot_every) {
  Journal journal(std::move(store), snapshot_every);
  journal.compact_at_ = snapshot_every;
  CENOTE_TRY(journal.read());
  return journal;
}

Result<void> Journal::read() {
  CENOTE_ASSIGN(auto found, store_->recover());
  const auto last = found.records.empty() ? found.snapshot_sequence : found.records.back().sequence;
  if (last < last_) {
    return fail(
        Error{ErrorCode::protocol_error, "read the broker's log again",
              "it ends at record " + std::to_string(last) + ", but " + std::to_string(last_) + " was written"}
            .fix("has somebody replaced the file? Restore it, and restart the broker"));
  }
  base_ = std::move(found.snapshot);
  tail_ = std::move(found.records);
  last_ = last;
  CENOTE_TRY(replay());
  in_doubt_ = false;
  return {};
}

Result<void> Journal::replay() {
  State state;
  if (!base_.empty()) {
    CENOTE_ASSIGN(state, decode_state(base_));
  }
  for (const auto& record : tail_) {
    const auto command = decode_command(record.command);
    auto applied = command ? apply(state, *command, record.unix_ms) : fail(command.error());
    if (!applied) {
      return fail(Error{ErrorCode::protocol_error, "replay the broker's log",
                        "record " + std::to_string(record.sequence) + ": " + applied.error().message()});
    }
  }
  state_ = std::move(state);
  return {};
}

// The commands are applied first, because only the state knows whether they are valid; nobody sees the state
// until the log has them. A store that refuses is rare: then the state is rebuilt from what the store holds,
// which may be the records all the same (a commit can be durable and its last step fail). Their sequences
// would then be refused for ever, and what is in the log counts after the next restart: so it counts now.
Result<std::vector<Event>> Journal::commit(std::span<const Command> commands, std::int64_t now_ms) {
  if (in_doubt_) {
    if (auto known = read(); !known) {
      ++store_failures_;
      return fail(std::move(known).error());
    }
  }
  std::vector<Event> events;
  std::vector<Record> records;
  const auto undo = [&](Error cause) -> tl::unexpected<Error> {
    if (auto rebuilt = replay(); !rebuilt) return fail(std::move(rebuilt).error());
    return fail(std::move(cause));
  };
  for (const auto& command : commands) {
    auto applied = apply(state_, command, now_ms);
    // A single command that is refused has changed nothing.
    if (!applied)
      return records.empty() ? fail(std::move(applied).error()) : undo(std::move(applied).error());
    events.insert(events.end(), applied->begin(), applied->end());
    records.push_back({last_ + records.size() + 1, now_ms, encode(command)});
  }
  if (auto written = store_->append(records); !written) {
    auto error = std::move(written).error();
    error.cause = "the decision cannot be logged: " + error.cause;
    in_doubt_ = true;
    ++store_failures_;
    if (read()) return fail(std::move(error));
    return undo(std::move(error));  // it cannot be read either: the next commit looks again
  }
  last_ += records.size();
  tail_.insert(tail_.end(), std::make_move_iterator(records.begin()), std::make_move_iterator(records.end()));
  return events;
}

Result<void> Journal::compact() {
  if (tail_.size() < compact_at_) return {};
  auto snapshot = encode(state_);
  if (auto written = store_->snapshot(last_, snapshot); !written) {
    compact_at_ = tail_.size() + snapshot_every_;  // try again later, not with every record
    return written;
  }
  base_ = std::move(snapshot);
  tail_.clear();
  compact_at_ = snapshot_every_;
  return {};
}

}  // namespace cenote::pool
