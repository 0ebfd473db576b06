// Executors over a fabric in one thread, for tests of the executor alone.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "collectives/executor.h"
#include "tests/unit/collectives/loopback.h"
#include "tests/unit/collectives/reference.h"

namespace cenote::collectives {

using loopback::LoopbackFabric;
using loopback::Network;

inline ExecutorOptions small_chunks() {
  ExecutorOptions options;
  options.link = {64, 2,
                  24};  // chunks of 64 bytes, two ahead, messages up to 24: everything takes many steps
  options.timeout = std::chrono::seconds(20);
  return options;
}

/// Some ranks in one thread. `step` gives each its turn.
class Group {
 public:
  Group(std::uint32_t ranks, std::uint64_t seed, ExecutorOptions options = small_chunks()) : net(seed) {
    std::vector<Bytes> addresses;
    for (std::uint32_t r = 0; r < ranks; ++r) addresses.push_back(LoopbackFabric::address_of(r));
    options.size = ranks;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      options.rank = r;
      executors.push_back(
          std::make_unique<Executor>(std::make_unique<LoopbackFabric>(net, r, ranks), addresses, options));
    }
  }

  Network net;
  std::vector<std::unique_ptr<Executor>> executors;

  /// Runs one operation that each rank has started, until each has ended.
  std::vector<Result<bool>> finish(
      const std::vector<Result<std::uint64_t>>& sequences, const std::function<void()>& between = [] {}) {
    std::vector<Result<bool>> out(executors.size(), false);
    for (bool busy = true; busy;) {
      busy = false;
      for (std::size_t r = 0; r < executors.size(); ++r) {
        if (executors[r] == nullptr || !out[r] || *out[r]) continue;
        out[r] = sequences[r] ? executors[r]->test(*sequences[r]) : Result<bool>(fail(sequences[r].error()));
        busy = true;
        between();
      }
    }
    return out;
  }
};

struct Buffers {
  Bytes send, recv;
};

inline Call allreduce_call(Buffers& of, std::uint64_t count, DataType type, ReduceOp op, bool in_place) {
  if (in_place) of.recv = of.send;
  auto& source = in_place ? of.recv : of.send;
  return {Operation::allreduce,
          count,
          type,
          op,
          0,
          MemoryDescription::of_host(source.data(), source.size()),
          MemoryDescription::of_host(of.recv.data(), of.recv.size()),
          in_place};
}

}  // namespace cenote::collectives
