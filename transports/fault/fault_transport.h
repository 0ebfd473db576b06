// The fault transport: wraps any other and treats its traffic as badly as the contract allows, on a seed
// (fault_plan.h). Its peers need not be wrapped, and nothing of its own goes over the wire: addresses, keys
// and regions are those of the transport inside.
//
// What it may do. Bytes of puts land late, in pieces, twice, and in any order where they do not overlap; gets
// and atomics go before or after them likewise. Signals come after all bytes that were put before, and
// messages too, in their order. Completions, signals and messages are told late. A blow ends an endpoint with
// a named error (lost, damaged), all of them as a dying process would (killed), or is silence (frozen): then
// calls are taken and nothing comes of them.
//
// Lateness is counted in steps: calls of progress(), poll(), receive(), signal(). Nobody sleeps while
// something is held back. close() lets go what is held, as far as the transport inside takes it.
//
// Slow, and allocates: for tests.
#pragma once

#include <memory>

#include "transports/fault/fault_plan.h"
#include "transports/transport.h"

namespace cenote::transport {

namespace fault {
struct MemberState;
}

/// One that injects faults into all of its transports: the plan counts the operations of all, and when it is
/// killed or frozen, all are. `tally`, which outlives them and their endpoints, may be null. One thread at a
/// time.
class FaultMember {
 public:
  explicit FaultMember(const FaultPlan& plan, FaultTally* tally = nullptr);
  [[nodiscard]] std::unique_ptr<Transport> wrap(std::unique_ptr<Transport> inside) const;

 private:
  std::shared_ptr<fault::MemberState> state_;
};

}  // namespace cenote::transport
