// The words that algorithms are written in.
#pragma once

#include <bit>

#include "collectives/algorithms/catalogue.h"

namespace cenote::collectives::steps {

inline Index fixed(std::uint32_t value) { return {value, 0, 0}; }
/// (base + i) mod modulus and (base - i) mod modulus.
inline Index rising(std::uint32_t base, std::uint32_t modulus) { return {base % modulus, 1, modulus}; }
inline Index falling(std::uint32_t base, std::uint32_t modulus) {
  return {base % modulus, modulus - 1, modulus};
}

inline Slice slice(Buffer buffer, Index first = fixed(0), std::uint32_t blocks = 1) {
  return {buffer, first, blocks};
}

inline Step send(std::uint32_t to, Slice src) { return {StepKind::send, fixed(to), {}, src}; }
inline Step receive(std::uint32_t from, Slice dst) { return {StepKind::receive, fixed(from), dst, {}}; }
inline Step reduce(std::uint32_t from, Slice dst, Slice src) {
  return {StepKind::reduce, fixed(from), dst, src};
}
inline Step copy(Slice dst, Slice src) { return {StepKind::copy, {}, dst, src}; }
inline Step finish(Slice dst) { return {StepKind::finish, {}, dst, {}}; }

inline Schedule start(Operation operation, std::string_view algorithm, const Shape& shape,
                      std::uint32_t parts) {
  return {operation, std::string(algorithm), shape.rank, shape.ranks, shape.root, parts, {}};
}

/// How N ranks fold onto the P of a power of two: the first 2 (N - P) ranks pair up, the even one of a pair
/// stands for both as virtual rank rank / 2; the others follow.
struct Fold {
  std::uint32_t power;  ///< P
  std::uint32_t extra;  ///< N - P pairs

  explicit Fold(std::uint32_t ranks) : power(std::bit_floor(ranks)), extra(ranks - power) {}
  [[nodiscard]] bool paired(std::uint32_t rank) const { return rank < 2 * extra; }
  [[nodiscard]] bool idle(std::uint32_t rank) const { return paired(rank) && rank % 2 == 1; }
  [[nodiscard]] std::uint32_t virtual_of(std::uint32_t rank) const {
    return paired(rank) ? rank / 2 : rank - extra;
  }
  [[nodiscard]] std::uint32_t real_of(std::uint32_t v) const { return v < extra ? 2 * v : v + extra; }
};

}  // namespace cenote::collectives::steps
