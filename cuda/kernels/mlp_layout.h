// Where the parameters of the multi-layer perceptron of mlp.cu lie: all in one flat buffer of floats, in this
// order, so that one allreduce sums every gradient and one kernel updates every parameter. Gradients and
// velocities have the same layout. Plain C++: for the host and for nvcc.
#pragma once

#include <cstddef>

namespace cenote::cuda::kernels {

/// inputs -> hidden (ReLU) -> outputs (softmax). Matrices are row-major, [from][to].
struct MlpLayout {
  unsigned inputs = 64;
  unsigned hidden = 64;
  unsigned outputs = 10;

  [[nodiscard]] constexpr std::size_t weights1() const { return 0; }  ///< [inputs][hidden]
  [[nodiscard]] constexpr std::size_t bias1() const { return std::size_t{inputs} * hidden; }  ///< [hidden]
  [[nodiscard]] constexpr std::size_t weights2() const { return bias1() + hidden; }  ///< [hidden][outputs]
  [[nodiscard]] constexpr std::size_t bias2() const {
    return weights2() + std::size_t{hidden} * outputs;
  }                                                                               ///< [outputs]
  [[nodiscard]] constexpr std::size_t size() const { return bias2() + outputs; }  ///< floats in all
};

/// Blocks of the matrix kernels are tile x tile threads, each making one element.
inline constexpr unsigned mlp_tile = 16;
/// Threads of a block of all other kernels; cenote_mlp_sum takes exactly one block of so many.
inline constexpr unsigned mlp_block = 256;
constexpr unsigned blocks_for(std::size_t elements, unsigned per_block) {
  return static_cast<unsigned>((elements + per_block - 1) / per_block);
}

}  // namespace cenote::cuda::kernels
