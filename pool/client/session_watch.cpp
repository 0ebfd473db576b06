#include "pool/client/session_watch.h"

#include <chrono>
#include <utility>

namespace cenote::pool::client {

namespace {

// How long one call waits for the end of its session; then it is asked again.
constexpr auto kWait = std::chrono::minutes(10);
// How long an agent that was lost may take to answer once more: its connection may have broken, not it.
constexpr auto kLastChance = std::chrono::seconds(2);

}  // namespace

SessionWatch::SessionWatch(std::unique_ptr<AwaitCalls> calls, Lost lost)
    : calls_(std::move(calls)), lost_(std::move(lost)), thread_([this] { run(); }) {}

SessionWatch::~SessionWatch() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    calls_->shut();
  }
  thread_.join();
}

void SessionWatch::watch(WatchedSession session) {
  const std::lock_guard lock(mutex_);
  start(std::move(session), false);
}

void SessionWatch::forget(const std::string& agent) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, waiting] : waiting_) {
    if (waiting.session.agent != agent) continue;
    waiting.forgotten = true;
    if (!closing_) calls_->cancel(id);
  }
}

void SessionWatch::start(WatchedSession session, bool last_chance) {
  if (closing_) return;
  const auto id = ++last_id_;
  calls_->start(id,
                {session.line, session.lease_id, session.number,
                 last_chance ? Clock::duration::zero() : Clock::duration(kWait), kLastChance, last_chance});
  waiting_.emplace(id, Waiting{std::move(session), last_chance});
}

void SessionWatch::run() {
  while (const auto answer = calls_->next()) {
    std::unique_lock lock(mutex_);
    auto node = waiting_.extract(answer->id);
    auto& waiting = node.mapped();
    if (closing_ || waiting.forgotten) continue;
    if (const auto error = judge(waiting, answer->end)) {
      lock.unlock();
      lost_(waiting.session, *error);
    }
  }
}

// What the end of a call says of its session. Asks again where it says nothing.
std::optional<Error> SessionWatch::judge(Waiting& waiting, const Result<AwaitedEnd>& end) {
  auto& session = waiting.session;
  const auto stage = "keep lease " + session.lease_id;
  if (end) {
    if (!end->over) {
      start(std::move(session), false);
    } else if (end->failed) {
      return Error{ErrorCode::peer_failed, stage, end->reason}.with(session.peer);
    }
    return std::nullopt;
  }
  if (end.error().code == ErrorCode::not_supported) return std::nullopt;  // an older agent
  if (!waiting.last_chance) {
    start(std::move(session), true);
    return std::nullopt;
  }
  return Error{
      ErrorCode::peer_failed, stage,
      "its agent cannot be reached any more: the process ended, or its machine or the way there is down; "
      "workers die with their agent"}
      .with(session.peer)
      .fix("see the agent's log; open the lease again once it is back, or lease other GPUs");
}

}  // namespace cenote::pool::client
