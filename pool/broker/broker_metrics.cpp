#include "pool/broker/broker_metrics.h"

#include <array>
#include <map>
#include <variant>

namespace cenote::pool {

Result<std::unique_ptr<BrokerMetrics>> BrokerMetrics::create() {
  std::unique_ptr<BrokerMetrics> made(new BrokerMetrics);
  CENOTE_TRY(made->make());
  return made;
}

Result<void> BrokerMetrics::make() {
  CENOTE_ASSIGN(granted_, metrics_.counter("cenote_broker_leases_granted_total", "Leases granted."));
  CENOTE_ASSIGN(renewed_, metrics_.counter("cenote_broker_leases_renewed_total", "Renewals of leases."));
  constexpr std::array causes{"released", "expired", "failed"};
  for (std::size_t i = 0; i < causes.size(); ++i) {
    CENOTE_ASSIGN(ended_[i], metrics_.counter("cenote_broker_leases_ended_total",
                                              "Leases that ended: given back, not renewed in time, or "
                                              "because a worker, a device or an agent died.",
                                              {{"cause", causes[i]}}));
  }
  CENOTE_ASSIGN(heartbeats_, metrics_.counter("cenote_broker_heartbeats_total", "Heartbeats of agents."));
  CENOTE_ASSIGN(registered_,
                metrics_.counter("cenote_broker_agents_registered_total",
                                 "Registrations of agents that were new, or came back changed."));
  CENOTE_ASSIGN(lost_, metrics_.counter("cenote_broker_agents_lost_total", "Agents that fell silent."));
  CENOTE_ASSIGN(store_failures_, metrics_.counter("cenote_broker_store_failures_total",
                                                  "Decisions that the store did not take."));
  constexpr double bounds[] = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10};
  CENOTE_ASSIGN(store_seconds_, metrics_.histogram("cenote_broker_store_write_seconds",
                                                   "Time until a decision is durable in the store.", bounds));
  return {};
}

void BrokerMetrics::committed(std::span<const Command> commands, std::span<const Event> events,
                              double seconds) {
  using Kind = Event::Kind;
  store_seconds_->observe(seconds);
  for (const auto& event : events) {
    if (event.kind == Kind::lease_granted) granted_->add();
    if (event.kind == Kind::lease_renewed) renewed_->add();
    if (event.kind == Kind::agent_registered) registered_->add();
    if (event.kind == Kind::agent_lost) lost_->add();
  }
  // Why a lease ended stands in what ended it.
  std::map<std::string, EndCause> causes;
  for (const auto& command : commands)
    if (const auto* end = std::get_if<command::End>(&command)) causes.emplace(end->lease_id, end->cause);
  for (const auto& event : events) {
    if (event.kind != Kind::lease_ended) continue;
    const auto cause = causes.find(event.lease);
    const auto why = cause == causes.end() ? EndCause::failed : cause->second;
    ended_[static_cast<std::size_t>(why)]->add();
  }
}

void BrokerMetrics::refused(const Error& error) {
  // The codes are few, so the labels are.
  const auto made = metrics_.counter("cenote_broker_requests_refused_total",
                                     "Requests for leases that were refused, by the kind of error.",
                                     {{"reason", std::string(to_string(error.code))}});
  if (made) (*made)->add();
}

Result<std::string> BrokerMetrics::text(const TopView& now) {
  const auto set = [&](std::string_view name, std::string_view help, double value,
                       const Labels& labels = {}) -> Result<void> {
    CENOTE_ASSIGN(auto* const gauge, metrics_.gauge(name, help, labels));
    gauge->set(value);
    return {};
  };
  double alive = 0;
  std::map<std::string, double> gpus{{"free", 0}, {"leased", 0}, {"unreachable", 0}};
  for (const auto& agent : now.agents) {
    alive += agent.alive ? 1 : 0;
    CENOTE_TRY(set("cenote_broker_agent_up", "1: the agent is heard, 0: it is silent.", agent.alive ? 1 : 0,
                   {{"agent", agent.name}}));
    std::map<std::string_view, bool> leased;  // a GPU that is shared is shown once for each lease
    for (const auto& device : agent.devices) leased[device.spec.uuid] |= !device.lease_id.empty();
    for (const auto& [uuid, in_use] : leased)
      ++gpus[in_use ? "leased" : agent.alive ? "free" : "unreachable"];
  }
  const auto agents = static_cast<double>(now.agents.size());
  constexpr auto agents_help = "Agents that have registered, by whether they are heard.";
  CENOTE_TRY(set("cenote_broker_agents", agents_help, alive, {{"state", "alive"}}));
  CENOTE_TRY(set("cenote_broker_agents", agents_help, agents - alive, {{"state", "silent"}}));
  for (const auto& [state, count] : gpus) {
    CENOTE_TRY(set("cenote_broker_gpus",
                   "GPUs: leased (also such that are still being cleared), free, or free at a silent agent.",
                   count, {{"state", state}}));
  }
  CENOTE_TRY(set("cenote_broker_leases", "Leases in force.", static_cast<double>(now.leases.size())));
  CENOTE_TRY(set("cenote_broker_term", "How often a broker has begun on this store.",
                 static_cast<double>(now.term)));
  return prometheus_text(metrics_.snapshot());
}

}  // namespace cenote::pool
