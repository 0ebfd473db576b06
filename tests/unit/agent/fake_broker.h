// A broker in this process, for an agent's heartbeat loop: down, hanging, forgetful or well, as the test
// says.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "pool/agent/heartbeat_loop.h"

namespace cenote::pool::agent::testing {

class FakeBroker final : public BrokerPort {
 public:
  explicit FakeBroker(PublicKey key) : key_(key) {}

  Result<RegistrationTerms> register_agent(const AgentReport&) override {
    std::unique_lock lock(mutex_);
    changed_.notify_all();
    CENOTE_TRY(hang(lock));
    if (down) {
      ++refused;
      return fail(ErrorCode::peer_failed, "register", "connection refused");
    }
    ++registrations;
    knows_agent = true;
    RegistrationTerms terms;
    terms.broker_key = key_;
    terms.heartbeat_ms = heartbeat_ms;
    terms.grace_seconds = 30;
    return terms;
  }
  Result<HeartbeatOrders> heartbeat(const AgentReport& report) override {
    std::unique_lock lock(mutex_);
    changed_.notify_all();
    CENOTE_TRY(hang(lock));
    if (down) {
      ++refused;
      return fail(ErrorCode::peer_failed, "heartbeat", "connection refused");
    }
    HeartbeatOrders orders;
    orders.register_again = !knows_agent;
    if (knows_agent) {
      ++beats;
      for (const auto& ended : report.ended) confirmed.push_back(ended.lease_id);
      orders.end_leases = std::exchange(to_end, {});
    }
    return orders;
  }
  void interrupt() override {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    changed_.notify_all();
  }
  /// Waits until `condition` holds; false = it never did.
  template <class Condition>
  bool eventually(const Condition& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), condition);
  }
  template <class Change>
  void change(const Change& change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }

  bool down = false, knows_agent = false, hanging = false;
  std::uint32_t heartbeat_ms = 10;
  int registrations = 0, beats = 0, refused = 0, waiting = 0;
  std::vector<std::string> to_end, confirmed;

 private:
  Result<void> hang(std::unique_lock<std::mutex>& lock) {
    ++waiting;
    changed_.wait(lock, [&] { return !hanging || interrupted_; });
    --waiting;
    if (hanging) return fail(ErrorCode::cancelled, "ask the broker", "the agent ends");
    return {};
  }

  const PublicKey key_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool interrupted_ = false;
};

}  // namespace cenote::pool::agent::testing
