// What BrokerCore shows: of what is durable, so that nobody waits for the store.
#include <utility>

#include "pool/broker/core.h"

namespace cenote::pool {

LeaseView BrokerCore::view(const State& state, const std::string& id, const Lease& lease) {
  LeaseView view{id, lease.client, lease.note, lease.reason, lease.granted_ms, lease.expires_ms, {}, {}};
  for (const auto& share : lease.shares) {
    const auto& device = state.devices.at(share.device);
    const auto agent = state.agents.find(share.agent);
    view.devices.push_back(
        {device.spec, share, agent == state.agents.end() ? std::string() : agent->second.endpoint});
  }
  return view;
}

// The token follows from the state alone, and Ed25519 is deterministic: a request repeated gets the same
// bytes.
Result<LeaseView> BrokerCore::signed_view(const State& state, const std::string& id) const {
  const auto& lease = state.leases.at(id);
  auto answer = view(state, id, lease);
  LeaseToken token{.lease_id = id,
                   .client = lease.client,
                   .client_key = lease.client_key,
                   .isolation = Isolation::time_slice,
                   .not_before_unix_ms = lease.granted_ms,
                   .expires_unix_ms = lease.expires_ms,
                   .devices = {}};
  for (const auto& share : lease.shares) {
    token.devices.push_back(
        {share.device, share.agent, share.memory_bytes, share.compute_millis, share.epoch});
  }
  CENOTE_ASSIGN(answer.token, seal(token, key_));
  return answer;
}

std::vector<LeaseView> BrokerCore::list() const {
  const std::lock_guard seen(seen_mutex_);
  std::vector<LeaseView> leases;
  for (const auto& [id, lease] : seen_.leases) {
    if (!lease.ended) leases.push_back(view(seen_, id, lease));
  }
  return leases;
}

TopView BrokerCore::top() const {
  TopView top;
  top.leases = list();
  const std::lock_guard seen(seen_mutex_);
  const auto& state = seen_;
  top.now_ms = clock_.unix_ms();
  top.term = state.term;
  for (const auto& [name, agent] : state.agents) {
    const auto life = lives_.find(name);
    auto& shown = top.agents.emplace_back(AgentView{name,
                                                    agent.endpoint,
                                                    agent.alive && load_.reachable.contains(name),
                                                    life == lives_.end() ? 0 : life->second.heard_unix_ms,
                                                    {}});
    const auto row = [&](const std::string& uuid, const std::string& lease) {
      DeviceView view{state.devices.at(uuid).spec, lease, {.device = uuid, .lease_id = lease}};
      if (life != lives_.end()) {
        for (const auto& load : life->second.loads) {
          if (load.device == uuid && load.lease_id == lease) view.load = load;
        }
      }
      shown.devices.push_back(std::move(view));
    };
    for (const auto& uuid : agent.devices) {
      const auto& holders = state.devices.at(uuid).holders;
      for (const auto& holder : holders) row(uuid, holder.lease);
      if (holders.empty()) row(uuid, "");
    }
  }
  return top;
}

}  // namespace cenote::pool
