// The executor at rest: sleeping until something happens, finding out who holds everybody up, and ending
// badly.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/executor.h"
#include "collectives/failure.h"
#include "runtime/rank_name.h"

namespace cenote::collectives {
namespace {

/// How often a stream is asked whether it has come so far: it cannot wake this thread.
constexpr auto gate_tick = std::chrono::microseconds(200);

double seconds(Clock::duration span) { return std::chrono::duration<double>(span).count(); }

std::string step_text(const ActiveOperation& operation, std::uint32_t number) {
  const auto& instance = operation.plan().instances[number];
  const bool send = instance.kind == StepKind::send;
  const auto first = (send ? instance.src : instance.dst) + operation.done[number];
  return fmt::format("to {} {} elements {}..{} (step {} of {})", to_string(instance.kind),
                     to_string(send ? instance.src_buffer : instance.dst_buffer), first,
                     (send ? instance.src : instance.dst) + instance.length, number + 1,
                     operation.plan().instances.size());
}

}  // namespace

/// How often a rank that waits says so.
Clock::duration Executor::tick() const {
  return std::clamp<Clock::duration>(options_.timeout / 8, std::chrono::milliseconds(10),
                                     std::chrono::milliseconds(500));
}

Result<void> Executor::on_idle(ActiveOperation& operation, std::optional<Deadline> sleep_until) {
  const auto now = Clock::now();
  if (moved_since_) {
    moved_since_ = false;
    last_moved_ = now;
    told_culprit_ = ~0U;
  }
  if (now >= operation.deadline.when() || (sleep_until && now >= sleep_until->when())) {
    return break_with(deadline_error(operation, now - operation.started));
  }
  CENOTE_TRY(compare_notes());
  const bool long_still = now - last_moved_ >= tick();
  if (options_.ledger != nullptr) {
    options_.ledger->seen(now);
    if (long_still) note_in_ledger();
  }
  const bool news = told_culprit_ != ~0U && culprit(blocked()) != told_culprit_;
  if (long_still && (news || now - last_told_ >= tick())) {
    for (auto& [rank, state] : links_) {
      // A link without work may bring notes too; what is wrong with it concerns nobody now.
      if (state->sending.empty() && state->receiving.empty()) (void)state->link->pump();
    }
    tell_stalled();
    last_told_ = now;
  }
  if (!sleep_until) return {};
  const bool held = std::ranges::any_of(active_, [](const auto& one) { return one->held(); });
  const auto wake = std::min(sleep_until->when(), now + (held ? Clock::duration(gate_tick) : tick()));
  auto woken = fabric_->wait(Deadline::at(wake), options_.cancel, wire::text(operation.header));
  if (woken || woken.error().code == ErrorCode::deadline_exceeded ||
      woken.error().code == ErrorCode::cancelled) {
    return {};
  }
  return break_with(std::move(woken).error());
}

Result<void> Executor::compare_notes() {
  for (const auto& [rank, state] : links_) {
    const auto& note = state->link->note();
    if (!note) continue;
    for (const auto& operation : active_) {
      if (static_cast<std::uint32_t>(operation->sequence) != note->sequence) continue;
      if (note->stalled.call == operation->header) continue;
      wire::Head head{wire::Kind::call, wire::with_call, 0, note->sequence};
      std::array<std::byte, wire::overhead> message{};
      std::memcpy(message.data(), &head, sizeof head);
      std::memcpy(message.data() + sizeof head, &note->stalled.call, sizeof note->stalled.call);
      if (auto same = same_call(*state, *operation, message.data()); !same)
        return break_with(std::move(same).error());
    }
  }
  return {};
}

Executor::Blocked Executor::blocked() const {
  Blocked found;
  bool receiving = false;
  const auto consider = [&](const LinkState& state, const Queue& queue, bool receives) {
    if (queue.empty()) return;
    const auto& [operation, flow] = queue.front();
    if (operation->held()) return;
    const auto number = operation->plan().flows[flow].instances[operation->cursor[flow]];
    const auto& instance = operation->plan().instances[number];
    const auto at = receives ? operation->done[number] : operation->posted[number];
    const auto end = std::min(at + operation->chunk, instance.length);
    if (!operation->plan().ready(instance, at, end, operation->done)) return;
    const bool older = found.on == nullptr || operation->sequence < found.operation->sequence;
    const bool same = found.on != nullptr && operation->sequence == found.operation->sequence;
    // Missing data says more than missing room: room comes back when the peer has its own data.
    if (!older && !(same && receives && !receiving)) return;
    found = {&state, operation, number};
    receiving = receives;
  };
  for (const auto& [rank, state] : links_) {
    consider(*state, state->receiving, true);
    consider(*state, state->sending, false);
  }
  return found;
}

std::uint32_t Executor::culprit(const Blocked& blocked) const {
  if (blocked.on == nullptr) return options_.rank;
  const auto direct = blocked.on->link->rank();
  const auto& note = blocked.on->link->note();
  if (!note || Clock::now() - note->when > 3 * tick()) return direct;
  return note->stalled.waits_for == options_.rank ? direct : note->stalled.waits_for;
}

void Executor::tell_stalled() {
  const auto on = blocked();
  if (on.on == nullptr) return;
  told_culprit_ = culprit(on);
  const wire::Stalled note{on.operation->header, told_culprit_, 0};
  for (auto& [rank, state] : links_) {
    state->link->send_stalled(note, static_cast<std::uint32_t>(on.operation->sequence));
  }
}

/// What the oldest operation that can move waits for. A sleeping rank does this only as often as it wakes.
void Executor::note_in_ledger() {
  auto& ledger = *options_.ledger;
  for (const auto& operation : active_) {
    if (operation->held()) ledger.stage(operation->ticket, "waits for stream", last_moved_, {});
  }
  const auto on = blocked();
  if (on.on == nullptr) return;
  const Ledger::Wait wait{on.on->link->rank(), culprit(on)};
  const auto note = [&](LedgerName stage) { ledger.stage(on.operation->ticket, stage, last_moved_, wait); };
  switch (on.operation->plan().instances[on.instance].kind) {
    case StepKind::send:
      return note("send");
    case StepKind::receive:
      return note("receive");
    case StepKind::reduce:
      return note("reduce");
    case StepKind::copy:
    case StepKind::finish:
      return;
  }
}

Error Executor::deadline_error(const ActiveOperation& operation, Clock::duration waited) const {
  const auto on = blocked();
  Error error{
      ErrorCode::deadline_exceeded, fmt::format("{} of rank {}", describe(operation), options_.rank), {}};
  if (on.on == nullptr) {
    error.cause = fmt::format("not complete after {:.1f} s", seconds(waited));
    if (operation.held()) error.cause += ": its stream has not done the work that was put there before";
    error.peer = rank_name(options_.rank);
    return error;
  }
  const auto direct = on.on->link->rank();
  const auto origin = culprit(on);
  error.peer = rank_name(origin);
  error.device = on.on->link->transport_name();
  error.cause = fmt::format("not complete after {:.1f} s: waits for rank {} {}", seconds(waited), direct,
                            step_text(*on.operation, on.instance));
  if (origin != direct) error.cause += fmt::format("; rank {} in turn waits for rank {}", direct, origin);
  error.remedy = fmt::format("rank {} hangs, is slower than the deadline, or makes other calls", origin);
  return error;
}

Error Executor::peer_error(const LinkState& state, const ActiveOperation& operation, std::string_view doing,
                           Error cause) const {
  return peer_error(state, fmt::format("{} of rank {}, {}", describe(operation), options_.rank, doing),
                    std::move(cause));
}

Error Executor::peer_error(const LinkState& state, const std::string& stage, Error cause) const {
  const auto direct = state.link->rank();
  const auto told = named_culprit(cause.cause);
  Error error{ErrorCode::peer_failed, stage, {}};
  if (cause.code == ErrorCode::protocol_error || cause.code == ErrorCode::invalid_argument)
    error.code = cause.code;
  error.peer = rank_name(told.value_or(direct));
  error.device = state.link->transport_name();
  error.cause = told ? fmt::format("rank {} says: {}", direct, innermost(cause.cause)) : cause.cause;
  error.remedy = std::move(cause.remedy);
  error.native = cause.native;
  if (const auto differs = disagreement(cause.cause)) {
    error.code = ErrorCode::invalid_argument;
    error.peer = rank_name(told == options_.rank ? direct : *told);
    error.cause = *differs;
    error.remedy = disagree_remedy;
  }
  return error;
}

Error Executor::local_error(const ActiveOperation& operation, Error cause) const {
  cause.stage = fmt::format("{} of rank {}, {}", describe(operation), options_.rank, cause.stage);
  cause.peer = rank_name(options_.rank);
  return cause;
}

void Executor::listen_for_the_cause(Error& error) {
  if (error.code != ErrorCode::peer_failed || named_culprit(error.cause)) return;
  const auto deadline = Deadline::in(options_.grace);
  while (!deadline.passed()) {
    for (auto& [rank, state] : links_) {
      const auto failure = state->link->failure();
      const auto told = failure ? named_culprit(failure->cause) : std::nullopt;
      if (!told) continue;
      if (const auto differs = disagreement(failure->cause)) {
        error = peer_error(*state, error.stage, *failure);
        return;
      }
      error.cause += fmt::format("; rank {} says: {}", rank, innermost(failure->cause));
      error.peer = rank_name(*told);
      return;
    }
    auto woken = fabric_->wait(deadline, options_.cancel, "the cause of a failure");
    if (!woken && woken.error().code != ErrorCode::deadline_exceeded) return;
  }
}

tl::unexpected<Error> Executor::break_with(Error error) {
  if (broken_) return fail(*broken_);
  listen_for_the_cause(error);
  if (error.stage.empty()) error.stage = fmt::format("collectives of rank {}", options_.rank);
  const auto origin = rank_of(error.peer).value_or(options_.rank);
  const auto reason = named_culprit(error.cause) ? std::string(innermost(error.cause).substr(0, reason_bytes))
                                                 : closing_reason(origin, error.cause);
  broken_ = std::move(error);
  if (options_.ledger != nullptr) options_.ledger->fail(origin, broken_->message(), Clock::now());
  for (auto& operation : active_) end_in_ledger(*operation);
  for (auto& [rank, state] : links_) state->link->close(reason);
  (void)fabric_->progress();  // the farewell is on its way before anybody tears this down
  return fail(*broken_);
}

}  // namespace cenote::collectives
