// HeartbeatLoop: keeps the broker informed of one AgentCore. Registers, beats, registers again when the
// broker asks for it or is a new one, backs off while it cannot be reached, and beats at once when there is
// news.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "pool/agent/core.h"
#include "runtime/deadline.h"
#include "runtime/result.h"

namespace cenote::pool::agent {

/// The broker as the loop sees it: gRPC in broker_port.h, a double in tests. Called from the loop's thread
/// only, but for interrupt(). Each call ends by itself within a few seconds.
class BrokerPort {
 public:
  virtual ~BrokerPort() = default;
  virtual Result<RegistrationTerms> register_agent(const AgentReport& report) = 0;
  virtual Result<HeartbeatOrders> heartbeat(const AgentReport& report) = 0;
  /// Any thread: ends a call that waits for a broker that is away.
  virtual void interrupt() {}
};

struct HeartbeatOptions {
  Clock::duration first_retry = std::chrono::milliseconds(100);
  Clock::duration longest_retry = std::chrono::milliseconds(500);
  Clock::duration least_interval =
      std::chrono::milliseconds(20);  ///< between two beats, however much news there is
  /// Told after the first registration, and of every change between reachable and not (nullptr = reachable).
  std::function<void(const Error*)> on_contact;
};

/// Has one thread, from start() to the destructor. The destructor waits for the call in flight at most.
class HeartbeatLoop {
 public:
  /// `core` and `broker` outlive the loop. Takes core.on_news for itself.
  HeartbeatLoop(AgentCore& core, BrokerPort& broker, HeartbeatOptions options = {});
  ~HeartbeatLoop();
  HeartbeatLoop(const HeartbeatLoop&) = delete;
  HeartbeatLoop& operator=(const HeartbeatLoop&) = delete;

  void start();
  /// One last beat with what `core` has to say, if the broker can be reached; then the loop ends.
  void finish();

 private:
  void run();
  bool register_now();
  bool beat_now();
  void contact(const Error* error);
  void sleep(Clock::duration span);

  AgentCore& core_;
  BrokerPort& broker_;
  const HeartbeatOptions options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false, news_ = false, reachable_ = false;
  bool registered_ = false, spoken_ = false;  // the loop's thread only
  Clock::duration interval_ = std::chrono::seconds(1);
  std::thread thread_;
};

}  // namespace cenote::pool::agent
