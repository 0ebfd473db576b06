#include "pool/scheduler/place.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "pool/scheduler/score_best_fit.h"

namespace cenote::pool {
namespace {

constexpr auto kStage = "place the request";

struct Candidate {
  const Device* device = nullptr;
  std::uint64_t memory = 0;  ///< what the lease would hold of it
  std::uint32_t compute = 0;
  double score = 0;
  double utilisation = 0;
};

/// How many devices are lost to the request at each gate; the refusal is written from it.
struct Census {
  std::size_t pool = 0;       ///< devices present
  std::size_t model = 0;      ///< of the model
  std::size_t large = 0;      ///< and large enough; the rest of the counts are of these
  std::size_t leased = 0;     ///< too full now, whether or not its agent is heard
  std::size_t silent = 0;     ///< not leased, and without a live agent
  std::size_t ending = 0;     ///< too full now, but held only by leases that have ended already
  std::uint64_t largest = 0;  ///< memory, of the model
  std::int64_t next_end_ms = -1;
};

std::string gibibytes(std::uint64_t bytes) {
  constexpr std::uint64_t unit = 1ULL << 30U;
  const auto tenths = bytes * 10 / unit;
  if (bytes != 0 && bytes % unit != 0 && tenths == 0) return std::to_string(bytes >> 20U) + " MiB";
  return std::to_string(tenths / 10) + (tenths % 10 != 0 ? "." + std::to_string(tenths % 10) : "") + " GiB";
}

std::string gpus(std::size_t count) { return std::to_string(count) + (count == 1 ? " GPU" : " GPUs"); }

std::uint32_t compute_for(std::uint64_t memory, std::uint64_t total) {
  const auto millis =
      static_cast<std::uint32_t>(static_cast<double>(memory) / static_cast<double>(total) * kWholeDevice);
  return std::clamp<std::uint32_t>(millis, 1, kWholeDevice);
}

/// Whether a lease in force holds a part of it; notes when the first of them ends.
bool in_force(const State& state, const Device& device, Census& census) {
  bool any = false;
  for (const auto& holder : device.holders) {
    const auto& lease = state.leases.at(holder.lease);
    if (lease.ended) continue;
    any = true;
    if (census.next_end_ms < 0 || lease.expires_ms < census.next_end_ms)
      census.next_end_ms = lease.expires_ms;
  }
  return any;
}

bool heard(const State& state, const LoadSnapshot& load, const Device& device) {
  const auto agent = state.agents.find(device.agent);
  return agent != state.agents.end() && agent->second.alive && load.reachable.contains(device.agent);
}

std::vector<Candidate> survey(const State& state, const LoadSnapshot& load, const PlacementRequest& request,
                              Census& census) {
  std::vector<Candidate> candidates;
  for (const auto& [uuid, device] : state.devices) {
    if (!device.present) continue;
    ++census.pool;
    if (!request.model.empty() && device.spec.model != request.model) continue;
    ++census.model;
    const auto total = device.spec.memory_bytes;
    census.largest = std::max(census.largest, total);
    if (request.memory_bytes > total) continue;
    ++census.large;
    const auto memory = request.memory_bytes == 0 ? total : request.memory_bytes;
    const auto compute = request.memory_bytes == 0 ? kWholeDevice : compute_for(memory, total);
    const auto free = total - device.memory_held;
    const bool full = memory > free || compute > kWholeDevice - device.compute_held;
    // A broker that has just come back knows who holds what before it has heard of any agent.
    if (full && in_force(state, device, census)) {
      ++census.leased;
      continue;
    }
    if (!heard(state, load, device)) {
      ++census.silent;
      continue;
    }
    if (full) {
      ++census.ending;
      continue;
    }
    const auto used = load.utilisation.find(uuid);
    candidates.push_back({&device, memory, compute, score_best_fit(total, free, memory),
                          used == load.utilisation.end() ? 0.0 : used->second});
  }
  return candidates;
}

std::string models_of(const State& state) {
  std::map<std::string, std::size_t> counts;
  for (const auto& [uuid, device] : state.devices) {
    if (device.present) ++counts[device.spec.model];
  }
  std::string text;
  for (const auto& [model, count] : counts) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + model;
  }
  return text;
}

/// What this pool can never serve, as it stands.
Result<void> check_possible(const State& state, const Census& census, const PlacementRequest& request) {
  if (request.gpus == 0) return fail(ErrorCode::invalid_argument, kStage, "asks 0 GPUs");
  const auto asks = "asks " + gpus(request.gpus);
  if (census.pool == 0) {
    return fail(
        Error{ErrorCode::resource_exhausted, kStage, "the pool has no GPUs: no agent has registered"}.fix(
            "start agents: cenote agent --set broker.address=HOST:PORT"));
  }
  if (request.gpus > census.pool) {
    return fail(ErrorCode::invalid_argument, kStage, asks + ", the pool has " + std::to_string(census.pool));
  }
  if (census.model == 0) {
    return fail(ErrorCode::invalid_argument, kStage,
                "no GPU here is a \"" + request.model + "\": the pool has " + models_of(state));
  }
  const auto of_model = request.model.empty() ? "" : " " + request.model;
  if (request.gpus > census.model) {
    return fail(
        ErrorCode::invalid_argument, kStage,
        "asks " + std::to_string(request.gpus) + of_model + ", the pool has " + std::to_string(census.model));
  }
  if (census.large == 0) {
    return fail(ErrorCode::invalid_argument, kStage,
                "asks " + gibibytes(request.memory_bytes) + " per GPU, the largest" + of_model + " GPU has " +
                    gibibytes(census.largest));
  }
  if (request.gpus > census.large) {
    return fail(ErrorCode::invalid_argument, kStage,
                asks + " with " + gibibytes(request.memory_bytes) + ", the pool has " +
                    std::to_string(census.large) + " that large");
  }
  return {};
}

/// Why not now: "no free GPU: 4 of 4 leased, the next lease ends in 12 s".
Error refusal(const Census& census, const LoadSnapshot& load, const PlacementRequest& request,
              std::size_t free) {
  std::string text =
      free == 0 ? "no free GPU" : "asks " + gpus(request.gpus) + ", only " + std::to_string(free) + " free";
  text += ": " + std::to_string(census.leased) + " of " + std::to_string(census.large) + " leased";
  if (census.ending != 0) text += ", " + std::to_string(census.ending) + " being cleared";
  if (census.silent != 0) text += ", " + std::to_string(census.silent) + " on agents that are silent";
  if (census.next_end_ms >= 0) {
    const auto left = std::max<std::int64_t>(0, census.next_end_ms - load.now_ms);
    text += ", the next lease ends in " + std::to_string((left + 999) / 1000) + " s";
  }
  return {ErrorCode::resource_exhausted, kStage, std::move(text)};
}

/// Devices of one agent talk to each other best: agents are taken by how many candidates they have (the
/// smallest that serves all of the rest, or else the largest), then each agent's devices by score.
std::vector<Candidate> choose(const std::vector<Candidate>& candidates, std::size_t wanted) {
  std::map<std::string, std::vector<Candidate>> by_agent;
  for (const auto& candidate : candidates) by_agent[candidate.device->agent].push_back(candidate);
  for (auto& [agent, devices] : by_agent) {
    std::stable_sort(devices.begin(), devices.end(), [](const Candidate& a, const Candidate& b) {
      return std::tuple(-a.score, a.utilisation, a.device->spec.ordinal) <
             std::tuple(-b.score, b.utilisation, b.device->spec.ordinal);
    });
  }
  // The mean score of what an agent would give breaks ties between agents of equal size.
  const auto mean = [](const std::vector<Candidate>& devices, std::size_t count) {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += devices[i].score;
    return sum / static_cast<double>(count);
  };
  std::vector<std::vector<Candidate>*> agents;
  agents.reserve(by_agent.size());
  for (auto& [agent, devices] : by_agent) agents.push_back(&devices);
  std::vector<Candidate> chosen;
  while (chosen.size() < wanted) {
    const auto rest = wanted - chosen.size();
    const auto best = std::min_element(agents.begin(), agents.end(), [&](const auto* a, const auto* b) {
      const bool all_a = a->size() >= rest;
      const bool all_b = b->size() >= rest;
      if (all_a != all_b) return all_a;
      if (all_a) {  // both serve it: the better fit, then the smaller hole
        return std::tuple(-mean(*a, rest), a->size()) < std::tuple(-mean(*b, rest), b->size());
      }
      return a->size() > b->size();
    });
    auto& devices = **best;
    const auto count = std::min(rest, devices.size());
    chosen.insert(chosen.end(), devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(count));
    agents.erase(best);
  }
  return chosen;
}

std::string reason_for(const std::vector<Candidate>& chosen, std::size_t candidates) {
  std::map<std::string, std::size_t> agents;
  double score = 0;
  for (const auto& candidate : chosen) {
    ++agents[candidate.device->agent];
    score += candidate.score;
  }
  std::string text = "best fit among " + std::to_string(candidates) + " candidates: ";
  std::size_t listed = 0;
  for (const auto& [agent, count] : agents) {
    if (++listed > 4) {
      text += " and " + std::to_string(agents.size() - 4) + " more agents";
      break;
    }
    text += (listed == 1 ? "" : ", ") + std::to_string(count) + " on " + agent;
  }
  const auto percent = std::lround(score / static_cast<double>(chosen.size()) * 100);
  return text.substr(0, kMaxTextBytes - 32) + " (fit " + std::to_string(percent) + " %)";
}

}  // namespace

Result<Placement> place(const State& state, const LoadSnapshot& load, const PlacementRequest& request) {
  Census census;
  const auto candidates = survey(state, load, request, census);
  CENOTE_TRY(check_possible(state, census, request));
  const auto free = candidates.size();
  if (free < request.gpus) return fail(refusal(census, load, request, free));
  const auto chosen = choose(candidates, request.gpus);
  Placement placement;
  for (const auto& candidate : chosen) {
    placement.shares.push_back({.device = candidate.device->spec.uuid,
                                .agent = candidate.device->agent,
                                .memory_bytes = candidate.memory,
                                .compute_millis = candidate.compute,
                                .epoch = candidate.device->epoch + 1});
  }
  placement.reason = reason_for(chosen, free);
  return placement;
}

}  // namespace cenote::pool
