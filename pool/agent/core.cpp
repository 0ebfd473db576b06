#include "pool/agent/core.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace cenote::pool::agent {

namespace {

// How long a lease that ended is refused by name: longer than any token that was signed before lives on.
constexpr std::int64_t kRememberEndedMs = 86'400'000;
constexpr std::size_t kMostEndsKept = 1024;
constexpr auto kLookAgain = std::chrono::milliseconds(200);

std::map<std::string, std::uint64_t> memory_by_uuid(const std::vector<LocalDevice>& devices) {
  std::map<std::string, std::uint64_t> memory;
  for (const auto& device : devices) memory[device.uuid] = device.memory_bytes;
  return memory;
}

}  // namespace

AgentCore::AgentCore(CoreOptions options, WorkerHost& host)
    : options_(std::move(options)),
      host_(host),
      gate_(GateOptions{.agent = options_.agent,
                        .devices = memory_by_uuid(options_.devices),
                        .clock_drift_ms = options_.clock_drift_ms}) {}

GateClock AgentCore::clock() const {
  return {.now_unix_ms = options_.now_unix_ms(), .outage_grace_ms = broker_here_ ? 0 : grace_ms_};
}

Result<SessionReply> AgentCore::open(const Claim& claim, std::span<const std::byte> client_fabric_address,
                                     Deadline deadline) {
  Lock lock(mutex_);
  CENOTE_ASSIGN(auto token, gate_.open(claim, clock()));
  if (const auto found = sessions_.find(token.lease_id);
      found != sessions_.end() && found->second.stage == Stage::serving &&
      std::ranges::equal(found->second.client_address, client_fabric_address)) {
    return found->second.reply;
  }
  CENOTE_TRY(clear_the_way(lock, token, deadline));
  CENOTE_ASSIGN(auto setup, begin(token, client_fabric_address));

  lock.unlock();
  auto address = host_.start(setup, deadline);
  lock.lock();

  const auto session = sessions_.find(token.lease_id);
  const bool still_ours = session != sessions_.end() && session->second.generation == setup.generation;
  if (!address) {
    if (still_ours) end_session(session->second);
    return fail(std::move(address).error());
  }
  if (!still_ours || session->second.stage != Stage::starting) {
    // Who ended it may have come before the host knew of it.
    lock.unlock();
    host_.stop(token.lease_id, setup.generation);
    return fail(Error{ErrorCode::permission_denied, "open lease " + token.lease_id,
                      "its worker was ended while it started"}
                    .with(token.client));
  }
  session->second.stage = Stage::serving;
  session->second.reply.worker_fabric_address = std::move(*address);
  auto reply = session->second.reply;
  tell_news(std::move(lock));
  return reply;
}

std::vector<std::string> AgentCore::in_the_way(const LeaseToken& token) const {
  std::vector<std::string> leases;
  for (const auto& [lease_id, session] : sessions_) {
    const bool clash = std::ranges::any_of(session.token.devices, [&](const TokenDevice& held) {
      return std::ranges::any_of(
          token.devices, [&](const TokenDevice& asked) { return gate_.exclude_each_other(asked, held); });
    });
    if (lease_id == token.lease_id || clash) leases.push_back(lease_id);
  }
  return leases;
}

// Ends the session that this lease has already, and older leases of its devices; waits until they are reaped.
Result<void> AgentCore::clear_the_way(Lock& lock, const LeaseToken& token, Deadline deadline) {
  for (;;) {
    if (closing_)
      return fail(ErrorCode::cancelled, "open lease " + token.lease_id, "the agent is shutting down");
    const auto others = in_the_way(token);
    if (others.empty()) return {};
    for (const auto& lease_id : others) {
      auto& session = sessions_.at(lease_id);
      if (lease_id != token.lease_id && session.ending_because.empty()) {
        end_lease(lease_id, "fenced: its device was granted again to lease " + token.lease_id);
      } else if (session.stage == Stage::serving) {
        end_session(session);
      }
    }
    // In steps: a wait until time_point::max() overflows in the standard library.
    const auto until = std::min(deadline.when(), Clock::now() + std::chrono::seconds(1));
    changed_.wait_until(lock, until);
    if (deadline.passed()) {
      return fail(ErrorCode::deadline_exceeded, "open lease " + token.lease_id,
                  fmt::format("the worker of lease {} has not ended yet", others.front()));
    }
    CENOTE_TRY(gate_.still_good(token));  // it may have ended, or been fenced, while this call waited
  }
}

Result<WorkerSetup> AgentCore::begin(const LeaseToken& token,
                                     std::span<const std::byte> client_fabric_address) {
  Session session;
  session.token = token;
  session.generation = ++generations_;
  session.client_address.assign(client_fabric_address.begin(), client_fabric_address.end());
  // Any number works, as both sides name it; a fresh one keeps an old worker's late packets out.
  session.reply.channel = static_cast<std::uint32_t>(session.generation);
  WorkerSetup setup;
  for (const auto& asked : token.devices) {
    if (asked.agent != options_.agent) continue;
    const auto device = std::ranges::find(options_.devices, asked.uuid, &LocalDevice::uuid);
    if (device == options_.devices.end()) {
      return fail(ErrorCode::permission_denied, "open lease " + token.lease_id,
                  "no device " + asked.uuid + " here");
    }
    session.devices.push_back(*device);
    session.reply.device_uuids.push_back(asked.uuid);
    setup.memory_limits.push_back(
        asked.memory_bytes == 0 ? device->memory_bytes : std::min(asked.memory_bytes, device->memory_bytes));
  }
  setup.lease_id = token.lease_id;
  setup.client = token.client;
  setup.generation = session.generation;
  setup.devices = session.devices;
  setup.driver = options_.driver;
  setup.fabric = options_.fabric;
  setup.collectives = options_.collectives;
  setup.log = options_.log;
  setup.client_fabric_address = session.client_address;
  setup.channel = session.reply.channel;
  sessions_[token.lease_id] = std::move(session);
  return setup;
}

Result<void> AgentCore::close(const std::string& lease_id, std::span<const std::byte> proof,
                              std::int64_t proof_unix_ms, Deadline deadline) {
  Lock lock(mutex_);
  auto session = sessions_.find(lease_id);
  if (session == sessions_.end()) {
    return fail(ErrorCode::not_found, "close lease " + lease_id,
                "it has no session on agent " + options_.agent);
  }
  CENOTE_TRY(gate_.close(session->second.token, proof, proof_unix_ms, clock()));
  const auto generation = session->second.generation;
  end_session(session->second);
  for (;;) {
    session = sessions_.find(lease_id);
    if (session == sessions_.end() || session->second.generation != generation) return {};
    if (deadline.passed())
      return fail(ErrorCode::deadline_exceeded, "close lease " + lease_id, "its worker lives on");
    changed_.wait_until(lock, std::min(deadline.when(), Clock::now() + std::chrono::seconds(1)));
  }
}

SessionEnd AgentCore::await_end(const std::string& lease_id, std::uint32_t channel, Deadline deadline,
                                const std::function<bool()>& given_up) {
  Lock lock(mutex_);
  for (;;) {
    const auto session = sessions_.find(lease_id);
    if (session == sessions_.end() || session->second.reply.channel != channel) break;
    if (deadline.passed() || given_up()) return {};
    changed_.wait_until(lock, std::min(deadline.when(), Clock::now() + kLookAgain));
  }
  const auto end = ends_.find(channel);
  if (end != ends_.end() && end->second.first == lease_id) return end->second.second;
  return {true, true,
          fmt::format("agent {} does not know this session: it was started anew", options_.agent)};
}

void AgentCore::registered(const RegistrationTerms& terms) {
  Lock lock(mutex_);
  gate_.trust(terms.broker_key);
  for (const auto& [uuid, epoch] : terms.floors) gate_.raise_floor(uuid, epoch);
  grace_ms_ = static_cast<std::int64_t>(terms.grace_seconds) * 1000;
  broker_here_ = true;
  for (const auto& lease_id : terms.end_leases) end_lease(lease_id, "the broker ended it");
  tell_news(std::move(lock));
}

void AgentCore::ordered(const HeartbeatOrders& orders) {
  Lock lock(mutex_);
  broker_here_ = true;
  for (const auto& [uuid, epoch] : orders.floors) gate_.raise_floor(uuid, epoch);
  for (const auto& renewal : orders.renewed) gate_.renewed(renewal.lease_id, renewal.expires_unix_ms);
  for (const auto& lease_id : orders.end_leases) end_lease(lease_id, "the broker ended it");
  const bool news = !orders.end_leases.empty() && !ended_.empty();
  if (news) tell_news(std::move(lock));
}

void AgentCore::broker_lost() {
  const Lock lock(mutex_);
  broker_here_ = false;
}

AgentReport AgentCore::report() const {
  const Lock lock(mutex_);
  AgentReport report;
  report.ended = ended_;
  for (const auto& device : options_.devices) report.devices.push_back({device, {}, {}});
  for (const auto& [lease_id, session] : sessions_) {
    std::uint64_t epoch = 0;
    for (const auto& device : session.token.devices) {
      if (device.agent == options_.agent) epoch = std::max(epoch, device.epoch);
    }
    report.live.push_back({lease_id, epoch});
    const auto load = host_.load(lease_id, session.generation);
    for (std::size_t i = 0; i < session.devices.size(); ++i) {
      auto& row = *std::ranges::find_if(
          report.devices, [&](const LocalLoad& l) { return l.device.uuid == session.devices[i].uuid; });
      row.lease_id += (row.lease_id.empty() ? "" : ",") + lease_id;
      if (i >= load.size()) continue;
      row.use.memory_used += load[i].memory_used;
      row.use.launches += load[i].launches;
      row.use.busy_ns += load[i].busy_ns;
    }
  }
  return report;
}

void AgentCore::reported(const AgentReport& report) {
  const Lock lock(mutex_);
  std::erase_if(ended_, [&](const EndedWorker& ended) {
    return std::ranges::any_of(report.ended, [&](const EndedWorker& told) {
      return told.lease_id == ended.lease_id && told.reason == ended.reason;
    });
  });
}

void AgentCore::tick() {
  Lock lock(mutex_);
  const auto now = options_.now_unix_ms();
  for (const auto& [lease_id, session] : sessions_) {
    // In contact the broker decides (it knows of renewals first); without it, the stated grace does.
    if (session.ending_because.empty() && now >= gate_.expires_unix_ms(session.token) + grace_ms_) {
      end_lease(lease_id, "it expired");
    }
  }
  gate_.forget(now);
}

void AgentCore::worker_ended(const std::string& lease_id, std::uint64_t generation, const WorkerExit& exit) {
  Lock lock(mutex_);
  const auto session = sessions_.find(lease_id);
  if (session == sessions_.end() || session->second.generation != generation) return;
  const auto because = session->second.ending_because;
  const bool served = session->second.stage == Stage::serving;
  const auto channel = session->second.reply.channel;
  sessions_.erase(session);
  auto& [ended_lease, end] = ends_[channel];
  ended_lease = lease_id;
  end = {true, !because.empty() || exit.failed,
         !because.empty() ? because
                          : fmt::format("its worker on agent {} ended: {}", options_.agent, exit.reason)};
  if (ends_.size() > kMostEndsKept) ends_.erase(ends_.begin());
  if (!because.empty()) {
    add_ended(lease_id, because);
  } else if (served && exit.failed) {
    const auto reason = fmt::format("its worker on agent {} died: {}", options_.agent, exit.reason);
    gate_.ended(lease_id, reason, options_.now_unix_ms() + kRememberEndedMs);
    add_ended(lease_id, reason);
  }
  changed_.notify_all();
  tell_news(std::move(lock));
}

// The broker wants a confirmation for every lease it ends, also for those that have no worker here.
void AgentCore::end_lease(const std::string& lease_id, const std::string& reason) {
  gate_.ended(lease_id, reason, options_.now_unix_ms() + kRememberEndedMs);
  const auto session = sessions_.find(lease_id);
  if (session == sessions_.end()) {
    add_ended(lease_id, reason);
    return;
  }
  if (session->second.ending_because.empty()) session->second.ending_because = reason;
  end_session(session->second);
}

void AgentCore::end_session(Session& session) {
  if (session.stage == Stage::ending) return;
  session.stage = Stage::ending;
  host_.stop(session.token.lease_id, session.generation);
}

void AgentCore::add_ended(const std::string& lease_id, const std::string& reason) {
  const bool known =
      std::ranges::any_of(ended_, [&](const EndedWorker& e) { return e.lease_id == lease_id; });
  if (!known) ended_.push_back({lease_id, reason});
}

void AgentCore::on_news(std::function<void()> tell) {
  const Lock lock(tell_mutex_);
  tell_ = std::move(tell);
}

void AgentCore::tell_news(Lock lock) {
  lock.unlock();
  const Lock telling(tell_mutex_);
  if (tell_) tell_();
}

void AgentCore::shut_down(Deadline deadline) {
  Lock lock(mutex_);
  closing_ = true;
  for (auto& [lease_id, session] : sessions_) {
    if (session.ending_because.empty()) session.ending_because = "agent " + options_.agent + " was shut down";
    end_session(session);
  }
  while (!sessions_.empty() && !deadline.passed()) {
    changed_.wait_until(lock, std::min(deadline.when(), Clock::now() + std::chrono::seconds(1)));
  }
}

}  // namespace cenote::pool::agent
