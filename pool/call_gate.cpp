#include "pool/call_gate.h"

#include <algorithm>
#include <utility>

namespace cenote::pool {

namespace {

constexpr auto kLook = std::chrono::milliseconds(50);  // for a cancel, which wakes nobody

}  // namespace

CallGate::Call::Call(CallGate& gate, std::function<void()> end) : gate_(gate) {
  const std::lock_guard lock(gate_.mutex_);
  if (gate_.shut_) return;
  gate_.end_ = std::move(end);
  let_in_ = true;
}

CallGate::Call::~Call() {
  if (!let_in_) return;
  const std::lock_guard lock(gate_.mutex_);
  gate_.end_ = {};
}

void CallGate::shut() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(shut_, true)) return;
  if (end_) end_();
  changed_.notify_all();
}

bool CallGate::is_shut() const {
  const std::lock_guard lock(mutex_);
  return shut_;
}

bool CallGate::sleep(Clock::duration span) { return sleep(span, nullptr); }

bool CallGate::sleep(Clock::duration span, const CancelFlag* cancel) {
  const auto until = Clock::now() + span;
  std::unique_lock lock(mutex_);
  while (!shut_ && (cancel == nullptr || !cancel->raised())) {
    const auto now = Clock::now();
    if (now >= until) return true;
    changed_.wait_until(lock, cancel == nullptr ? until : std::min<Clock::time_point>(until, now + kLook));
  }
  return false;
}

}  // namespace cenote::pool
