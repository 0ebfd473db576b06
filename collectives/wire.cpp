#include "collectives/wire.h"

#include <fmt/format.h>

namespace cenote::collectives::wire {

std::string text(const CallHeader& call) {
  const auto operation = static_cast<Operation>(call.operation);
  if (operation == Operation::barrier) return "barrier";
  auto out = fmt::format("{} of {} {}", to_string(operation), call.count,
                         to_string(static_cast<DataType>(call.type)));
  if (operation == Operation::allreduce)
    out += fmt::format(" by {}", to_string(static_cast<ReduceOp>(call.op)));
  if (operation == Operation::broadcast) out += fmt::format(" from rank {}", call.root);
  return out;
}

}  // namespace cenote::collectives::wire
