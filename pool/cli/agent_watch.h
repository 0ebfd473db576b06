// AgentWatch: tells whoever holds a lease that an agent of it is not heard of any more. Its devices fail at
// once, the lease ends only when the broker has given the agent up.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "pool/client/pool_client.h"
#include "runtime/deadline.h"

namespace cenote::pool::cli {

/// One line for each device of `lease` whose agent the broker counts as silent or does not know: "lease 7f3a
/// gpu 2 (A100 on b): ...". `told`: agents that have been named before; those named now are added, those that
/// are back are taken out.
std::vector<std::string> silent_devices(const client::LeaseInfo& lease, const client::PoolState& pool,
                                        std::set<std::string>& told);

/// Asks the broker every two seconds, on a thread of its own. The destructor waits for at most one second.
class AgentWatch {
 public:
  /// `client` outlives it. `tell` gets each line once.
  AgentWatch(client::PoolClient& client, client::LeaseInfo lease,
             std::function<void(const std::string&)> tell);
  ~AgentWatch();
  AgentWatch(const AgentWatch&) = delete;
  AgentWatch& operator=(const AgentWatch&) = delete;

 private:
  void watch();

  client::PoolClient& client_;
  const client::LeaseInfo lease_;
  const std::function<void(const std::string&)> tell_;
  CancelFlag stop_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  std::thread thread_;
};

}  // namespace cenote::pool::cli
