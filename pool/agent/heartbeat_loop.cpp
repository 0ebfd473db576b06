#include "pool/agent/heartbeat_loop.h"

#include <algorithm>
#include <utility>

namespace cenote::pool::agent {

HeartbeatLoop::HeartbeatLoop(AgentCore& core, BrokerPort& broker, HeartbeatOptions options)
    : core_(core), broker_(broker), options_(std::move(options)) {
  core_.on_news([this] {
    const std::lock_guard lock(mutex_);
    news_ = true;
    wake_.notify_all();
  });
}

HeartbeatLoop::~HeartbeatLoop() {
  finish();
  core_.on_news({});
}

void HeartbeatLoop::start() {
  thread_ = std::thread([this] { run(); });
}

void HeartbeatLoop::finish() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    wake_.notify_all();
    if (!reachable_) broker_.interrupt();
  }
  if (thread_.joinable()) thread_.join();
}

void HeartbeatLoop::run() {
  auto retry = options_.first_retry;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stop_) break;
      news_ = false;
    }
    const bool heard = registered_ ? beat_now() : register_now();
    if (heard) {
      retry = options_.first_retry;
      if (registered_) sleep(interval_);
    } else {
      sleep(retry);
      retry = std::min(retry * 2, options_.longest_retry);
    }
  }
  std::unique_lock lock(mutex_);
  const bool last_word = registered_ && reachable_;
  lock.unlock();
  if (last_word) beat_now();
}

bool HeartbeatLoop::register_now() {
  const auto report = core_.report();
  const auto terms = broker_.register_agent(report);
  if (!terms) {
    contact(&terms.error());
    return false;
  }
  registered_ = true;
  interval_ = std::chrono::milliseconds(std::clamp<std::uint32_t>(terms->heartbeat_ms, 10, 60'000));
  core_.registered(*terms);
  contact(nullptr);
  return true;
}

bool HeartbeatLoop::beat_now() {
  const auto report = core_.report();
  const auto orders = broker_.heartbeat(report);
  if (!orders) {
    // A broker that answers but does not know us is a new one; one that does not answer may be the old one.
    if (orders.error().code == ErrorCode::not_found) registered_ = false;
    contact(&orders.error());
    return false;
  }
  if (orders->register_again) {
    registered_ = false;
    return true;
  }
  core_.reported(report);
  core_.ordered(*orders);
  contact(nullptr);
  return true;
}

void HeartbeatLoop::contact(const Error* error) {
  const bool now = error == nullptr;
  if (!now) core_.broker_lost();
  std::unique_lock lock(mutex_);
  const bool tell = !spoken_ || now != reachable_;
  spoken_ = true;
  reachable_ = now;
  lock.unlock();
  if (tell && options_.on_contact) options_.on_contact(error);
}

// Sleeps for `span`, less when there is news, but never so little that news becomes a busy loop.
void HeartbeatLoop::sleep(Clock::duration span) {
  const auto begun = Clock::now();
  std::unique_lock lock(mutex_);
  wake_.wait_until(lock, begun + span, [this] { return stop_ || (news_ && reachable_); });
  wake_.wait_until(lock, begun + std::min(span, options_.least_interval), [this] { return stop_; });
}

}  // namespace cenote::pool::agent
