// What a collective must give, to the bit: reductions replay the order that the verifier proved.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "collectives/reduce/reduce.h"
#include "collectives/reduction_order.h"
#include "runtime/bytes.h"

namespace cenote::collectives {

/// Numbers whose sums depend on the order: magnitudes far apart, both signs, now and then a NaN or a zero.
inline Bytes shard(DataType type, std::uint64_t count, std::uint32_t rank, std::uint64_t seed = 0) {
  std::mt19937_64 random(seed * 1000 + rank + 1);
  Bytes out(count * size_of(type));
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto bits = random();
    const double value =
        std::ldexp(static_cast<double>(static_cast<std::int32_t>(bits)), static_cast<int>(bits >> 60) - 31);
    auto* to = out.data() + i * size_of(type);
    const auto put = [to](auto x) { std::memcpy(to, &x, sizeof x); };
    switch (type) {
      case CENOTE_FLOAT32:
        put(static_cast<float>(value));
        break;
      case CENOTE_FLOAT64:
        put(value / 3);
        break;
      case CENOTE_FLOAT16:
        put(static_cast<std::uint16_t>((bits & 0x83ff) | ((bits >> 20 & 15) + 6) << 10));
        break;
      case CENOTE_BFLOAT16:
        put(static_cast<std::uint16_t>((bits & 0x807f) | ((bits >> 20 & 15) + 120) << 7));
        break;
      case CENOTE_INT32:
        put(static_cast<std::int32_t>(bits >> 16));
        break;
      case CENOTE_INT64:
        put(static_cast<std::int64_t>(bits));
        break;
    }
  }
  return out;
}

inline Bytes reduced(DataType type, ReduceOp op, std::string_view algorithm, std::vector<Bytes> shards) {
  const auto ranks = static_cast<std::uint32_t>(shards.size());
  const auto size = size_of(type);
  const auto order = reduction_order(op, algorithm, ranks, shards[0].size() / size, type);
  Bytes out(shards[0].size());
  for (const auto& range : order.value()) {
    const auto at = range.first * size;
    const auto bytes = range.count * size;
    for (const auto& step : range.steps) {
      (void)reduce(shards[step.dst].data() + at, shards[step.src].data() + at, bytes, type, op);
    }
    if (op == CENOTE_AVG) divide_kernel(type)(shards[range.result].data() + at, range.count, ranks);
    std::memcpy(out.data() + at, shards[range.result].data() + at, bytes);
  }
  return out;
}

}  // namespace cenote::collectives
