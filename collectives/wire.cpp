#include "collectives/wire.h"

#include <fmt/format.h>

namespace cenote::collectives::wire {

std::uint64_t packed(const CallHeader& call) {
  constexpr std::uint64_t a_call = std::uint64_t{1} << 56;
  return a_call | std::uint64_t{call.op} << 48 | std::uint64_t{call.type} << 40 |
         std::uint64_t{call.operation} << 32 | call.root;
}

CallHeader unpacked(std::uint64_t number, std::uint64_t count) {
  CallHeader call;
  call.count = count;
  call.root = static_cast<std::uint32_t>(number);
  call.operation = static_cast<std::uint8_t>(number >> 32);
  call.type = static_cast<std::uint8_t>(number >> 40);
  call.op = static_cast<std::uint8_t>(number >> 48);
  return call;
}

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
