// Registration (what nvcc's generated code calls) and launches.
#include <algorithm>
#include <vector>

#include "pool/dropin/cudart/runtime.h"

using namespace cenote;
using namespace cenote::cudart;
using cuda::FunctionAttribute;
using cuda::Stream;

namespace {

const Stream per_thread_stream = reinterpret_cast<Stream>(2);  // CU_STREAM_PER_THREAD
Stream or_per_thread(Stream stream) { return stream == nullptr ? per_thread_stream : stream; }

struct CallConfiguration {
  Dim3 grid, block;
  std::size_t shared_bytes;
  Stream stream;
};
thread_local std::vector<CallConfiguration> call_stack;

int launch(const void* symbol, Dim3 grid, Dim3 block, void** args, std::size_t shared_bytes, Stream stream) {
  cuda::Function function = nullptr;
  CENOTE_RT_TRY(Runtime::get().function(symbol, &function));
  const cuda::LaunchConfig config{
      {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, static_cast<unsigned>(shared_bytes)};
  const auto status = Runtime::get().driver().launch_kernel(function, config, stream, args);
  // The runtime has a code of its own for a grid or block that the device cannot have.
  return remember(status == cuda::Status::invalid_value ? static_cast<int>(invalid_configuration)
                                                        : static_cast<int>(status));
}

int launch_ex(const LaunchConfigC* config, const void* symbol, void** args, Stream stream) {
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    const auto& attribute = config->attributes[i];
    if (attribute.id == launch_attribute_cooperative && attribute.value.cooperative != 0)
      return say_unserved("a cooperative launch");
  }
  return launch(symbol, config->grid, config->block, args, config->dynamic_shared_bytes, stream);
}

int device_attribute(cuda::DeviceAttribute which) {
  int value = 0;
  Runtime::get().driver().device_get_attribute(&value, which, Runtime::get().current_device());
  return value;
}

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier): the names that nvcc's code calls
CENOTE_RT void** __cudaRegisterFatBinary(void* wrapper) {
  return reinterpret_cast<void**>(Runtime::get().add_fatbin(wrapper));
}
CENOTE_RT void __cudaRegisterFatBinaryEnd(void** /*handle*/) {}
CENOTE_RT void __cudaUnregisterFatBinary(void** handle) {
  Runtime::get().remove_fatbin(reinterpret_cast<Fatbin*>(handle));
}
CENOTE_RT void __cudaRegisterFunction(void** handle, const char* host_symbol, char* /*device_symbol*/,
                                      const char* name, int /*thread_limit*/, void* /*tid*/, void* /*bid*/,
                                      void* /*block*/, void* /*grid*/, int* /*warp_size*/) {
  Runtime::get().add_kernel(reinterpret_cast<Fatbin*>(handle), host_symbol, name);
}
CENOTE_RT void __cudaRegisterVar(void** handle, char* host_symbol, char* /*device_symbol*/, const char* name,
                                 int /*ext*/, std::size_t /*size*/, int /*constant*/, int /*global*/) {
  Runtime::get().add_variable(reinterpret_cast<Fatbin*>(handle), host_symbol, name);
}
CENOTE_RT void __cudaRegisterManagedVar(void** /*handle*/, void** /*host*/, char* /*device*/,
                                        const char* /*name*/, int /*ext*/, std::size_t /*size*/,
                                        int /*constant*/, int /*global*/) {
  say_unserved("a __managed__ variable");
}
CENOTE_RT char __cudaInitModule(void** /*handle*/) { return 1; }

CENOTE_RT unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, std::size_t shared_bytes,
                                               Stream stream) {
  call_stack.push_back({grid, block, shared_bytes, stream});
  return 0;
}
CENOTE_RT int __cudaPopCallConfiguration(Dim3* grid, Dim3* block, std::size_t* shared_bytes, void* stream) {
  if (call_stack.empty()) return remember(missing_configuration);
  const auto top = call_stack.back();
  call_stack.pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  *static_cast<Stream*>(stream) = top.stream;
  return success;
}
CENOTE_RT int __cudaGetKernel(void** kernel, const void* host_symbol) {
  auto* found = Runtime::get().kernel(host_symbol);
  if (found == nullptr) return remember(invalid_device_function);
  *kernel = found;
  return success;
}
// NOLINTEND(bugprone-reserved-identifier)
CENOTE_RT int cudaGetKernel(void** kernel, const void* host_symbol) {
  return __cudaGetKernel(kernel, host_symbol);
}

CENOTE_RT int cudaLaunchKernel(const void* symbol, Dim3 grid, Dim3 block, void** args, std::size_t shared,
                               Stream stream) {
  return launch(symbol, grid, block, args, shared, stream);
}
CENOTE_RT int cudaLaunchKernel_ptsz(const void* symbol, Dim3 grid, Dim3 block, void** args,
                                    std::size_t shared, Stream stream) {
  return launch(symbol, grid, block, args, shared, or_per_thread(stream));
}
// NOLINTBEGIN(bugprone-reserved-identifier): the names that nvcc's code calls
CENOTE_RT int __cudaLaunchKernel(void* kernel, Dim3 grid, Dim3 block, void** args, std::size_t shared,
                                 Stream stream) {
  return launch(kernel, grid, block, args, shared, stream);
}
CENOTE_RT int __cudaLaunchKernel_ptsz(void* kernel, Dim3 grid, Dim3 block, void** args, std::size_t shared,
                                      Stream stream) {
  return launch(kernel, grid, block, args, shared, or_per_thread(stream));
}
// NOLINTEND(bugprone-reserved-identifier)
CENOTE_RT int cudaLaunchKernelExC(const LaunchConfigC* config, const void* symbol, void** args) {
  if (config == nullptr) return remember(invalid_value);
  return launch_ex(config, symbol, args, config->stream);
}
CENOTE_RT int cudaLaunchKernelExC_ptsz(const LaunchConfigC* config, const void* symbol, void** args) {
  if (config == nullptr) return remember(invalid_value);
  return launch_ex(config, symbol, args, or_per_thread(config->stream));
}

CENOTE_RT int cudaFuncGetAttributes(FuncAttributes* attributes, const void* symbol) {
  if (attributes == nullptr) return remember(invalid_value);
  cuda::Function function = nullptr;
  CENOTE_RT_TRY(Runtime::get().function(symbol, &function));
  auto& driver = Runtime::get().driver();
  const auto get = [&](FunctionAttribute which) {
    int value = 0;
    driver.func_get_attribute(&value, which, function);
    return value;
  };
  *attributes = {};
  attributes->shared_size_bytes = static_cast<std::size_t>(get(FunctionAttribute::shared_size_bytes));
  attributes->const_size_bytes = static_cast<std::size_t>(get(FunctionAttribute::const_size_bytes));
  attributes->local_size_bytes = static_cast<std::size_t>(get(FunctionAttribute::local_size_bytes));
  attributes->max_threads_per_block = get(FunctionAttribute::max_threads_per_block);
  attributes->num_regs = get(FunctionAttribute::num_regs);
  attributes->ptx_version = get(FunctionAttribute::ptx_version);
  attributes->binary_version = get(FunctionAttribute::binary_version);
  attributes->max_dynamic_shared_size_bytes = get(FunctionAttribute::max_dynamic_shared_size_bytes);
  return success;
}

CENOTE_RT int cudaFuncSetAttribute(const void* symbol, int which, int value) {
  cuda::Function function = nullptr;
  CENOTE_RT_TRY(Runtime::get().function(symbol, &function));
  return remember(
      Runtime::get().driver().func_set_attribute(function, static_cast<FunctionAttribute>(which), value));
}

// Hints that an emulated or remote device has no use for; a wrong function is an error all the same.
CENOTE_RT int cudaFuncSetCacheConfig(const void* symbol, int /*config*/) {
  cuda::Function function = nullptr;
  return remember(Runtime::get().function(symbol, &function));
}

// Blocks that fit one multiprocessor: the least of what threads, shared memory and the block limit allow
// (CUDA C++ Programming Guide, "Occupancy"); registers do not bound it, for PTX names none.
CENOTE_RT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* symbol,
                                                                     int block_size,
                                                                     std::size_t dynamic_shared,
                                                                     unsigned /*flags*/) {
  if (blocks == nullptr || block_size <= 0) return remember(invalid_value);
  cuda::Function function = nullptr;
  CENOTE_RT_TRY(Runtime::get().function(symbol, &function));
  int static_shared = 0;
  CENOTE_RT_TRY(Runtime::get().driver().func_get_attribute(&static_shared,
                                                           FunctionAttribute::shared_size_bytes, function));
  constexpr int block_limit = 32;
  const int warp = std::max(1, device_attribute(cuda::DeviceAttribute::warp_size));
  const int threads = (block_size + warp - 1) / warp * warp;
  int fit = std::min(block_limit,
                     device_attribute(cuda::DeviceAttribute::max_threads_per_multiprocessor) / threads);
  const auto shared = static_cast<std::size_t>(static_shared) + dynamic_shared;
  const auto available =
      static_cast<std::size_t>(device_attribute(cuda::DeviceAttribute::max_shared_memory_per_block_optin));
  if (shared > 0) fit = std::min(fit, static_cast<int>(available / shared));
  *blocks = fit;
  return success;
}
CENOTE_RT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* symbol, int block_size,
                                                            std::size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, symbol, block_size, shared, 0);
}
