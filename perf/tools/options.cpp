#include "perf/tools/options.h"

#include <fmt/format.h>

#include <algorithm>

namespace cenote::perf {
namespace {

constexpr std::uint64_t cycle = 4096;                // perftest's: smaller messages walk through a page
constexpr std::uint64_t most_window = 16ULL << 20U;  // bytes of slots that differ, for rails and --validate
constexpr std::uint64_t cached_window = 1ULL << 20U;
constexpr std::uint64_t few_places = 16;
constexpr std::uint64_t overtakers = 8;  // rails that are this much faster than the slowest
constexpr std::uint64_t least_memory = 4096;
constexpr std::uint64_t most_warm_up = 100;

tl::unexpected<Error> wrong(std::string_view flag, std::string_view why, std::string remedy = {}) {
  return fail(Error{ErrorCode::invalid_argument, "read command line", fmt::format("{}: {}", flag, why)}.fix(
      std::move(remedy)));
}

}  // namespace

std::vector<std::uint64_t> all_sizes(std::uint64_t most) {
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t size = 2; size <= std::min<std::uint64_t>(most, 8ULL << 20U); size *= 2)
    sizes.push_back(size);
  return sizes;
}

Result<void> check(const Tool& tool, const Work& work, const Show& show) {
  for (const std::uint64_t size : work.sizes) {
    if (size == 0 || size > most_size)
      return wrong("--size", fmt::format("{} bytes; it takes 1 to {}", size, most_size));
    if (tool.verb == Verb::atomic && size != 8)
      return wrong("--size", "an atomic is 8 bytes", "leave it out");
  }
  if (tool.verb == Verb::atomic && work.sizes.size() > 1)
    return wrong("--all", "an atomic is 8 bytes, there are no other sizes", "leave it out");
  if (tool.latency && work.bidirectional)
    return wrong("--bidirectional", fmt::format("{} goes there and back anyway", tool.name),
                 "it is for the tools whose name ends with _bw");
  const bool timed = work.duration > Clock::duration::zero();
  if (timed && work.margin * 2 >= work.duration)
    return wrong("--margin", "twice of it is the whole duration: nothing would be counted",
                 "make --duration longer or --margin shorter");
  if (timed && work.validate && work.bidirectional)
    return wrong("--duration", "both directions cannot check each other's windows by time",
                 "with --validate --bidirectional say how often: --iters");
  if (work.forever && !timed)
    return wrong("--run_infinitely", "it repeats a --duration, and there is none", "add --duration SECONDS");
  if (work.poll_memory && work.validate)
    return wrong("--poll-memory", "with --validate every byte differs, and is looked at behind a signal",
                 "leave one of them out");
  if (!show.plot_file.empty() && work.sizes.size() < 2)
    return wrong("--plot", "a curve needs more than one size", "add --all");
  if (!show.plot_file.empty() && work.forever)
    return wrong("--plot", "with --run_infinitely it would never be written", "leave one of them out");
  return {};
}

bool many_ways(const transport::FabricOptions& fabric) {
  return fabric.verbs.rails != 1 &&
         std::find(fabric.transports.begin(), fabric.transports.end(), "verbs") != fabric.transports.end();
}

Plan plan_of(const Tool& tool, const Work& work, std::uint64_t size, bool ways) {
  Plan plan;
  plan.size = size;
  if (work.duration > Clock::duration::zero()) {
    plan.duration_ns = std::chrono::nanoseconds(work.duration).count();
    plan.margin_ns = std::chrono::nanoseconds(work.margin).count();
  } else {
    plan.iterations = work.iterations;
    plan.warm_up = tool.latency ? std::min(most_warm_up, work.iterations) : 0;
  }
  plan.depth = tool.latency ? 1 : work.depth;
  plan.bidirectional = work.bidirectional;
  plan.validate = work.validate;
  plan.peak = work.peak;
  plan.poll_memory = work.poll_memory;
  // Over several rails later messages overtake: one that is behind on the slowest still has its place.
  const std::uint64_t kept = ways && !work.validate ? overtakers * plan.depth : plan.depth;
  const std::uint64_t apart = std::clamp<std::uint64_t>(most_window / plan.stride(), 1, kept);
  const std::uint64_t walking = std::max<std::uint64_t>(cycle / plan.stride(), 1);
  const bool in_turn = work.validate || ways || (tool.verb == Verb::send && size > cycle);
  plan.slots = static_cast<std::uint32_t>(tool.latency ? 1 : in_turn ? apart : walking);
  // A message that is too long to be sent lies in a place of its own until the receiver has taken it; in no
  // more of them than a cache holds.
  if (tool.verb == Verb::send && !ways && !work.validate && size > cycle) {
    const std::uint64_t cached = std::max<std::uint64_t>(cached_window / plan.stride(), few_places);
    plan.slots = static_cast<std::uint32_t>(std::min(apart, cached));
  }
  return plan;
}

std::uint64_t memory_of(const Tool& tool, const Work& work, bool ways) {
  std::uint64_t most = least_memory;
  for (const std::uint64_t size : work.sizes) {
    const Plan plan = plan_of(tool, work, size, ways);
    most = std::max(most, plan.stride() * plan.slots);
  }
  return most;
}

}  // namespace cenote::perf
