#include "pool/cli/agent_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace cenote::pool::cli {

namespace {

constexpr auto kEvery = std::chrono::seconds(2);
constexpr auto kAnswer = std::chrono::seconds(1);

}  // namespace

std::vector<std::string> silent_devices(const client::LeaseInfo& lease, const client::PoolState& pool,
                                        std::set<std::string>& told) {
  std::vector<std::string> lines;
  std::set<std::string> silent;
  for (std::size_t i = 0; i < lease.devices.size(); ++i) {
    const auto& device = lease.devices[i];
    const auto agent = std::ranges::find(pool.agents, device.agent, &client::AgentState::name);
    if (agent != pool.agents.end() && agent->alive) continue;
    silent.insert(device.agent);
    if (told.contains(device.agent)) continue;
    const auto since =
        agent == pool.agents.end()
            ? std::string("the broker does not know its agent")
            : fmt::format("the broker has not heard its agent for {:.1f} s",
                          static_cast<double>(pool.now_unix_ms - agent->last_heartbeat_unix_ms) / 1e3);
    lines.push_back(fmt::format("lease {} gpu {} ({} on {}): {}; if it stays away the lease ends", lease.id,
                                i, device.model, device.agent, since));
  }
  told = std::move(silent);
  return lines;
}

AgentWatch::AgentWatch(client::PoolClient& client, client::LeaseInfo lease,
                       std::function<void(const std::string&)> tell)
    : client_(client), lease_(std::move(lease)), tell_(std::move(tell)), thread_([this] { watch(); }) {}

AgentWatch::~AgentWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_.raise();
  }
  stopped_.notify_all();
  thread_.join();
}

void AgentWatch::watch() {
  std::set<std::string> told;
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, kEvery, [this] { return stop_.raised(); })) {
    lock.unlock();
    // A broker that does not answer says nothing about the agents.
    if (const auto pool = client_.top(Deadline::in(kAnswer), &stop_)) {
      for (const auto& line : silent_devices(lease_, *pool, told)) tell_(line);
    }
    lock.lock();
  }
}

}  // namespace cenote::pool::cli
