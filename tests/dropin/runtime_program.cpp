// A program as nvcc makes it with `-cudart shared`, written by hand so that no toolkit is needed: it
// registers a fat binary and a kernel and launches through the runtime API. Prints one line and ends with 0
// when every GPU computed y = 2 x + y, and a child that it forked was refused.
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/kernels/embedded.h"

struct Dim3 {
  unsigned x, y, z;
};

extern "C" {
int cudaGetDeviceCount(int*);
int cudaSetDevice(int);
int cudaGetDeviceProperties(void*, int);
int cudaMalloc(void**, std::size_t);
int cudaFree(void*);
int cudaMemcpy(void*, const void*, std::size_t, int);
int cudaLaunchKernel(const void*, Dim3, Dim3, void**, std::size_t, void*);
int cudaDeviceSynchronize();
int cudaGetLastError();
const char* cudaGetErrorName(int);
int cudaGraphCreate(void**, unsigned);
void** __cudaRegisterFatBinary(void*);
void __cudaRegisterFatBinaryEnd(void**);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*);
void __cudaUnregisterFatBinary(void**);
}

namespace {

struct Wrapper {
  std::uint32_t magic = 0x466243b1, version = 1;
  const void* data = nullptr;
  const void* extra = nullptr;
};

// A container with one uncompressed PTX entry.
std::vector<unsigned char> container(std::string_view ptx) {
  const std::size_t payload = (ptx.size() + 1 + 7) / 8 * 8;
  std::vector<unsigned char> bytes(16 + 80 + payload);
  const auto put = [&](std::size_t at, auto value) { std::memcpy(bytes.data() + at, &value, sizeof value); };
  put(0, std::uint32_t{0xba55ed50});
  put(4, std::uint16_t{1});
  put(6, std::uint16_t{16});
  put(8, std::uint64_t{80 + payload});
  put(16, std::uint16_t{1});  // PTX
  put(18, std::uint16_t{0x0101});
  put(20, std::uint32_t{80});
  put(24, std::uint64_t{payload});
  put(16 + 24, std::uint16_t{0});
  put(16 + 26, std::uint16_t{9});
  put(16 + 28, std::uint32_t{75});
  put(16 + 40, std::uint64_t{0x11});
  put(16 + 56, std::uint64_t{0});
  std::memcpy(bytes.data() + 96, ptx.data(), ptx.size());
  return bytes;
}

const char kernel_symbol = 0;  // its address stands for the host stub

int failed(const char* what, int error) {
  std::printf("%s: %s\n", what, cudaGetErrorName(error));
  return 1;
}

int saxpy_on(int device) {
  constexpr unsigned n = 1000;
  if (const int e = cudaSetDevice(device)) return failed("cudaSetDevice", e);
  std::vector<float> x(n), y(n, 1.0F);
  for (unsigned i = 0; i < n; ++i) x[i] = static_cast<float>(i);
  void *dx = nullptr, *dy = nullptr;
  if (const int e = cudaMalloc(&dx, n * 4)) return failed("cudaMalloc", e);
  if (const int e = cudaMalloc(&dy, n * 4)) return failed("cudaMalloc", e);
  if (const int e = cudaMemcpy(dx, x.data(), n * 4, 1)) return failed("cudaMemcpy", e);
  if (const int e = cudaMemcpy(dy, y.data(), n * 4, 4)) return failed("cudaMemcpy", e);
  float a = 2.0F;
  unsigned count = n;
  void* args[] = {&a, &dx, &dy, &count};
  if (const int e = cudaLaunchKernel(&kernel_symbol, {(n + 127) / 128, 1, 1}, {128, 1, 1}, args, 0, nullptr))
    return failed("cudaLaunchKernel", e);
  if (const int e = cudaDeviceSynchronize()) return failed("cudaDeviceSynchronize", e);
  if (const int e = cudaMemcpy(y.data(), dy, n * 4, 4)) return failed("cudaMemcpy", e);
  for (unsigned i = 0; i < n; ++i) {
    if (y[i] != 2.0F * static_cast<float>(i) + 1.0F) return std::printf("y[%u] is %g\n", i, y[i]), 1;
  }
  if (const int e = cudaFree(dx)) return failed("cudaFree", e);
  return cudaFree(dy);
}

}  // namespace

/// CUDA's answer to a child that its parent's runtime came with: cudaErrorInitializationError, at once.
static bool child_is_refused() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a call that hangs
    int devices = 0;
    void* memory = nullptr;
    const bool refused =
        cudaGetDeviceCount(&devices) == 3 && cudaSetDevice(0) == 3 && cudaMalloc(&memory, 1) == 3;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int main() {
  const auto image = container(cenote::cuda::kernels::basic_ptx());
  Wrapper wrapper;
  wrapper.data = image.data();
  void** handle = __cudaRegisterFatBinary(&wrapper);
  char name[] = "cenote_saxpy";
  __cudaRegisterFunction(handle, &kernel_symbol, name, name, -1, nullptr, nullptr, nullptr, nullptr, nullptr);
  __cudaRegisterFatBinaryEnd(handle);

  int devices = 0;
  if (const int e = cudaGetDeviceCount(&devices)) return failed("cudaGetDeviceCount", e);
  std::string names;
  for (int device = 0; device < devices; ++device) {
    if (saxpy_on(device) != 0) return 1;
    alignas(8) char properties[1008];
    if (const int e = cudaGetDeviceProperties(properties, device))
      return failed("cudaGetDeviceProperties", e);
    names += (names.empty() ? "" : ", ") + std::string(properties);
  }
  if (!child_is_refused()) return std::printf("a child of fork is not refused\n"), 1;
  void* graph = nullptr;
  if (cudaGraphCreate(&graph, 0) != 801 || cudaGetLastError() != 801)
    return std::printf("graphs are not refused\n"), 1;
  __cudaUnregisterFatBinary(handle);
  std::printf("saxpy is right on %d devices: %s\n", devices, names.c_str());
  return 0;
}
