// Training of a multi-layer perceptron. Every sum has a fixed order (no floating-point atomics), and every
// product that is added is one fused multiply-add, so results are the same bits on every device that rounds
// as IEEE 754 says. Matrices are row-major. Layout of the parameters and sizes of blocks: mlp_layout.h.
#include "mlp_layout.h"

using cenote::cuda::kernels::mlp_block;
using cenote::cuda::kernels::mlp_tile;

namespace {

// One element of C = A B, where A is [m][k] and B is [k][n] as `a(row, k)` and `b(k, column)` read them. All
// threads of the block take part; k runs upwards.
template <class A, class B>
__device__ float tile_product(unsigned m, unsigned n, unsigned k, A a, B b) {
  __shared__ float left[mlp_tile][mlp_tile];
  __shared__ float right[mlp_tile][mlp_tile];
  const unsigned row = blockIdx.y * mlp_tile + threadIdx.y, column = blockIdx.x * mlp_tile + threadIdx.x;
  float sum = 0.0f;
  for (unsigned first = 0; first < k; first += mlp_tile) {
    const unsigned left_k = first + threadIdx.x, right_k = first + threadIdx.y;
    left[threadIdx.y][threadIdx.x] = row < m && left_k < k ? a(row, left_k) : 0.0f;
    right[threadIdx.y][threadIdx.x] = column < n && right_k < k ? b(right_k, column) : 0.0f;
    __syncthreads();
    const unsigned count = min(mlp_tile, k - first);
    for (unsigned i = 0; i < count; ++i) sum = fmaf(left[threadIdx.y][i], right[i][threadIdx.x], sum);
    __syncthreads();
  }
  return sum;
}

}  // namespace

// y[rows][outputs] = x[rows][inputs] w[inputs][outputs] + bias[outputs], then max(0, y) where relu != 0.
// Grid: (outputs / tile, rows / tile), rounded up. Block: (tile, tile).
extern "C" __global__ void cenote_mlp_forward(const float* x, const float* w, const float* bias, float* y,
                                              unsigned rows, unsigned inputs, unsigned outputs,
                                              unsigned relu) {
  const float sum = tile_product(
      rows, outputs, inputs, [=](unsigned r, unsigned k) { return x[r * inputs + k]; },
      [=](unsigned k, unsigned c) { return w[k * outputs + c]; });
  const unsigned row = blockIdx.y * mlp_tile + threadIdx.y, column = blockIdx.x * mlp_tile + threadIdx.x;
  if (row >= rows || column >= outputs) return;
  const float value = sum + bias[column];
  y[row * outputs + column] = relu != 0 && !(value > 0.0f) ? 0.0f : value;
}

// loss[rows] = cross entropy of softmax(logits[rows][outputs]) and labels[rows]; gradient[rows][outputs] =
// its derivative by the logits (not divided by the batch: the update does that). One thread a row.
extern "C" __global__ void cenote_mlp_softmax_loss(const float* logits, const int* labels, float* gradient,
                                                   float* loss, unsigned rows, unsigned outputs) {
  const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* z = logits + row * outputs;
  float* g = gradient + row * outputs;
  float largest = z[0];
  for (unsigned i = 1; i < outputs; ++i) largest = fmaxf(largest, z[i]);
  float sum = 0.0f;
  for (unsigned i = 0; i < outputs; ++i) {
    g[i] = expf(z[i] - largest);
    sum += g[i];
  }
  const unsigned label = static_cast<unsigned>(labels[row]);
  for (unsigned i = 0; i < outputs; ++i) g[i] = g[i] / sum - (i == label ? 1.0f : 0.0f);
  loss[row] = logf(sum) + largest - z[label];
}

// dw[inputs][outputs] = transpose(x[rows][inputs]) dy[rows][outputs]. Grid: (outputs / tile, inputs / tile),
// rounded up.
extern "C" __global__ void cenote_mlp_weight_gradient(const float* x, const float* dy, float* dw,
                                                      unsigned rows, unsigned inputs, unsigned outputs) {
  const float sum = tile_product(
      inputs, outputs, rows, [=](unsigned i, unsigned k) { return x[k * inputs + i]; },
      [=](unsigned k, unsigned c) { return dy[k * outputs + c]; });
  const unsigned row = blockIdx.y * mlp_tile + threadIdx.y, column = blockIdx.x * mlp_tile + threadIdx.x;
  if (row < inputs && column < outputs) dw[row * outputs + column] = sum;
}

// db[outputs] = sum of the rows of dy[rows][outputs], from the first to the last. One thread an output.
extern "C" __global__ void cenote_mlp_bias_gradient(const float* dy, float* db, unsigned rows,
                                                    unsigned outputs) {
  const unsigned column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= outputs) return;
  float sum = 0.0f;
  for (unsigned r = 0; r < rows; ++r) sum += dy[r * outputs + column];
  db[column] = sum;
}

// dx[rows][inputs] = dy[rows][outputs] transpose(w[inputs][outputs]), and 0 where the activation
// x[rows][inputs] is not above 0 (the derivative of ReLU). Grid: (inputs / tile, rows / tile), rounded up.
extern "C" __global__ void cenote_mlp_input_gradient(const float* dy, const float* w, const float* x,
                                                     float* dx, unsigned rows, unsigned inputs,
                                                     unsigned outputs) {
  const float sum = tile_product(
      rows, inputs, outputs, [=](unsigned r, unsigned k) { return dy[r * outputs + k]; },
      [=](unsigned k, unsigned i) { return w[i * outputs + k]; });
  const unsigned row = blockIdx.y * mlp_tile + threadIdx.y, column = blockIdx.x * mlp_tile + threadIdx.x;
  if (row < rows && column < inputs) dx[row * inputs + column] = x[row * inputs + column] > 0.0f ? sum : 0.0f;
}

// velocity = momentum * velocity + scale * gradient; parameters -= rate * velocity. scale is 1 / (rows over
// all shards).
extern "C" __global__ void cenote_mlp_update(float* parameters, float* velocity, const float* gradient,
                                             unsigned count, float rate, float momentum, float scale) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float v = fmaf(momentum, velocity[i], scale * gradient[i]);
  velocity[i] = v;
  parameters[i] = fmaf(-rate, v, parameters[i]);
}

// *correct += rows whose largest logit (the first of equals) is that of their label. One thread a row.
extern "C" __global__ void cenote_mlp_count_correct(const float* logits, const int* labels, unsigned* correct,
                                                    unsigned rows, unsigned outputs) {
  __shared__ unsigned in_block;
  if (threadIdx.x == 0) in_block = 0;
  __syncthreads();
  const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {
    unsigned best = 0;
    for (unsigned i = 1; i < outputs; ++i)
      if (logits[row * outputs + i] > logits[row * outputs + best]) best = i;
    if (best == static_cast<unsigned>(labels[row])) atomicAdd(&in_block, 1u);
  }
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(correct, in_block);
}

// *sum = the sum of values[count]: thread t adds values t, t + 256, ...; then halves are added to halves. One
// block of 256.
extern "C" __global__ void cenote_mlp_sum(const float* values, float* sum, unsigned count) {
  __shared__ float partial[mlp_block];
  float mine = 0.0f;
  for (unsigned i = threadIdx.x; i < count; i += mlp_block) mine += values[i];
  partial[threadIdx.x] = mine;
  for (unsigned half = mlp_block / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *sum = partial[0];
}
