// Schedule: a collective as data. For one rank, a short program of steps over slices of named buffers. An
// algorithm makes it (algorithms/), the verifier proves it, a plan compiles it (plan.h), the executor runs
// it.
//
// Buffers. An operation on `count` elements a rank sees `input`, `output` and `scratch`, each made of one or
// more vectors of `count` elements (`vectors()` below). Each vector is cut into `parts` blocks: element x of
// a vector with count = q * parts + r lies in the blocks of q + 1 elements first (there are r of them), then
// in those of q. Blocks may be empty. Steps name blocks, never elements, so a schedule does not depend on the
// count.
//
// Meaning. Steps run as if one after the other, in the order written. In truth a step waits only for the
// earlier steps that touch the same elements (a writer among them), and for the earlier steps with the same
// peer in the same direction: whatever is independent overlaps. The n-th send of A to B meets the n-th
// receive (or reduce) of B from A; both must name equally many elements. A sender may run at least one chunk
// ahead of its receiver.
//
// Reductions. dst = op(src, incoming), in exactly this association. The reductions are commutative bit for
// bit (reduce/reduce.h), so the association alone decides the bits: they are the same whatever the transport,
// the timing or the processor.
//
// Repeats. A Repeat runs its steps `times` times; peers and block numbers may move with the iteration i as
// (base + stride * i) mod modulus. A ring over 16,384 ranks is a few lines.
//
// A pure value: copy, compare, print, hash. Nothing here knows a transport, an element type or a rank's
// memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/result.h"
#include "runtime/types.h"

namespace cenote::collectives {

using cenote::to_string;  // of types and reductions, beside our own

enum class Operation : std::uint8_t { allreduce, allgather, broadcast, barrier };
std::string_view to_string(Operation operation);

enum class Buffer : std::uint8_t { input, output, scratch };
std::string_view to_string(Buffer buffer);

enum class StepKind : std::uint8_t {
  send,     ///< `src` to `peer`
  receive,  ///< from `peer` into `dst`
  reduce,   ///< dst = op(src, what `peer` sends); dst and src are the same slice or disjoint
  copy,     ///< dst = src
  finish,   ///< the last touch of a reduced slice `dst` (an average divides here), once for each element
};
std::string_view to_string(StepKind kind);

/// (base + stride * i) mod modulus for iteration i; modulus 0 = the constant `base`.
struct Index {
  std::uint32_t base = 0;
  std::uint32_t stride = 0;
  std::uint32_t modulus = 0;

  [[nodiscard]] std::uint32_t at(std::uint32_t iteration) const {
    if (modulus == 0) return base;
    return static_cast<std::uint32_t>((base + std::uint64_t{stride} * iteration) % modulus);
  }
  bool operator==(const Index&) const = default;
};

/// Blocks first, first + 1, ... of a buffer; they do not wrap around.
struct Slice {
  Buffer buffer = Buffer::output;
  Index first{};
  std::uint32_t blocks = 1;
  bool operator==(const Slice&) const = default;
};

struct Step {
  StepKind kind = StepKind::copy;
  Index peer{};  ///< send, receive, reduce
  Slice dst{};   ///< all but send
  Slice src{};   ///< send, reduce, copy
  bool operator==(const Step&) const = default;
};

struct Repeat {
  std::uint32_t times = 1;
  std::vector<Step> steps;
  bool operator==(const Repeat&) const = default;
};

struct Schedule {
  Operation operation = Operation::allreduce;
  std::string algorithm;
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  std::uint32_t root = 0;   ///< broadcast
  std::uint32_t parts = 1;  ///< blocks of one vector; the same at every rank
  std::vector<Repeat> program;

  bool operator==(const Schedule&) const = default;

  /// How many vectors of `count` elements that buffer holds (0: it may not be named).
  [[nodiscard]] std::uint32_t vectors(Buffer buffer) const;
  /// A few lines for people: a header, then a step a line.
  [[nodiscard]] std::string text() const;
  /// Of what was written, the same on every machine; for plans that ranks compare. FNV-1a, 64 bits.
  [[nodiscard]] std::uint64_t hash() const;
  /// Everything that can be said without the other ranks: peers are ranks and not oneself, blocks exist, no
  /// modulus runs out of its buffer, nobody writes the input out of turn. Errors: invalid_argument, which
  /// names the step.
  [[nodiscard]] Result<void> check() const;
};

/// First element of block `block` in a vector of `count` elements cut into `parts`; block == parts gives
/// count.
[[nodiscard]] std::uint64_t block_offset(std::uint64_t count, std::uint32_t parts, std::uint32_t block);

}  // namespace cenote::collectives
