// Small kernels for tests, examples and measurements. One thread an element, a grid of one dimension.

__device__ unsigned cenote_counter;
__constant__ float cenote_factors[4] = {1.0f, 2.0f, 4.0f, 8.0f};

extern "C" __global__ void cenote_null() {}

extern "C" __global__ void cenote_saxpy(float a, const float* x, float* y, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = fmaf(a, x[i], y[i]);
}

extern "C" __global__ void cenote_vector_add(const float* a, const float* b, float* c, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) c[i] = a[i] + b[i];
}

extern "C" __global__ void cenote_fill(unsigned* to, unsigned value, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = value;
}

extern "C" __global__ void cenote_copy(unsigned* to, const unsigned* from, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[i];
}

// Scales by a module's constants, and counts its threads in a module's variable.
extern "C" __global__ void cenote_scale_and_count(float* x, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  x[i] *= cenote_factors[i % 4];
  atomicAdd(&cenote_counter, 1u);
}

// Stores behind the end of its buffer from one thread: an illegal address.
extern "C" __global__ void cenote_store_at(unsigned* to, unsigned long long index, unsigned thread) {
  if (blockIdx.x * blockDim.x + threadIdx.x == thread) to[index] = 1;
}

// Until somebody stores something else than 0 at *flag: as good as for ever.
extern "C" __global__ void cenote_spin(const volatile unsigned* flag) {
  while (*flag == 0) {
  }
}

// Arithmetic in registers: `rounds` times eight fused multiply-adds.
extern "C" __global__ void cenote_arithmetic(float* x, unsigned rounds) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  float v = x[i];
#pragma unroll 1
  for (unsigned r = 0; r < rounds; ++r) {
#pragma unroll
    for (unsigned k = 0; k < 8; ++k) v = fmaf(v, 0.999f, 0.25f);
  }
  x[i] = v;
}
