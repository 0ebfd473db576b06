#include "pool/cli/demo_kill.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <thread>
#include <utility>

#include "pool/cli/output.h"

namespace cenote::pool::cli {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kPatience = seconds(30);
constexpr int kShortestOutageMs = 50, kLongestOutageMs = 500;
constexpr int kClientTrainsMs = 1000;
constexpr auto kClientTtl = "5s";

double ms_since(Clock::time_point from) {
  return std::chrono::duration<double, std::milli>(Clock::now() - from).count();
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

int draw(std::mt19937& random, int least, int most) {
  return std::uniform_int_distribution<int>(least, most)(random);
}

// One in each of `times` equal parts of the middle of `steps`: neither at the very beginning nor so late that
// the work is over before anyone could notice.
std::vector<std::uint64_t> draw_moments(std::mt19937& random, std::uint64_t steps, unsigned times) {
  const auto first = steps / 10, span = std::max<std::uint64_t>(steps * 7 / 10, 1);
  std::vector<std::uint64_t> moments;
  for (unsigned i = 0; i < times; ++i) {
    const auto from = span * i / times, to = std::max(from + 1, span * (i + 1) / times);
    moments.push_back(first + std::uniform_int_distribution<std::uint64_t>(from, to - 1)(random));
  }
  return moments;
}

Result<void> wait_until_gone(const std::vector<pid_t>& pids, const char* stage, const CancelFlag& cancel) {
  const auto deadline = Deadline::in(kPatience);
  for (const auto pid : pids) {
    while (is_running(pid)) {
      if (deadline.passed()) {
        return fail(ErrorCode::deadline_exceeded, stage,
                    fmt::format("worker process {} of the lost lease still runs", pid));
      }
      if (cancel.raised()) return fail(ErrorCode::cancelled, stage, "interrupted");
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  return {};
}

std::vector<pid_t> workers_of(const ProcessSet& pool, const std::vector<std::string>& agents) {
  std::vector<pid_t> workers;
  for (const auto& agent : agents) {
    for (const auto pid : pool.worker_pids(agent)) workers.push_back(pid);
  }
  return workers;
}

std::vector<std::string> agents_of(const client::LeaseInfo& lease) {
  std::vector<std::string> agents;
  for (const auto& device : lease.devices) {
    if (std::ranges::find(agents, device.agent) == agents.end()) agents.push_back(device.agent);
  }
  return agents;
}

}  // namespace

std::string kill_text(const KillFigures& kill) {
  if (kill.victim == "broker") {
    return fmt::format(
        "broker killed at step {}; back after {:.0f} ms, {} and {} meanwhile; one more GPU is refused: {}",
        kill.step, kill.away_ms, count_text(kill.steps_away, "step"), count_text(kill.epochs_away, "epoch"),
        kill.refusal);
  }
  if (kill.victim == "client") {
    return fmt::format(
        "client killed while it trained on all GPUs; its lease (time to live {}) was reclaimed after {:.1f} "
        "s, "
        "{} gone",
        kClientTtl, kill.freed_ms / 1e3, count_text(kill.workers_gone, "worker"));
  }
  return fmt::format(
      "{} killed at step {}; heard after {:.0f} ms; its lease was freed and its GPUs leased again after "
      "{:.0f} "
      "ms, {} gone",
      kill.victim, kill.step, kill.heard_ms, kill.freed_ms, count_text(kill.workers_gone, "worker"));
}

Result<TakenLease> lease_when_free(client::PoolClient& client, const client::LeaseSpec& spec,
                                   const CancelFlag& cancel) {
  const auto deadline = Deadline::in(kPatience);
  for (;;) {
    const auto asked_at = Clock::now();
    auto granted = client.lease(spec, deadline, &cancel);
    if (granted) return TakenLease{std::move(*granted), ms_since(asked_at)};
    if (granted.error().code != ErrorCode::resource_exhausted || deadline.passed())
      return fail(std::move(granted).error());
    if (cancel.raised()) return fail(ErrorCode::cancelled, "lease from broker", "interrupted");
    std::this_thread::sleep_for(milliseconds(20));
  }
}

BrokerKills::BrokerKills(ProcessSet& pool, const client::Lease& lease, unsigned times, std::uint64_t steps,
                         std::mt19937& random, const CancelFlag& cancel, Tell tell)
    : pool_(pool), lease_(lease), cancel_(cancel), tell_(std::move(tell)), random_(random) {
  moments_ = draw_moments(random_, steps, times);
}

Result<void> BrokerKills::before_step(std::uint64_t step) {
  CENOTE_TRY(move_on(false));
  if (stage_ != Stage::there) ++kills_.back().steps_away;
  if (kills_.size() == moments_.size() || step < moments_[kills_.size()]) return {};
  CENOTE_TRY(wait_until_back());
  pool_.kill_broker();
  killed_at_ = Clock::now();
  back_from_ = killed_at_ + milliseconds(draw(random_, kShortestOutageMs, kLongestOutageMs));
  stage_ = Stage::away;
  kills_.push_back({.victim = "broker", .step = step});
  tell_(fmt::format("broker killed (SIGKILL) at step {}", step));
  return {};
}

void BrokerKills::epoch_ended() {
  if (stage_ != Stage::there) ++kills_.back().epochs_away;
}

// Not before an epoch has ended without a broker: that is what is to be shown.
Result<void> BrokerKills::move_on(bool hurry) {
  if (stage_ == Stage::away && (hurry || (Clock::now() >= back_from_ && kills_.back().epochs_away > 0))) {
    CENOTE_TRY(pool_.begin_broker());
    stage_ = Stage::starting;
  }
  if (stage_ != Stage::starting) return {};
  CENOTE_ASSIGN(const auto listens, pool_.broker_listens());
  return listens ? come_back() : Result<void>();
}

// The moment to grant something twice would be now: the broker has just read its log, and hardly an agent has
// told it what runs there.
Result<void> BrokerKills::come_back() {
  auto& kill = kills_.back();
  kill.away_ms = ms_since(killed_at_);
  stage_ = Stage::there;
  CENOTE_ASSIGN(kill.refusal, ask_for_one_more());
  tell_(fmt::format("broker back after {:.0f} ms on its log; {} went on without it", kill.away_ms,
                    count_text(kill.steps_away, "step")));
  return {};
}

Result<std::string> BrokerKills::ask_for_one_more() const {
  CENOTE_ASSIGN(const auto other, pool_.client());
  const auto granted = other->lease({.gpus = 1, .note = "one too many"}, Deadline::in(kPatience), &cancel_);
  if (granted) {
    return fail(ErrorCode::internal, "restart the broker",
                fmt::format("it granted {}, which lease {} holds", (*granted)->info().devices.front().uuid,
                            lease_.info().id));
  }
  if (granted.error().code != ErrorCode::resource_exhausted) return fail(granted.error());
  return first_line(granted.error().cause);
}

Result<void> BrokerKills::wait_until_back() {
  const auto deadline = Deadline::in(kPatience);
  while (stage_ != Stage::there) {
    CENOTE_TRY(move_on(true));
    if (cancel_.raised()) return fail(ErrorCode::cancelled, "restart the broker", "interrupted");
    if (deadline.passed())
      return fail(ErrorCode::deadline_exceeded, "restart the broker", "it does not listen");
    std::this_thread::sleep_for(milliseconds(2));
  }
  return {};
}

Result<void> BrokerKills::settle() {
  CENOTE_TRY(wait_until_back());
  CENOTE_TRY(pool_.wait_agents(agents_of(lease_.info()).size(), Deadline::in(kPatience), &cancel_));
  CENOTE_ASSIGN(kills_.back().refusal, ask_for_one_more());
  CENOTE_ASSIGN(const auto asker, pool_.client());
  CENOTE_ASSIGN(const auto state, asker->top(Deadline::in(kPatience), &cancel_));
  if (const auto lost = lease_.lost()) return fail(*lost);
  return check_holders(state);
}

Result<void> BrokerKills::check_holders(const client::PoolState& state) const {
  const auto stage = "check the leases after the broker's restarts";
  const auto lease = lease_.info();
  if (state.leases.size() != 1 || state.leases.front().id != lease.id) {
    return fail(
        ErrorCode::internal, stage,
        fmt::format("{} in force, and not only {}", count_text(state.leases.size(), "lease"), lease.id));
  }
  for (const auto& agent : state.agents) {
    for (const auto& device : agent.devices) {
      const bool ours =
          std::ranges::find(lease.devices, device.uuid, &client::GrantedDevice::uuid) != lease.devices.end();
      if (device.lease_id != (ours ? lease.id : ""))
        return fail(ErrorCode::internal, stage, "device " + device.uuid + " is held by " + device.lease_id);
    }
  }
  return {};
}

HolderKill::HolderKill(ProcessSet& pool, Victim victim, const client::LeaseInfo& lease, std::uint64_t steps,
                       std::mt19937& random, const CancelFlag& cancel)
    : pool_(pool), cancel_(cancel), victim_(victim), agents_(agents_of(lease)) {
  agent_ = agents_[static_cast<std::size_t>(draw(random, 0, static_cast<int>(agents_.size()) - 1))];
  moment_ = draw_moments(random, steps, 1).front();
}

Result<void> HolderKill::before_step(std::uint64_t step) {
  if (done() || step < moment_) return {};
  workers_ = workers_of(pool_, agents_);
  figures_.victim = (victim_ == Victim::agent ? "agent " : "worker of ") + agent_;
  figures_.step = step;
  figures_.workers_gone = workers_.size();
  const auto serving = pool_.worker_pids(agent_);
  if (serving.empty())
    return fail(ErrorCode::internal, "kill " + figures_.victim, "no worker of the lease runs there");
  killed_at_ = Clock::now();
  if (victim_ == Victim::agent) {
    pool_.kill_agent(agent_);
  } else {
    ::kill(serving.front(), SIGKILL);
  }
  return {};
}

void HolderKill::heard(const Error& error) {
  figures_.heard_ms = ms_since(*killed_at_);
  figures_.error = first_line(error.message());
}

Result<void> HolderKill::repair() {
  return victim_ == Victim::agent ? pool_.start_agent(agent_, Deadline::in(kPatience), &cancel_)
                                  : Result<void>();
}

Result<void> HolderKill::freed() {
  figures_.freed_ms = ms_since(*killed_at_);
  return wait_until_gone(workers_, "free the lease", cancel_);
}

Result<ReclaimedLease> kill_a_client(ProcessSet& pool, client::PoolClient& client,
                                     const client::LeaseSpec& spec, const std::string& data,
                                     std::mt19937& random, const CancelFlag& cancel) {
  CENOTE_ASSIGN(auto child, pool.start_client({"demo-client", "--gpus", std::to_string(spec.gpus), "--ttl",
                                               kClientTtl, "--data", data},
                                              Deadline::in(kPatience), &cancel));
  // A moment, drawn: its training is hit anywhere.
  std::this_thread::sleep_for(milliseconds(draw(random, 0, kClientTrainsMs)));
  CENOTE_ASSIGN(const auto held, client.leases(Deadline::in(kPatience), &cancel));
  if (held.size() != 1 || !child.running())
    return fail(ErrorCode::internal, "kill a client", "it has ended before: " + pool.log_tail("client"));
  const auto workers = workers_of(pool, agents_of(held.front()));
  ReclaimedLease reclaimed;
  reclaimed.figures.victim = "client";
  reclaimed.figures.workers_gone = workers.size();
  const auto killed_at = Clock::now();
  child.end(Clock::duration::zero());
  CENOTE_ASSIGN(reclaimed.taken, lease_when_free(client, spec, cancel));
  reclaimed.figures.freed_ms = ms_since(killed_at);
  CENOTE_TRY(wait_until_gone(workers, "reclaim the client's lease", cancel));
  return reclaimed;
}

}  // namespace cenote::pool::cli
