#include "runtime/launcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>

#include "runtime/launcher_lists.h"
#include "runtime/tcp_socket.h"

namespace cenote::launcher {
namespace {

constexpr std::string_view stage = "find this process's place in its group";
constexpr std::uint32_t most_ranks = 1U << 20U;

tl::unexpected<Error> bad(std::string cause) {
  return fail(ErrorCode::invalid_argument, std::string(stage), std::move(cause));
}

/// The variables of one launcher, with errors that name them.
class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  [[nodiscard]] bool has(const std::string& name) const { return environment_.contains(name); }
  [[nodiscard]] std::string or_empty(const std::string& name) const {
    const auto at = environment_.find(name);
    return at == environment_.end() ? std::string() : at->second;
  }
  [[nodiscard]] Result<std::string> text(const std::string& name) const {
    auto value = or_empty(name);
    if (!has(name)) return bad(name + " is not set");
    if (value.empty()) return bad(name + " is empty");
    return value;
  }
  [[nodiscard]] Result<std::uint32_t> number(const std::string& name, std::uint32_t least,
                                             std::uint32_t most) const {
    CENOTE_ASSIGN(const auto digits, text(name));
    std::uint32_t value = 0;
    const auto* end = digits.data() + digits.size();
    const auto read = std::from_chars(digits.data(), end, value);
    if (read.ec != std::errc{} || read.ptr != end || value < least || value > most)
      return bad(fmt::format("{} is '{}', a number from {} to {} is meant", name, digits, least, most));
    return value;
  }
  /// A number below the one of another variable.
  [[nodiscard]] Result<std::uint32_t> below(const std::string& name, const std::string& limit_name,
                                            std::uint32_t limit) const {
    CENOTE_ASSIGN(const auto value, number(name, 0, most_ranks));
    if (value >= limit) return bad(fmt::format("{} is {}, and {} only {}", name, value, limit_name, limit));
    return value;
  }

 private:
  const Environment& environment_;
};

Result<Place> from_pmix(const Variables& variables) {
  CENOTE_ASSIGN(const auto job, variables.text("PMIX_NAMESPACE"));
  CENOTE_ASSIGN(const auto rank, variables.number("PMIX_RANK", 0, most_ranks - 1));
  return Place{Kind::pmix, rank, 0, 0, 0, {}, "pmix " + job};
}

Result<Place> from_slurm(const Variables& variables) {
  if (variables.has("SLURM_HET_SIZE"))
    return fail(Error{ErrorCode::not_supported, std::string(stage),
                      "SLURM_HET_SIZE is set: a heterogeneous job has several lists of nodes"}
                    .fix("srun --mpi=pmix"));
  if (variables.or_empty("SLURM_DISTRIBUTION").starts_with("arbitrary"))
    return fail(Error{ErrorCode::not_supported, std::string(stage),
                      "SLURM_DISTRIBUTION is arbitrary: it does not say which node rank 0 is on"}
                    .fix("srun --mpi=pmix, or another --distribution"));
  Place place{.kind = Kind::slurm};
  CENOTE_ASSIGN(place.ranks, variables.number("SLURM_STEP_NUM_TASKS", 1, most_ranks));
  CENOTE_ASSIGN(place.rank, variables.below("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", place.ranks));
  CENOTE_ASSIGN(const auto node_text, variables.text("SLURM_STEP_NODELIST"));
  CENOTE_ASSIGN(const auto nodes, expand_nodes(node_text));
  CENOTE_ASSIGN(const auto task_text, variables.text("SLURM_STEP_TASKS_PER_NODE"));
  CENOTE_ASSIGN(const auto tasks, expand_counts(task_text));
  if (tasks.size() != nodes.size())
    return bad(fmt::format("SLURM_STEP_NODELIST names {} nodes, SLURM_STEP_TASKS_PER_NODE {}", nodes.size(),
                           tasks.size()));
  const auto sum = std::accumulate(tasks.begin(), tasks.end(), std::uint64_t{0});
  if (sum != place.ranks)
    return bad(
        fmt::format("SLURM_STEP_TASKS_PER_NODE makes {} tasks, SLURM_STEP_NUM_TASKS {}", sum, place.ranks));
  const auto node_count = static_cast<std::uint32_t>(nodes.size());
  CENOTE_ASSIGN(const auto node, variables.below("SLURM_NODEID", "SLURM_STEP_NODELIST", node_count));
  place.local_ranks = tasks[node];
  CENOTE_ASSIGN(place.local_rank,
                variables.below("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", place.local_ranks));
  place.root_host = nodes.front();
  CENOTE_ASSIGN(const auto job, variables.text("SLURM_JOB_ID"));
  CENOTE_ASSIGN(const auto step, variables.text("SLURM_STEP_ID"));
  place.job = fmt::format("slurm {} {}.{} {}", variables.or_empty("SLURM_CLUSTER_NAME"), job, step,
                          variables.or_empty("SLURM_RESTART_COUNT"));
  return place;
}

Result<Place> from_torchrun(const Variables& variables) {
  Place place{.kind = Kind::torchrun};
  CENOTE_ASSIGN(place.ranks, variables.number("WORLD_SIZE", 1, most_ranks));
  CENOTE_ASSIGN(place.rank, variables.below("RANK", "WORLD_SIZE", place.ranks));
  CENOTE_ASSIGN(place.root_host, variables.text("MASTER_ADDR"));
  CENOTE_ASSIGN(const auto port, variables.number("MASTER_PORT", 1, 65535));
  const bool local = place.root_host == "localhost" || is_loopback(place.root_host);
  if (local && !variables.has("LOCAL_RANK") && !variables.has("LOCAL_WORLD_SIZE")) {
    place.local_rank = place.rank;
    place.local_ranks = place.ranks;
  } else {
    CENOTE_ASSIGN(place.local_ranks, variables.number("LOCAL_WORLD_SIZE", 1, most_ranks));
    if (place.local_ranks > place.ranks)
      return bad(
          fmt::format("LOCAL_WORLD_SIZE is {}, and WORLD_SIZE only {}", place.local_ranks, place.ranks));
    CENOTE_ASSIGN(place.local_rank, variables.below("LOCAL_RANK", "LOCAL_WORLD_SIZE", place.local_ranks));
    if (place.local_rank > place.rank)
      return bad(fmt::format("LOCAL_RANK is {}, and RANK only {}", place.local_rank, place.rank));
  }
  place.job = fmt::format("torchrun {} {} {}", variables.or_empty("TORCHELASTIC_RUN_ID"), port,
                          variables.or_empty("TORCHELASTIC_RESTART_COUNT"));
  return place;
}

/// Variables that a person set may contradict a launcher's: nobody can say who is right.
Result<void> agree(const Variables& variables, const char* theirs) {
  const auto by_hand = variables.or_empty("RANK");
  const auto by_launcher = variables.or_empty(theirs);
  if (by_hand == by_launcher) return {};
  return fail(Error{ErrorCode::invalid_argument, std::string(stage),
                    fmt::format("RANK is '{}', and {} is '{}'", by_hand, theirs, by_launcher)}
                  .fix("say whom to believe: the setting launcher, or unset RANK"));
}

Result<Place> from_whoever(const Variables& variables) {
  const bool by_hand = variables.has("RANK") && variables.has("WORLD_SIZE");
  if (variables.has("TORCHELASTIC_RUN_ID")) return from_torchrun(variables);
  if (variables.has("PMIX_NAMESPACE")) {
    if (by_hand) CENOTE_TRY(agree(variables, "PMIX_RANK"));
    return from_pmix(variables);
  }
  if (variables.has("SLURM_STEP_ID") && variables.has("SLURM_PROCID")) {
    if (by_hand) CENOTE_TRY(agree(variables, "SLURM_PROCID"));
    return from_slurm(variables);
  }
  if (variables.has("RANK") || variables.has("WORLD_SIZE")) return from_torchrun(variables);
  return fail(
      Error{ErrorCode::not_found, std::string(stage),
            "no launcher started it: neither PMIX_NAMESPACE (mpirun, srun --mpi=pmix), nor SLURM_STEP_ID "
            "with SLURM_PROCID (srun), nor TORCHELASTIC_RUN_ID or RANK (torchrun) is set"}
          .fix("start it with one of them, or with CENOTE_LAUNCHER=none as a group of one"));
}

}  // namespace

std::string_view to_string(Kind kind) {
  switch (kind) {
    case Kind::none:
      return "none";
    case Kind::pmix:
      return "pmix";
    case Kind::slurm:
      return "slurm";
    case Kind::torchrun:
      return "torchrun";
  }
  return "unknown";
}

Result<void> place_among(std::string_view local_peers, Place& place) {
  constexpr const char* doing = "read PMIx's list of the ranks of this machine";
  auto peers = expand_counts(local_peers);
  if (!peers) return fail(ErrorCode::protocol_error, doing, peers.error().cause);
  const auto mine = std::ranges::find(*peers, place.rank);
  if (mine == peers->end() || peers->size() > place.ranks)
    return fail(ErrorCode::protocol_error, doing,
                fmt::format("'{}' for rank {} of {}", local_peers, place.rank, place.ranks));
  place.local_rank = static_cast<std::uint32_t>(mine - peers->begin());
  place.local_ranks = static_cast<std::uint32_t>(peers->size());
  return {};
}

Result<Place> find_place(std::string_view wanted, const Environment& environment) {
  const Variables variables(environment);
  if (wanted == "none") return Place{};
  if (wanted == "pmix") return from_pmix(variables);
  if (wanted == "slurm") return from_slurm(variables);
  if (wanted == "torchrun") return from_torchrun(variables);
  if (wanted == "auto") return from_whoever(variables);
  return bad(fmt::format("launcher is '{}': auto, pmix, slurm, torchrun or none is meant", wanted));
}

}  // namespace cenote::launcher
