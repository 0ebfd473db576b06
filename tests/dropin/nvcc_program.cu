// An ordinary CUDA program: constant memory, shared memory, streams, events, pinned memory.
#include <cuda_runtime.h>

#include <cstdio>

__constant__ float offset[1];

__global__ void block_sums(int n, const float* x, float* sums) {
  __shared__ float part[128];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  part[threadIdx.x] = i < n ? x[i] + offset[0] : 0.0f;
  __syncthreads();
  for (int half = 64; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

#define CHECK(call)                                   \
  if (const cudaError_t e = (call); e != cudaSuccess) \
  return std::printf("%s: %s\n", #call, cudaGetErrorString(e)), 1

int main() {
  constexpr int n = 1 << 14, blocks = n / 128;
  float *x, *sums, *pinned;
  CHECK(cudaMalloc(&x, n * sizeof(float)));
  CHECK(cudaMalloc(&sums, blocks * sizeof(float)));
  CHECK(cudaMallocHost(&pinned, n * sizeof(float)));
  for (int i = 0; i < n; ++i) pinned[i] = float(i % 7);
  const float one = 1.0f;
  CHECK(cudaMemcpyToSymbol(offset, &one, sizeof one));
  cudaStream_t stream;
  cudaEvent_t begin, end;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  CHECK(cudaMemcpyAsync(x, pinned, n * sizeof(float), cudaMemcpyHostToDevice, stream));
  CHECK(cudaEventRecord(begin, stream));
  block_sums<<<blocks, 128, 0, stream>>>(n, x, sums);
  CHECK(cudaGetLastError());
  CHECK(cudaEventRecord(end, stream));
  CHECK(cudaMemcpyAsync(pinned, sums, blocks * sizeof(float), cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  float ms = -1;
  CHECK(cudaEventElapsedTime(&ms, begin, end));
  float total = 0, wanted = 0;
  for (int i = 0; i < blocks; ++i) total += pinned[i];
  for (int i = 0; i < n; ++i) wanted += float(i % 7) + 1.0f;
  if (total != wanted || ms < 0) return std::printf("sum %g, wanted %g, %g ms\n", total, wanted, ms), 1;
  std::printf("the sums are right\n");
  return 0;
}
