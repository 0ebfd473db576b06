// place: where a request goes, and why; or why it goes nowhere. A pure function: it decides, nothing changes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pool/scheduler/snapshot.h"
#include "pool/state/state.h"

namespace cenote::pool {

struct PlacementRequest {
  std::uint32_t gpus = 1;
  std::string model;               ///< "" = any
  std::uint64_t memory_bytes = 0;  ///< of each GPU; 0 = whole devices, which nobody shares
};

struct Placement {
  std::vector<Share> shares;  ///< ready for a Grant: epochs are the devices' next ones
  std::string reason;
};

/// Distinct devices, fewest agents first, then best fit. Errors: invalid_argument when this pool can never
/// serve the request ("asks 9 GPUs, the pool has 4"), resource_exhausted when it cannot now ("no free GPU: 4
/// of 4 leased, the next lease ends in 12 s").
Result<Placement> place(const State& state, const LoadSnapshot& load, const PlacementRequest& request);

}  // namespace cenote::pool
