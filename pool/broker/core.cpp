#include "pool/broker/core.h"

#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <thread>

#include "pool/scheduler/place.h"
#include "runtime/deadline.h"
#include "runtime/log.h"

namespace cenote::pool {
namespace {

constexpr auto kPatience = std::chrono::milliseconds(50);
constexpr std::size_t kMaxDeferred = 100'000;

Result<std::string> random_id() {
  std::array<unsigned char, 6> bytes{};
  if (RAND_bytes(bytes.data(), bytes.size()) != 1) {
    return fail(ErrorCode::internal, "make an id", "OpenSSL has no random bytes");
  }
  constexpr std::string_view digits = "0123456789abcdef";
  std::string id;
  for (const auto byte : bytes) {
    id.push_back(digits[byte >> 4U]);
    id.push_back(digits[byte & 15U]);
  }
  return id;
}

/// The lock, if it is to be had within kPatience. Not try_lock_for: the thread sanitizer does not know what
/// it calls.
std::unique_lock<std::mutex> soon(std::mutex& mutex) {
  std::unique_lock lock(mutex, std::try_to_lock);
  for (const auto end = Deadline::in(kPatience); !lock && !end.passed();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    (void)lock.try_lock();
  }
  return lock;
}

std::string seconds(std::int64_t ms) {
  return std::to_string(ms / 1000) + (ms % 1000 != 0 ? "." + std::to_string(ms % 1000 / 100) : "") + " s";
}

bool holds_on(const Lease& lease, const std::string& agent) {
  return std::any_of(lease.shares.begin(), lease.shares.end(),
                     [&](const Share& share) { return share.held && share.agent == agent; });
}

std::string clipped(std::string text) {
  if (text.size() > kMaxTextBytes) text.resize(kMaxTextBytes);
  return text;
}

Result<void> check_ask(const LeaseAsk& ask) {
  constexpr auto stage = "read the lease request";
  if (ask.client_key == PublicKey{}) {
    return fail(ErrorCode::invalid_argument, stage, "it has no client key: a lease is bound to one");
  }
  for (const auto* text : {&ask.client, &ask.model, &ask.note, &ask.request_id}) {
    if (text->size() > kMaxTextBytes) {
      return fail(ErrorCode::invalid_argument, stage,
                  "client, model, note and request id have at most 512 bytes");
    }
  }
  if (ask.gpus > kMaxSharesPerLease) {
    return fail(ErrorCode::invalid_argument, stage, "a lease has at most 16384 GPUs");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<BrokerCore>> BrokerCore::open(std::unique_ptr<Store> store, KeyPair key,
                                                     const BrokerClock& clock, Logger& log,
                                                     BrokerPolicy policy) {
  CENOTE_ASSIGN(auto journal, Journal::open(std::move(store), policy.snapshot_every));
  CENOTE_ASSIGN(auto metrics, BrokerMetrics::create());
  std::unique_ptr<BrokerCore> core(
      new BrokerCore(std::move(journal), std::move(key), clock, log, policy, std::move(metrics)));
  const Command start = command::StartTerm{core->journal_.state().term + 1, policy.grace_ms, policy.drift_ms};
  const std::lock_guard lock(core->mutex_);
  CENOTE_TRY(core->commit(std::span(&start, 1)));
  return core;
}

BrokerCore::BrokerCore(Journal journal, KeyPair key, const BrokerClock& clock, Logger& log,
                       BrokerPolicy policy, std::unique_ptr<BrokerMetrics> metrics)
    : journal_(std::move(journal)),
      awake_ms_(clock.monotonic_ms()),
      ahead_ms_(clock.unix_ms() - awake_ms_),
      key_(std::move(key)),
      clock_(clock),
      log_(log),
      policy_(policy),
      metrics_(std::move(metrics)),
      started_monotonic_ms_(clock.monotonic_ms()),
      seen_(journal_.state()) {}

// The same commands at the same time on the same state: the same outcome. Where the store has more than was
// told (Journal::commit), or less, what it has counts.
void BrokerCore::publish(std::span<const Command> commands, std::int64_t now_ms) {
  const std::lock_guard lock(seen_mutex_);
  for (const auto& command : commands) {
    if (apply(seen_, command, now_ms)) continue;
    seen_ = journal_.state();
    return;
  }
}

Result<void> BrokerCore::write(std::span<const Command> commands) {
  const auto now = clock_.unix_ms();
  const auto failures = journal_.store_failures();
  const auto began = Clock::now();
  auto events = journal_.commit(commands, now);
  awake_ms_ = clock_.monotonic_ms();  // however long the store took
  if (events) {
    metrics_->committed(commands, *events, std::chrono::duration<double>(Clock::now() - began).count());
    publish(commands, now);
    log_events(*events);
    return {};
  }
  if (journal_.store_failures() != failures) {
    metrics_->store_failed();
    if (!std::exchange(store_failed_, true)) log_.write(LogLevel::error, events.error());
    const std::lock_guard lock(seen_mutex_);
    seen_ = journal_.state();
  }
  return fail(std::move(events).error());
}

Result<void> BrokerCore::start_term() {
  const Command start = command::StartTerm{journal_.state().term + 1, policy_.grace_ms, policy_.drift_ms};
  return write(std::span(&start, 1));
}

// Stopped, or with its clock set forward, this process was away to its clients: nobody could renew in time.
// So it goes on as a broker that has come back does, in a new term with its grace. What cannot be logged now
// begins when the store has recovered.
void BrokerCore::notice_absence() {
  const auto now = clock_.monotonic_ms(), ahead = clock_.unix_ms() - now;
  const auto away = now - std::exchange(awake_ms_, now), step = ahead - std::exchange(ahead_ms_, ahead);
  if (policy_.absence_ms == 0 || (away <= policy_.absence_ms && std::abs(step) <= policy_.absence_ms)) return;
  log_.warn("{}: a new term begins, so that leases have time to be renewed",
            away > policy_.absence_ms ? "this process was stopped for " + seconds(away)
                                      : "the clock was set by " + seconds(step));
  {
    const std::lock_guard seen(seen_mutex_);  // agents were not heard because nobody listened
    for (auto& [name, life] : lives_) life.heard_monotonic_ms = now;
  }
  (void)start_term();
}

// An outage of the store was one of the broker: nobody could renew. So it ends as one does, in a new term.
Result<void> BrokerCore::recover_store() {
  if (!store_failed_) return {};
  CENOTE_TRY(start_term());
  store_failed_ = false;
  log_.info("the store can be written again");
  return {};
}

Result<void> BrokerCore::commit(std::span<const Command> commands) {
  CENOTE_TRY(recover_store());
  CENOTE_TRY(write(commands));
  if (auto compacted = journal_.compact(); !compacted) log_.write(LogLevel::warn, compacted.error());
  return {};
}

/// For decisions that nobody waits for: what cannot be logged now comes up again at the next tick.
bool BrokerCore::commit_or_keep(std::vector<Command> commands) {
  if (commands.empty()) return true;
  auto done = commit(commands);
  if (!done && !store_failed_) log_.write(LogLevel::error, done.error());
  return done.has_value();
}

void BrokerCore::log_events(std::span<const Event> events) {
  using Kind = Event::Kind;
  for (const auto& event : events) {
    switch (event.kind) {
      case Kind::term_started:
        log_.info("broker term {}", event.text);
        break;
      case Kind::agent_registered:
        log_.info("agent {} registered at {}", event.agent, event.text);
        break;
      case Kind::agent_lost:
        log_.warn("agent {} is silent: nothing new is placed there", event.agent);
        break;
      case Kind::agent_back:
        log_.info("agent {} is heard again", event.agent);
        break;
      case Kind::lease_granted:
        log_.info("lease {} granted: {}", event.lease, event.text);
        break;
      case Kind::lease_renewed:
        log_.debug("lease {} renewed", event.lease);
        break;
      case Kind::lease_ended:
        log_.info("lease {} ended: {}", event.lease, event.text);
        break;
      case Kind::device_freed:
        log_.debug("device {} freed by lease {}", event.device, event.lease);
        break;
      case Kind::lease_gone:
        log_.debug("lease {} is cleared everywhere", event.lease);
        break;
    }
  }
}

void BrokerCore::hear(const std::string& agent) {
  auto& life = lives_[agent];
  life.heard_monotonic_ms = clock_.monotonic_ms();
  life.heard_unix_ms = clock_.unix_ms();
  load_.reachable.insert(agent);
}

bool BrokerCore::is_known(const AgentHello& hello) const {
  const auto known = seen_.agents.find(hello.name);
  if (known == seen_.agents.end() || known->second.instance != hello.instance || !known->second.alive ||
      known->second.endpoint != hello.endpoint || known->second.devices.size() != hello.devices.size()) {
    return false;
  }
  for (std::size_t i = 0; i < hello.devices.size(); ++i) {
    if (seen_.devices.at(known->second.devices[i]).spec != hello.devices[i]) return false;
  }
  return true;
}

// An agent that only meets a new broker is not worth a record.
Result<AgentWelcome> BrokerCore::register_agent(const AgentHello& hello) {
  std::unique_lock seen(seen_mutex_);
  if (!is_known(hello)) {
    seen.unlock();
    {
      const std::lock_guard lock(mutex_);
      const Command join = command::RegisterAgent{hello.name, hello.endpoint, hello.instance, hello.devices};
      CENOTE_TRY(commit(std::span(&join, 1)));
    }
    seen.lock();
  }
  hear(hello.name);
  auto& life = lives_[hello.name];
  life.registered = true;
  life.loads.clear();
  return AgentWelcome{policy_.heartbeat_ms,
                      policy_.grace_ms,
                      seen_.term,
                      key_.public_key(),
                      leases_to_end(hello.name, hello.live),
                      floors(hello.name)};
}

std::vector<std::string> BrokerCore::leases_to_end(const std::string& agent,
                                                   const std::vector<LiveLease>& live) const {
  const auto& state = seen_;
  std::set<std::string> ends;
  for (const auto& uuid : state.agents.at(agent).devices) {
    for (const auto& holder : state.devices.at(uuid).holders) {
      if (state.leases.at(holder.lease).ended) ends.insert(holder.lease);
    }
  }
  for (const auto& [id, epoch] : live) {
    const auto found = state.leases.find(id);
    const bool granted =
        found != state.leases.end() && !found->second.ended &&
        std::any_of(found->second.shares.begin(), found->second.shares.end(),
                    [&, e = epoch](const Share& share) {
                      return share.held && share.agent == agent && (e == 0 || share.epoch == e);
                    });
    if (!granted) ends.insert(id);
  }
  return {ends.begin(), ends.end()};
}

std::vector<DeviceFloor> BrokerCore::floors(const std::string& agent) const {
  std::vector<DeviceFloor> floors;
  for (const auto& uuid : seen_.agents.at(agent).devices) {
    floors.push_back({uuid, floor_of(seen_, uuid)});
  }
  return floors;
}

/// What the ends that an agent reports mean for the state.
std::vector<Command> BrokerCore::after_ends(const State& state, const AgentPulse& pulse) {
  std::vector<Command> commands;
  std::set<std::string> seen;
  for (const auto& [id, reason] : pulse.ended) {
    const auto found = state.leases.find(id);
    if (found == state.leases.end() || !holds_on(found->second, pulse.name) || !seen.insert(id).second) {
      continue;  // confirmed before, or reclaimed
    }
    if (!found->second.ended) {
      commands.emplace_back(
          command::End{id, EndCause::failed, clipped("agent " + pulse.name + ": " + reason), 0});
    }
    commands.emplace_back(command::Confirm{id, pulse.name});
  }
  return commands;
}

void BrokerCore::take_loads(const AgentPulse& pulse) {
  auto& life = lives_[pulse.name];
  life.loads.clear();
  const auto& devices = seen_.devices;
  for (const auto& load : pulse.loads) {
    const auto device = devices.find(load.device);
    if (device == devices.end() || device->second.agent != pulse.name) continue;  // not its own
    if (life.loads.size() == kMaxDevicesPerAgent * 16) break;
    life.loads.push_back(load);
    load_.utilisation[load.device] = load.utilisation;
  }
}

Result<PulseAnswer> BrokerCore::heartbeat(const AgentPulse& pulse) {
  {
    const std::lock_guard seen(seen_mutex_);
    const auto known = seen_.agents.find(pulse.name);
    const auto life = lives_.find(pulse.name);
    if (known == seen_.agents.end() || known->second.instance != pulse.instance || life == lives_.end() ||
        !life->second.registered) {
      PulseAnswer answer;
      answer.register_again = true;
      return answer;
    }
    hear(pulse.name);
    metrics_->heartbeat();
    // The agent tells it once: kept until the log has it.
    for (const auto& [id, reason] : pulse.ended) {
      if (deferred_.size() < kMaxDeferred) deferred_.emplace(std::pair(id, pulse.name), reason);
    }
    if (!known->second.alive) recovered_.insert(pulse.name);
    take_loads(pulse);
  }
  // While the store takes its time over something else, the tick after that logs it.
  if (const auto lock = soon(mutex_); lock) log_heard();
  const std::lock_guard seen(seen_mutex_);
  PulseAnswer answer;
  answer.end_leases = leases_to_end(pulse.name, pulse.live);
  for (const auto& [id, epoch] : pulse.live) {
    const auto lease = seen_.leases.find(id);
    if (lease != seen_.leases.end() && !lease->second.ended)
      answer.renewed.push_back({id, lease->second.expires_ms});
  }
  answer.floors = floors(pulse.name);
  return answer;
}

void BrokerCore::log_heard() {
  std::vector<Command> commands;
  std::map<std::pair<std::string, std::string>, std::string> ends;
  {
    const std::lock_guard seen(seen_mutex_);
    for (const auto& name : std::exchange(recovered_, {})) {
      const auto& agents = journal_.state().agents;
      if (const auto known = agents.find(name); known != agents.end() && !known->second.alive)
        commands.emplace_back(command::RecoverAgent{name});
    }
    ends = deferred_;
  }
  commit_or_keep(std::move(commands));
  for (const auto& [whose, reason] : ends) {
    const auto& [id, agent] = whose;
    const auto logged = after_ends(
        journal_.state(), {.name = agent, .instance = {}, .live = {}, .ended = {{id, reason}}, .loads = {}});
    if (!logged.empty() && !commit_or_keep(logged)) return;
    const std::lock_guard seen(seen_mutex_);
    deferred_.erase(whose);
  }
}

Result<std::int64_t> BrokerCore::ttl(std::int64_t asked_ms) const {
  if (asked_ms == 0) return std::min(policy_.default_ttl_ms, policy_.max_ttl_ms);
  if (asked_ms < 0 || asked_ms > policy_.max_ttl_ms) {
    return fail(ErrorCode::invalid_argument, "set the lease's length",
                "asks " + seconds(asked_ms) + ", this broker grants 1 s to " + seconds(policy_.max_ttl_ms));
  }
  return asked_ms;
}

Result<LeaseView> BrokerCore::grant(const LeaseAsk& ask) {
  CENOTE_TRY(check_ask(ask));
  CENOTE_ASSIGN(const auto length, ttl(ask.ttl_ms));
  const std::lock_guard lock(mutex_);
  notice_absence();
  const auto& state = journal_.state();
  auto request_id = ask.request_id;
  if (request_id.empty()) {
    CENOTE_ASSIGN(request_id, random_id());
  }
  if (const auto known = state.requests.find({ask.client, request_id}); known != state.requests.end()) {
    return granted_before(ask, known->second);
  }
  const auto now = clock_.unix_ms();
  const auto decide = [&] {
    const std::lock_guard seen(seen_mutex_);
    load_.now_ms = now;
    return place(state, load_, {ask.gpus, ask.model, ask.memory_bytes});
  };
  CENOTE_ASSIGN(auto placement, decide());
  CENOTE_ASSIGN(auto id, random_id());
  const Command grant = command::Grant{.lease_id = id,
                                       .request_id = request_id,
                                       .client = ask.client,
                                       .client_key = ask.client_key,
                                       .expires_ms = now + length,
                                       .note = ask.note,
                                       .reason = std::move(placement.reason),
                                       .shares = std::move(placement.shares)};
  if (auto done = commit(std::span(&grant, 1)); !done) {
    if (done.error().remedy.empty())
      done.error().remedy = "leases in force go on; new ones need the broker's log";
    return fail(std::move(done).error());
  }
  return signed_view(state, id);
}

Result<LeaseView> BrokerCore::granted_before(const LeaseAsk& ask, const GrantedRequest& request) const {
  const auto stage = "grant request " + ask.request_id;
  if (request.client_key != ask.client_key) {
    return fail(ErrorCode::already_exists, stage, "a request with this id was granted to another key");
  }
  const auto lease = journal_.state().leases.find(request.lease_id);
  if (lease == journal_.state().leases.end() || lease->second.ended) {
    return fail(Error{ErrorCode::not_found, stage,
                      "it was granted as lease " + request.lease_id + ", which has ended"}
                    .fix("ask with a new request id"));
  }
  return signed_view(journal_.state(), request.lease_id);
}

Result<void> BrokerCore::release(const std::string& lease_id, const Proof& proof) {
  const std::lock_guard lock(mutex_);
  const auto& state = journal_.state();
  const auto found = state.leases.find(lease_id);
  const auto now = clock_.unix_ms();
  if (found != state.leases.end()) {
    CENOTE_TRY(check_proof(found->second.client_key, "release", lease_id, kBrokerAudience, proof, now));
    if (found->second.ended) return {};
    const Command end = command::End{lease_id, EndCause::released, "released by its client", proof.unix_ms};
    return commit(std::span(&end, 1));
  }
  for (const auto& [key, request] : state.requests) {
    if (request.lease_id == lease_id) {
      return check_proof(request.client_key, "release", lease_id, kBrokerAudience, proof, now);
    }
  }
  return fail(ErrorCode::not_found, "release lease " + lease_id, "there is no such lease");
}

/// Everything that time alone decides.
std::vector<Command> BrokerCore::due(std::int64_t now_ms) const {
  const std::lock_guard seen(seen_mutex_);
  const auto& state = journal_.state();
  std::map<std::string, std::int64_t> dead;
  std::vector<Command> commands;
  for (const auto& [name, agent] : state.agents) {
    const auto life = lives_.find(name);
    const auto heard = life == lives_.end() ? started_monotonic_ms_ : life->second.heard_monotonic_ms;
    const auto silent = clock_.monotonic_ms() - heard;
    if (agent.alive && silent > policy_.agent_timeout_ms) commands.emplace_back(command::LoseAgent{name});
    if (silent > std::max(policy_.agent_dead_ms, policy_.agent_timeout_ms)) dead.emplace(name, silent);
  }
  for (const auto& [id, lease] : state.leases) {
    if (lease.ended) {
      if (now_ms >= lease.fence_ms) commands.emplace_back(command::Reclaim{id});
      continue;
    }
    if (now_ms >= last_renewal_ms(lease)) {
      commands.emplace_back(command::End{id, EndCause::expired, "it expired and was not renewed", 0});
      continue;
    }
    for (const auto& share : lease.shares) {
      const auto lost = dead.find(share.agent);
      if (lost == dead.end()) continue;
      commands.emplace_back(
          command::End{id, EndCause::failed,
                       clipped("agent " + share.agent + " is silent for " + seconds(lost->second)), 0});
      break;
    }
  }
  return commands;
}

void BrokerCore::tick() {
  const std::lock_guard lock(mutex_);
  notice_absence();
  // What is due while the store cannot be written is judged anew when it can.
  const bool writable = recover_store().has_value();
  if (writable) {
    log_heard();
    commit_renewals();  // first who has asked to renew, then those who have not
  }
  const auto commands = due(clock_.unix_ms());
  {
    const std::lock_guard seen(seen_mutex_);
    for (const auto& command : commands)
      if (const auto* lost = std::get_if<command::LoseAgent>(&command)) load_.reachable.erase(lost->name);
  }
  if (writable) commit_or_keep(commands);
}

State BrokerCore::state() const {
  const std::lock_guard seen(seen_mutex_);
  return seen_;
}

}  // namespace cenote::pool
