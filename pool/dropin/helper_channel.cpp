#include "pool/dropin/helper_channel.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "pool/dropin/helper_process.h"

namespace cenote::pool::dropin {
namespace {

constexpr const char* kStage = "ask the pool's helper process";

constexpr int kLongest = 604'800'000;  // ms: a week

// The helper knows better what it waits for: its own answer at the deadline comes first.
constexpr auto kLater = std::chrono::seconds(5);

}  // namespace

HelperChannel::HelperChannel(UniqueFd socket, UniqueFd words)
    : socket_(std::move(socket)), words_(std::move(words)), owner_(::getpid()) {}

Result<void> HelperChannel::check_process() const {
  if (::getpid() == owner_) return {};
  return fail(Error{ErrorCode::invalid_argument, kStage, "the pool was connected before fork()"}.fix(
      "connect again in the child"));
}

Result<ReplyBody> HelperChannel::call(Ask ask, Deadline deadline) {
  CENOTE_TRY(check_process());
  std::unique_lock lock(mutex_);
  if (broken_) return fail(*broken_);
  const auto id = ++last_id_;
  waiting_.emplace(id, std::nullopt);
  lock.unlock();
  const auto ms = static_cast<std::uint32_t>(deadline.poll_ms(kLongest));
  const auto until = Deadline::in(deadline.left() + kLater);
  auto sent = send({id, ms, std::move(ask)}, until);
  lock.lock();
  auto answer = sent ? wait_for(id, lock, until) : Result<ReplyBody>(fail(std::move(sent).error()));
  waiting_.erase(id);
  const auto unclaimed = std::exchange(unclaimed_, {});
  lock.unlock();
  for (const auto lease : unclaimed) tell(ReleaseAsk{lease});
  if (!answer) return answer;
  if (auto* failed = std::get_if<FailedReply>(&*answer)) return fail(std::move(failed->error));
  return answer;
}

void HelperChannel::tell(Ask ask) {
  if (!check_process()) return;
  std::unique_lock lock(mutex_);
  unsaid_.push_back({0, 10'000, std::move(ask)});
  if (!sending_) say_unsaid(lock);
}

// What does not fit now is said with the next request.
void HelperChannel::say_unsaid(std::unique_lock<std::mutex>& lock) {
  pollfd writable{socket_.get(), POLLOUT, 0};
  while (!broken_ && !unsaid_.empty() && ::poll(&writable, 1, 0) > 0) {
    const auto frame = encode(unsaid_.front());
    unsaid_.erase(unsaid_.begin());
    sending_ = true;
    lock.unlock();
    const auto sent = send_frame(socket_.get(), frame, Deadline::in(kLater));
    lock.lock();
    sending_ = false;
    if (!sent) give_up(sent.error());
  }
  changed_.notify_all();
}

// A frame that was sent in part would spoil the next: after that nothing can be said any more.
Result<void> HelperChannel::send(const Request& request, Deadline deadline) {
  const auto frame = encode(request);
  if (frame.size() > max_frame)
    return fail(ErrorCode::invalid_argument, kStage, "a text or file of more than 1 MiB");
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline.when(), [this] { return !sending_; }))
    return fail(ErrorCode::deadline_exceeded, kStage, "it takes nothing from other threads");
  if (broken_) return fail(*broken_);
  sending_ = true;
  lock.unlock();
  const auto sent = send_frame(socket_.get(), frame, deadline);
  lock.lock();
  sending_ = false;
  if (!sent) give_up(sent.error());
  say_unsaid(lock);
  if (sent) return {};
  return fail(*broken_);
}

Result<ReplyBody> HelperChannel::wait_for(std::uint64_t id, std::unique_lock<std::mutex>& lock,
                                          Deadline deadline) {
  while (true) {
    if (auto& slot = waiting_[id]) return std::move(*slot);
    if (broken_) return fail(*broken_);
    if (deadline.passed())
      return fail(ErrorCode::deadline_exceeded, kStage, "it does not answer: is it stopped?");
    if (reading_) {
      changed_.wait_until(lock, deadline.when());
    } else {
      read(lock, deadline);
    }
  }
}

void HelperChannel::read(std::unique_lock<std::mutex>& lock, Deadline deadline) {
  reading_ = true;
  lock.unlock();
  pollfd readable{socket_.get(), POLLIN, 0};
  ::poll(&readable, 1, deadline.poll_ms());
  lock.lock();
  reading_ = false;
  if (const auto got = arrived_.read(socket_.get()); !got) give_up(got.error());
  for (auto frame = arrived_.next(); !frame || *frame; frame = arrived_.next()) {
    auto reply = frame ? decode_helper_reply(**frame) : Result<Reply>(fail(frame.error()));
    if (!reply) {
      give_up(reply.error());
      break;
    }
    sort(std::move(*reply));
  }
  changed_.notify_all();
}

void HelperChannel::sort(Reply reply) {
  if (auto* lost = std::get_if<LostReply>(&reply.body)) {
    lost_.insert_or_assign(lost->lease, std::move(lost->error));
  } else if (const auto waiter = waiting_.find(reply.id); waiter != waiting_.end()) {
    waiter->second = std::move(reply.body);
  } else if (const auto* granted = std::get_if<LeaseReply>(&reply.body)) {
    unclaimed_.push_back(granted->lease);
  }
}

void HelperChannel::give_up(const Error& met) {
  if (broken_) return;
  if (met.code == ErrorCode::peer_failed || met.native == ECONNRESET || met.native == EPIPE) {
    auto cause = std::string("it is gone");
    if (const auto words = last_words(words_.get()); !words.empty()) cause += ": " + words;
    broken_ = Error{ErrorCode::peer_failed, kStage, std::move(cause)}.fix(
        "connect to the pool again; a lease that it renewed ends with its time to live");
  } else {
    broken_ = Error{met.code, kStage, met.cause}.fix("connect to the pool again");
  }
}

std::optional<Error> HelperChannel::lost(LeaseNumber lease) {
  if (const auto mine = check_process(); !mine) return mine.error();
  std::unique_lock lock(mutex_);
  // Somebody who reads now will sort what came before long; everybody else looks for himself.
  if (!reading_ && !broken_) read(lock, Deadline::in(Clock::duration::zero()));
  if (const auto found = lost_.find(lease); found != lost_.end()) return found->second;
  return broken_;
}

void HelperChannel::forget(LeaseNumber lease) {
  if (!check_process()) return;
  {
    const std::lock_guard lock(mutex_);
    lost_.erase(lease);
  }
  tell(ForgetAsk{lease});
}

}  // namespace cenote::pool::dropin
