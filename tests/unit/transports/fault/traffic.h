// Traffic of every kind between two transports, each thing that is told checked when it is told: what has
// come, what is complete, and why it ended.
#pragma once

#include <string>

#include "tests/unit/transports/pair.h"
#include "transports/fault/fault_transport.h"

namespace cenote::transport::test {

struct Outcome {
  std::string wrong;   ///< the first promise that was broken; empty: none
  bool right = false;  ///< everything came
  FaultTally did;
};

/// Member 0 and member 1 of `plan` put, get, add and send to each other, `operations` times each, until all
/// has come or both have failed; with a frozen member, until nothing moves any more.
Outcome traffic(const Kind& inside, const FaultPlan& plan, std::uint32_t operations,
                Clock::duration connect_in = 400ms);

}  // namespace cenote::transport::test
