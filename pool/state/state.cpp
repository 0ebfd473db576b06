#include "pool/state/state.h"

#include <algorithm>
#include <limits>
#include <set>

namespace cenote::pool {
namespace {

using Kind = Event::Kind;
using Events = std::vector<Event>;

constexpr std::int64_t kMaxTime = std::numeric_limits<std::int64_t>::max() / 4;

tl::unexpected<Error> refuse(ErrorCode code, std::string stage, std::string cause) {
  return fail(code, std::move(stage), std::move(cause));
}

bool is_name(const std::string& text) { return !text.empty() && text.size() <= kMaxTextBytes; }
bool is_text(const std::string& text) { return text.size() <= kMaxTextBytes; }
bool is_time(std::int64_t ms) { return ms >= 0 && ms <= kMaxTime; }

std::int64_t fence_of(const State& state, const Lease& lease) {
  return std::max(lease.fence_ms, lease.expires_ms + state.grace_ms + state.drift_ms);
}

/// Never past the grace, so never past the fence.
std::int64_t hold_of(const State& state, const Lease& lease, std::int64_t term_start_ms) {
  return std::min(lease.expires_ms + state.grace_ms, term_start_ms + std::max(kLeastHoldMs, lease.ttl_ms));
}

void free_share(State& state, const std::string& lease_id, Share& share, Events& events) {
  auto& device = state.devices.at(share.device);
  device.memory_held -= share.memory_bytes;
  device.compute_held -= share.compute_millis;
  std::erase_if(device.holders, [&](const auto& holder) { return holder.lease == lease_id; });
  share.held = false;
  events.push_back({Kind::device_freed, lease_id, share.agent, share.device, {}});
}

void end_lease(const std::string& id, Lease& lease, EndCause cause, std::string text, Events& events) {
  lease.ended = true;
  lease.cause = cause;
  lease.end_text = std::move(text);
  events.push_back({Kind::lease_ended, id, {}, {}, lease.end_text});
}

void forget_old_requests(State& state, std::int64_t now_ms) {
  auto& ended = state.ended_requests;
  while (!ended.empty() &&
         (ended.front().first + kRememberRequestsMs < now_ms || ended.size() > kRememberRequests)) {
    state.requests.erase(ended.front().second);
    ended.pop_front();
  }
}

/// Forgets the lease if nothing of it is held any more.
void drop_if_free(State& state, const std::string& id, std::int64_t now_ms, Events& events) {
  const auto found = state.leases.find(id);
  const auto& lease = found->second;
  if (!lease.ended ||
      std::any_of(lease.shares.begin(), lease.shares.end(), [](const auto& s) { return s.held; })) {
    return;
  }
  state.ended_requests.emplace_back(now_ms, RequestKey{lease.client, lease.request_id});
  events.push_back({Kind::lease_gone, id, {}, {}, lease.end_text});
  state.leases.erase(found);
  forget_old_requests(state, now_ms);
}

Result<Lease*> find_lease(State& state, const std::string& id, const std::string& stage) {
  const auto found = state.leases.find(id);
  if (found == state.leases.end()) return refuse(ErrorCode::not_found, stage, "no lease " + id);
  return &found->second;
}

Result<Lease*> find_active(State& state, const std::string& id, const std::string& stage) {
  CENOTE_ASSIGN(auto* lease, find_lease(state, id, stage));
  if (lease->ended) return refuse(ErrorCode::not_found, stage, "it has ended: " + lease->end_text);
  return lease;
}

Result<Events> on(State& state, const command::StartTerm& c, std::int64_t now_ms) {
  const auto stage = "start term " + std::to_string(c.term);
  if (c.term != state.term + 1) {
    return refuse(ErrorCode::invalid_argument, stage,
                  "the term after " + std::to_string(state.term) + " is due");
  }
  if (!is_time(c.grace_ms) || !is_time(c.drift_ms)) {
    return refuse(ErrorCode::invalid_argument, stage, "grace and drift must not be negative");
  }
  state.term = c.term;
  state.grace_ms = c.grace_ms;
  state.drift_ms = c.drift_ms;
  // An agent that was cut off still uses the old grace, one that registers again the new: the later fence
  // holds.
  for (auto& [id, lease] : state.leases) {
    lease.fence_ms = fence_of(state, lease);
    if (!lease.ended) lease.hold_ms = hold_of(state, lease, now_ms);
  }
  return Events{{Kind::term_started, {}, {}, {}, std::to_string(c.term)}};
}

Result<void> check_devices(const State& state, const command::RegisterAgent& c, const std::string& stage) {
  if (!is_name(c.name) || !is_name(c.instance) || !is_text(c.endpoint)) {
    return refuse(ErrorCode::invalid_argument, stage,
                  "it needs a name and an instance, of at most 512 bytes");
  }
  if (c.devices.size() > kMaxDevicesPerAgent) {
    return refuse(ErrorCode::invalid_argument, stage, "it brings more than 256 devices");
  }
  std::set<std::string> seen;
  for (const auto& spec : c.devices) {
    if (!is_name(spec.uuid) || !is_text(spec.model) || spec.memory_bytes == 0) {
      return refuse(ErrorCode::invalid_argument, stage,
                    "device \"" + spec.uuid + "\" needs a uuid and memory");
    }
    if (!seen.insert(spec.uuid).second) {
      return refuse(ErrorCode::invalid_argument, stage, "device " + spec.uuid + " is named twice");
    }
    const auto known = state.devices.find(spec.uuid);
    if (known == state.devices.end() || known->second.agent == c.name) continue;
    const auto owner = state.agents.find(known->second.agent);
    const bool owner_alive = owner != state.agents.end() && owner->second.alive && known->second.present;
    if (owner_alive || known->second.compute_held > 0) {
      return refuse(ErrorCode::already_exists, stage,
                    "device " + spec.uuid + " belongs to agent " + known->second.agent);
    }
  }
  return {};
}

bool same_devices(const State& state, const Agent& agent, const std::vector<DeviceSpec>& devices) {
  return std::equal(agent.devices.begin(), agent.devices.end(), devices.begin(), devices.end(),
                    [&](const auto& uuid, const auto& spec) { return state.devices.at(uuid).spec == spec; });
}

/// A new process under an agent's name: what the old one ran is dead.
void end_all_on(State& state, const std::string& agent, std::int64_t now_ms, Events& events) {
  const auto found = state.agents.find(agent);
  if (found == state.agents.end()) return;
  std::set<std::string> touched;
  for (const auto& uuid : found->second.devices) {
    for (const auto& holder : state.devices.at(uuid).holders) touched.insert(holder.lease);
  }
  for (const auto& id : touched) {
    auto& lease = state.leases.at(id);
    if (!lease.ended) end_lease(id, lease, EndCause::failed, "agent " + agent + " was restarted", events);
    for (auto& share : lease.shares) {
      if (share.held && share.agent == agent) free_share(state, id, share, events);
    }
  }
  for (const auto& id : touched) drop_if_free(state, id, now_ms, events);
}

void place_devices(State& state, const command::RegisterAgent& c) {
  auto& agent = state.agents[c.name];
  for (const auto& uuid : agent.devices) {
    if (auto& device = state.devices.at(uuid); device.agent == c.name) device.present = false;
  }
  agent = Agent{c.endpoint, c.instance, true, {}};
  for (const auto& spec : c.devices) {
    auto& device = state.devices[spec.uuid];
    if (const auto previous = state.agents.find(device.agent); previous != state.agents.end()) {
      std::erase(previous->second.devices, spec.uuid);  // it moved here from an agent that is gone
    }
    device.spec = spec;
    device.agent = c.name;
    device.present = true;
    agent.devices.push_back(spec.uuid);
  }
}

Result<Events> on(State& state, const command::RegisterAgent& c, std::int64_t now_ms) {
  const auto stage = "register agent " + c.name;
  CENOTE_TRY(check_devices(state, c, stage));
  Events events{{Kind::agent_registered, {}, c.name, {}, c.endpoint}};
  const auto known = state.agents.find(c.name);
  if (known != state.agents.end() && known->second.instance == c.instance) {
    if (!same_devices(state, known->second, c.devices)) {
      return refuse(ErrorCode::invalid_argument, stage, "its devices changed, but it was not restarted");
    }
    known->second.endpoint = c.endpoint;
    known->second.alive = true;
    return events;
  }
  end_all_on(state, c.name, now_ms, events);
  place_devices(state, c);
  return events;
}

Result<Events> set_alive(State& state, const std::string& name, bool alive) {
  const auto stage = alive ? "hear agent " + name + " again" : "give up agent " + name;
  const auto found = state.agents.find(name);
  if (found == state.agents.end()) return refuse(ErrorCode::not_found, stage, "no such agent");
  if (found->second.alive == alive) {
    return refuse(ErrorCode::invalid_argument, stage, alive ? "it is alive" : "it is lost already");
  }
  found->second.alive = alive;
  return Events{{alive ? Kind::agent_back : Kind::agent_lost, {}, name, {}, {}}};
}

Result<Events> on(State& state, const command::LoseAgent& c, std::int64_t /*now*/) {
  return set_alive(state, c.name, false);
}
Result<Events> on(State& state, const command::RecoverAgent& c, std::int64_t /*now*/) {
  return set_alive(state, c.name, true);
}

Result<void> check_share(const State& state, const Share& share, const std::string& stage) {
  const auto found = state.devices.find(share.device);
  if (found == state.devices.end() || !found->second.present) {
    return refuse(ErrorCode::not_found, stage, "no device " + share.device);
  }
  const auto& device = found->second;
  const auto agent = state.agents.find(device.agent);
  if (share.agent != device.agent || agent == state.agents.end() || !agent->second.alive) {
    return refuse(ErrorCode::peer_failed, stage,
                  "device " + share.device + " has no live agent " + share.agent);
  }
  if (share.epoch != device.epoch + 1) {
    return refuse(ErrorCode::invalid_argument, stage,
                  "device " + share.device + " is at epoch " + std::to_string(device.epoch) +
                      ", the grant says " + std::to_string(share.epoch));
  }
  if (!share.held || share.memory_bytes == 0 || share.compute_millis == 0) {
    return refuse(ErrorCode::invalid_argument, stage, "the share of device " + share.device + " is empty");
  }
  if (share.memory_bytes > device.spec.memory_bytes - device.memory_held ||
      share.compute_millis > kWholeDevice - device.compute_held) {
    return refuse(ErrorCode::resource_exhausted, stage, "device " + share.device + " has not that much left");
  }
  return {};
}

Result<Events> on(State& state, const command::Grant& c, std::int64_t now_ms) {
  const auto stage = "grant lease " + c.lease_id;
  if (!is_name(c.lease_id) || !is_name(c.client) || !is_name(c.request_id) || !is_text(c.note) ||
      !is_text(c.reason)) {
    return refuse(ErrorCode::invalid_argument, stage,
                  "it needs an id, a client and a request id, of at most 512 bytes");
  }
  if (!is_time(c.expires_ms) || c.expires_ms <= now_ms) {
    return refuse(ErrorCode::invalid_argument, stage, "it would end before it begins");
  }
  if (state.leases.contains(c.lease_id) || state.requests.contains({c.client, c.request_id})) {
    return refuse(ErrorCode::already_exists, stage, "this lease or request was granted before");
  }
  if (c.shares.empty() || c.shares.size() > kMaxSharesPerLease) {
    return refuse(ErrorCode::invalid_argument, stage, "it needs 1 to 16384 devices");
  }
  std::set<std::string> seen;
  for (const auto& share : c.shares) {
    if (!seen.insert(share.device).second) {
      return refuse(ErrorCode::invalid_argument, stage, "device " + share.device + " is named twice");
    }
    CENOTE_TRY(check_share(state, share, stage));
  }
  for (const auto& share : c.shares) {
    auto& device = state.devices.at(share.device);
    device.epoch = share.epoch;
    device.memory_held += share.memory_bytes;
    device.compute_held += share.compute_millis;
    device.holders.push_back({c.lease_id, share.epoch});
  }
  Lease lease{.request_id = c.request_id,
              .client = c.client,
              .client_key = c.client_key,
              .note = c.note,
              .reason = c.reason,
              .granted_ms = now_ms,
              .expires_ms = c.expires_ms,
              .ttl_ms = c.expires_ms - now_ms,
              .shares = c.shares,
              .end_text = {}};
  lease.fence_ms = fence_of(state, lease);
  state.leases.emplace(c.lease_id, std::move(lease));
  state.requests.emplace(RequestKey{c.client, c.request_id}, GrantedRequest{c.lease_id, c.client_key});
  forget_old_requests(state, now_ms);
  return Events{{Kind::lease_granted, c.lease_id, {}, {}, c.reason}};
}

Result<Events> on(State& state, const command::Renew& c, std::int64_t now_ms) {
  const auto stage = "renew lease " + c.lease_id;
  CENOTE_ASSIGN(auto* lease, find_active(state, c.lease_id, stage));
  if (now_ms >= last_renewal_ms(*lease)) {
    return refuse(ErrorCode::permission_denied, stage, "it has expired");
  }
  if (c.proof_ms <= lease->proof_ms) {
    return refuse(ErrorCode::permission_denied, stage, "the proof was used before, or a later one was");
  }
  if (!is_time(c.expires_ms) || c.expires_ms < lease->expires_ms) {
    return refuse(ErrorCode::invalid_argument, stage, "a renewal may not end it earlier");
  }
  lease->expires_ms = c.expires_ms;
  lease->ttl_ms = std::max<std::int64_t>(c.expires_ms - now_ms, 0);
  lease->hold_ms = 0;
  lease->proof_ms = c.proof_ms;
  lease->fence_ms = fence_of(state, *lease);
  return Events{{Kind::lease_renewed, c.lease_id, {}, {}, {}}};
}

Result<Events> on(State& state, const command::End& c, std::int64_t now_ms) {
  const auto stage = "end lease " + c.lease_id;
  CENOTE_ASSIGN(auto* lease, find_active(state, c.lease_id, stage));
  if (!is_text(c.text))
    return refuse(ErrorCode::invalid_argument, stage, "its reason has more than 512 bytes");
  // When to stop waiting for a renewal is the broker's decision; before the expiry it would be wrong.
  if (c.cause == EndCause::expired && now_ms < lease->expires_ms) {
    return refuse(ErrorCode::invalid_argument, stage, "it has not expired");
  }
  if (c.cause == EndCause::released) {
    if (c.proof_ms <= lease->proof_ms) {
      return refuse(ErrorCode::permission_denied, stage, "the proof was used before, or a later one was");
    }
    lease->proof_ms = c.proof_ms;
  }
  Events events;
  end_lease(c.lease_id, *lease, c.cause, c.text, events);
  drop_if_free(state, c.lease_id, now_ms, events);
  return events;
}

Result<Events> on(State& state, const command::Confirm& c, std::int64_t now_ms) {
  const auto stage = "confirm the end of lease " + c.lease_id;
  CENOTE_ASSIGN(auto* lease, find_lease(state, c.lease_id, stage));
  if (!lease->ended) return refuse(ErrorCode::invalid_argument, stage, "it has not ended");
  Events events;
  for (auto& share : lease->shares) {
    if (share.held && share.agent == c.agent) free_share(state, c.lease_id, share, events);
  }
  if (events.empty()) return refuse(ErrorCode::not_found, stage, "it holds nothing on agent " + c.agent);
  drop_if_free(state, c.lease_id, now_ms, events);
  return events;
}

Result<Events> on(State& state, const command::Reclaim& c, std::int64_t now_ms) {
  const auto stage = "reclaim lease " + c.lease_id;
  CENOTE_ASSIGN(auto* lease, find_lease(state, c.lease_id, stage));
  if (!lease->ended) return refuse(ErrorCode::invalid_argument, stage, "it has not ended");
  if (now_ms < lease->fence_ms) {
    return refuse(ErrorCode::invalid_argument, stage,
                  "an agent may still run it for " + std::to_string(lease->fence_ms - now_ms) + " ms");
  }
  Events events;
  for (auto& share : lease->shares) {
    if (share.held) free_share(state, c.lease_id, share, events);
  }
  drop_if_free(state, c.lease_id, now_ms, events);
  return events;
}

}  // namespace

Result<std::vector<Event>> apply(State& state, const Command& command, std::int64_t now_ms) {
  if (!is_time(now_ms))
    return refuse(ErrorCode::invalid_argument, "apply a command", "its time is out of range");
  return std::visit([&](const auto& c) { return on(state, c, now_ms); }, command);
}

std::int64_t last_renewal_ms(const Lease& lease) { return std::max(lease.expires_ms, lease.hold_ms); }

std::uint64_t floor_of(const State& state, const std::string& device) {
  const auto found = state.devices.find(device);
  if (found == state.devices.end()) return 0;
  auto floor = found->second.epoch + 1;
  for (const auto& holder : found->second.holders) {
    if (!state.leases.at(holder.lease).ended) floor = std::min(floor, holder.epoch);
  }
  return floor;
}

}  // namespace cenote::pool
