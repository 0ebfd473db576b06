// Plan: a schedule compiled for one element count. Steps become instances with element offsets, repeats are
// unrolled, empty slices and copies onto themselves are dropped, and every instance knows which earlier ones
// it must follow. The verifier and the executor run the same plan by the same rule (`ready`), so what is
// proved is what runs.
//
// Instances make progress in chunks, from front to back. They wait in flows: one for each peer and direction,
// one for the local steps; only the front of a flow may move.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collectives/schedule.h"

namespace cenote::collectives {

/// An earlier instance that touches the same elements: its element e is our element e - shift.
struct Dependency {
  std::uint32_t instance = 0;
  std::int64_t shift = 0;
  std::uint64_t length = 0;
};

struct Instance {
  StepKind kind = StepKind::copy;
  Buffer dst_buffer = Buffer::output;
  Buffer src_buffer = Buffer::output;
  std::uint32_t peer = 0;
  std::uint64_t dst = 0;  ///< elements into its buffer
  std::uint64_t src = 0;
  std::uint64_t length = 0;  ///< elements, never 0
  std::uint32_t first_dependency = 0;
  std::uint32_t dependencies = 0;
};

enum class FlowKind : std::uint8_t { local, send, receive };

struct Flow {
  FlowKind kind = FlowKind::local;
  std::uint32_t peer = 0;
  std::vector<std::uint32_t> instances;
};

struct Plan {
  Operation operation = Operation::allreduce;
  std::string algorithm;
  std::uint64_t count = 0;
  bool in_place = false;
  bool uses_scratch = false;
  std::vector<Instance> instances;
  std::vector<Dependency> dependencies;
  std::vector<Flow> flows;

  /// Whether elements [begin, end) of `instance` may be touched, where done[i] elements of instance i are
  /// done.
  [[nodiscard]] bool ready(const Instance& instance, std::uint64_t begin, std::uint64_t end,
                           std::span<const std::uint64_t> done) const {
    for (std::uint32_t k = 0; k < instance.dependencies; ++k) {
      const auto& dependency = dependencies[instance.first_dependency + k];
      const auto from = static_cast<std::int64_t>(begin) + dependency.shift;
      const auto to = static_cast<std::int64_t>(end) + dependency.shift;
      if (to <= 0 || from >= static_cast<std::int64_t>(dependency.length)) continue;
      const auto need = static_cast<std::uint64_t>(to) < dependency.length ? static_cast<std::uint64_t>(to)
                                                                           : dependency.length;
      if (done[dependency.instance] < need) return false;
    }
    return true;
  }
};

/// `in_place`: the input is the same memory as the output (for an allgather, as this rank's vector of it).
/// Errors: those of Schedule::check.
Result<Plan> compile(const Schedule& schedule, std::uint64_t count, bool in_place);

}  // namespace cenote::collectives
