// The executor's second trade: puts, gets and signals that go straight to a peer, beside the streams of the
// collectives, over the same endpoints.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "collectives/executor.h"
#include "runtime/rank_name.h"

namespace cenote::collectives {
namespace {

const transport::RemoteKey no_key{};

double seconds(Clock::duration span) { return std::chrono::duration<double>(span).count(); }

/// What this thread waits for beside operations, in the ledger while it does.
class ListedWait {
 public:
  explicit ListedWait(Ledger* ledger) : ledger_(ledger) {}
  ~ListedWait() {
    if (ledger_ != nullptr) ledger_->end(ticket_);
  }
  ListedWait(const ListedWait&) = delete;
  ListedWait& operator=(const ListedWait&) = delete;

  /// Before each rest; the first makes the row.
  void rests(LedgerName name, std::uint64_t number, std::uint32_t rank) {
    if (ledger_ == nullptr) return;
    const auto now = Clock::now();
    if (ticket_.row == Ledger::Ticket::none) ticket_ = ledger_->begin({name, number, 0, 0, 0, now});
    if (rank != rank_) ledger_->stage(ticket_, "waits", now, {rank, rank});
    rank_ = rank;
  }

 private:
  Ledger* ledger_;
  Ledger::Ticket ticket_{};
  std::uint32_t rank_ = nobody;
};

}  // namespace

std::string Executor::describe_one_sided(const Outstanding::Operation& operation) const {
  if (operation.kind == Outstanding::Kind::signal)
    return fmt::format("signal of rank {} to rank {}", options_.rank, operation.rank);
  const bool get = operation.kind == Outstanding::Kind::get;
  return fmt::format("{} of rank {}, {} bytes at {} of rank {}", get ? "get" : "put", options_.rank,
                     operation.bytes, operation.offset, operation.rank);
}

/// peer_error in the words of windows, whose regions those of the keys are. The target refuses by a farewell
/// where the transport sees the memory there; what it says of a put or a get of its own is another matter.
Error Executor::one_sided_error(const LinkState& state, const std::string& stage, Error cause) const {
  constexpr std::string_view gone = "the key's region was destroyed";
  const auto at = cause.cause.find(gone);
  const auto before = std::string_view(cause.cause).substr(0, at == std::string::npos ? 0 : at);
  const bool refused_there = before.ends_with("take a put: ") || before.ends_with("answer a get: ");
  if (at != std::string::npos && (cause.code == ErrorCode::permission_denied || refused_there))
    cause.cause = fmt::format("rank {} has ended its window ({})", state.link->rank(), cause.cause);
  return peer_error(state, stage, std::move(cause));
}

/// It is waited for, and nothing moves. What is done at once is never written there.
void Executor::note_in_ledger(Outstanding::Operation& operation, Clock::time_point now) {
  if (options_.ledger == nullptr) return;
  options_.ledger->seen(now);
  if (operation.ticket.row != Ledger::Ticket::none) return;
  const auto begin = [&](LedgerName name) {
    const auto number = (operation.id & ~Outstanding::mark) / Outstanding::capacity;
    operation.ticket = options_.ledger->begin({name, number, operation.bytes, 0, 0, operation.started});
  };
  switch (operation.kind) {
    case Outstanding::Kind::put:
      begin("put");
      break;
    case Outstanding::Kind::get:
      begin("get");
      break;
    case Outstanding::Kind::signal:
      begin("signal");
      break;
  }
  options_.ledger->stage(operation.ticket, "posted", operation.started, {operation.rank, operation.rank});
}

void Executor::end_one_sided(Outstanding::Operation& operation) {
  if (options_.ledger != nullptr) options_.ledger->end(operation.ticket);
  outstanding_.end(operation);
}

Result<bool> Executor::post(LinkState& state, const OneSided& call, std::uint64_t id) {
  auto& link = *state.link;
  const transport::RemoteSlice there{call.key != nullptr ? call.key : &no_key, call.offset};
  if (call.kind == Outstanding::Kind::get) return link.get_from(call.local, there, id);
  return link.put_into(call.local, there, call.signal, id);
}

Result<std::uint64_t> Executor::start(const OneSided& call) {
  CENOTE_TRY(check_abort());
  auto* operation = outstanding_.begin();
  if (operation == nullptr) {
    return fail(Error{ErrorCode::resource_exhausted, "begin a put or a get",
                      fmt::format("{} are in flight", Outstanding::capacity)}
                    .fix("test or wait for earlier ones"));
  }
  operation->kind = call.kind;
  operation->rank = call.rank;
  operation->offset = call.offset;
  operation->bytes = call.local.size();
  operation->started = Clock::now();
  operation->deadline = operation->started + options_.timeout;
  auto& state = *links_.at(call.rank);  // there since link_everybody
  const auto id = operation->id;
  auto posted = post(state, call, id);
  if (posted && !*posted) {
    // The queue is full of what may have left meanwhile.
    if (auto moved = progress(); !moved) {
      retire(true);
      return break_with(std::move(moved).error());
    }
    posted = post(state, call, id);
  }
  if (posted && *posted) return id;
  auto stage = describe_one_sided(*operation);
  end_one_sided(*operation);
  if (!posted) return break_with(one_sided_error(state, stage, std::move(posted).error()));
  return fail(Error{ErrorCode::resource_exhausted, std::move(stage), "the queue to the peer is full"}
                  .on(std::string(state.link->transport_name()))
                  .with(rank_name(call.rank))
                  .fix("test or wait for earlier ones"));
}

/// True: it is over, and well.
Result<bool> Executor::advance_one_sided(std::uint64_t id, bool& moved) {
  moved = false;
  const auto over = [&] {
    auto* operation = outstanding_.find(id);
    if (operation != nullptr && !operation->done) return false;
    if (operation != nullptr) end_one_sided(*operation);
    return true;
  };
  if (!outstanding_.was_begun(id)) {
    return fail(ErrorCode::invalid_argument, "test a put or a get",
                fmt::format("none was begun as {:#x}", id));
  }
  if (over()) return true;
  CENOTE_TRY(check_abort());
  auto progressed = progress();
  if (over()) return true;
  if (!progressed) {
    retire(true);
    return break_with(std::move(progressed).error());
  }
  moved = *progressed;
  retire();
  auto& operation = *outstanding_.find(id);
  const auto now = Clock::now();
  if (!moved) note_in_ledger(operation, now);
  if (moved || now < operation.deadline) return false;
  const auto& link = *links_.at(operation.rank)->link;
  return break_with(
      Error{ErrorCode::deadline_exceeded, describe_one_sided(operation),
            fmt::format("not complete after {:.1f} s", seconds(now - operation.started))}
          .on(std::string(link.transport_name()))
          .with(rank_name(operation.rank))
          .fix(fmt::format("rank {} hangs, or makes no call that moves its communicator forward",
                           operation.rank)));
}

/// Sleeps until something happens, `deadline`, or it is time to look.
Result<void> Executor::rest(Deadline deadline, std::string_view what) {
  const auto now = Clock::now();
  if (options_.ledger != nullptr) options_.ledger->seen(now);
  const auto wake = std::min(deadline.when(), now + tick());
  auto woken = fabric_->wait(Deadline::at(wake), options_.cancel, what);
  if (woken || woken.error().code == ErrorCode::deadline_exceeded ||
      woken.error().code == ErrorCode::cancelled)
    return {};
  return break_with(std::move(woken).error());
}

Result<void> Executor::wait_one_sided(std::uint64_t id, Deadline deadline) {
  for (;;) {
    bool moved = false;
    CENOTE_ASSIGN(const bool done, advance_one_sided(id, moved));
    if (done) return {};
    if (moved) continue;
    auto* operation = outstanding_.find(id);
    // The caller's own deadline ends it like the operation's: its buffer is not given back half read.
    operation->deadline = std::min(operation->deadline, deadline.when());
    CENOTE_TRY(rest(Deadline::at(operation->deadline), "a put or a get"));
  }
}

Result<std::vector<transport::Transport*>> Executor::link_everybody(Deadline deadline) {
  CENOTE_TRY(check_abort());
  std::vector<transport::Transport*> used;
  for (std::uint32_t rank = 0; rank < options_.size; ++rank) {
    if (rank == options_.rank) continue;
    auto state = link_to(rank, deadline);
    if (!state) return break_with(std::move(state).error());
    auto* transport = &(*state)->link->transport();
    if (std::ranges::find(used, transport) == used.end()) used.push_back(transport);
  }
  return used;
}

Result<void> Executor::greet_everybody(Deadline deadline) {
  const auto stage = fmt::format("connect rank {} with every other", options_.rank);
  ++greetings_;
  ListedWait listed(options_.ledger);
  std::vector<LinkState*> to_greet, to_hear;
  for (auto& [rank, state] : links_) to_greet.push_back(state.get());
  to_hear = to_greet;
  for (;;) {
    CENOTE_TRY(check_abort());
    auto moved = progress();
    if (!moved) {
      retire(true);
      return break_with(std::move(moved).error());
    }
    retire();
    for (auto it = to_greet.begin(); it != to_greet.end();) {
      auto sent = (*it)->link->greet();
      if (!sent) return break_with(peer_error(**it, stage, std::move(sent).error()));
      it = *sent ? to_greet.erase(it) : it + 1;
    }
    std::erase_if(to_hear, [&](const auto* state) {
      return state->link->signal(wire::greeting_signal) >= greetings_ && state->link->drained();
    });
    if (to_greet.empty() && to_hear.empty()) return {};
    for (const auto* state : to_hear) {
      if (auto error = state->link->failure())
        return break_with(peer_error(*state, stage, std::move(*error)));
    }
    if (*moved) continue;
    const auto missing = (to_hear.empty() ? to_greet : to_hear).front()->link->rank();
    if (deadline.passed()) {
      return break_with(
          Error{ErrorCode::deadline_exceeded, stage, fmt::format("rank {} has not answered", missing)}.with(
              rank_name(missing)));
    }
    listed.rests("create window", greetings_, missing);
    CENOTE_TRY(rest(deadline, stage));
  }
}

std::string_view Executor::transport_to(std::uint32_t rank) const {
  return links_.at(rank)->link->transport_name();
}

bool Executor::reaches_at_once(std::uint32_t rank) const {
  return links_.at(rank)->link->transport().limits().registers_any_memory;
}

std::uint64_t Executor::signalled(std::uint32_t rank, std::uint32_t signal) const {
  if (rank == options_.rank) return own_signals_[signal];
  return links_.at(rank)->link->signal(wire::user_signal + signal);
}

Result<void> Executor::wait_signal(std::uint32_t rank, std::uint32_t signal, std::uint64_t count,
                                   Deadline deadline) {
  const auto stage = [&] {
    return fmt::format("wait of rank {} for signal {} of rank {}", options_.rank, signal, rank);
  };
  ListedWait listed(options_.ledger);
  for (;;) {
    if (signalled(rank, signal) >= count) return {};
    CENOTE_TRY(check_abort());
    auto moved = progress();
    if (signalled(rank, signal) >= count) return {};
    if (!moved) {
      retire(true);
      return break_with(std::move(moved).error());
    }
    retire();
    const auto* state = rank == options_.rank ? nullptr : links_.at(rank).get();
    // What has come over it was looked at first: a peer may signal and leave.
    auto error = state != nullptr ? state->link->failure() : std::nullopt;
    if (error) return break_with(peer_error(*state, stage(), std::move(*error)));
    if (*moved) continue;
    if (deadline.passed()) {
      return fail(Error{ErrorCode::deadline_exceeded, stage(),
                        fmt::format("it has come {} times, not {}", signalled(rank, signal), count)}
                      .with(rank_name(rank)));
    }
    listed.rests("wait for signal", signal, rank);
    CENOTE_TRY(rest(deadline, "a signal"));
  }
}

Result<void> Executor::nudge() {
  CENOTE_TRY(check_abort());
  if (auto moved = progress(); !moved) {
    retire(true);
    return break_with(std::move(moved).error());
  }
  retire();
  return {};
}

}  // namespace cenote::collectives
