// Source of scale.fatbin, a fat binary as nvcc 13 makes it by default (its texts are Zstandard):
//   nvcc -fatbin -O3 -gencode arch=compute_75,code=[sm_75,compute_75] -o scale.fatbin scale.cu
extern "C" __global__ void cenote_sample_scale(float* values, float factor, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = values[i] * factor;
}
