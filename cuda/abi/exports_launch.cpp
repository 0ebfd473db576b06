// cu*: streams, events, modules, launches.
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "cuda/abi/exports.h"

using namespace cenote::cuda;       // NOLINT(google-build-using-namespace)
using namespace cenote::cuda::abi;  // NOLINT(google-build-using-namespace)

namespace {

constexpr int kInvalidValue = static_cast<int>(Status::invalid_value);

/// What the `extra` array of cuLaunchKernel says. False: it is malformed.
struct Packed {
  const void* buffer = nullptr;
  std::size_t bytes = 0;
  bool read(void** extra) {
    for (void** at = extra;; at += 2) {
      switch (reinterpret_cast<std::uintptr_t>(at[0])) {
        case launch_param_end:
          return true;
        case launch_param_buffer_pointer:
          buffer = at[1];
          break;
        case launch_param_buffer_size:
          std::memcpy(&bytes, at[1], sizeof(bytes));
          break;
        default:
          return false;
      }
    }
  }
};

}  // namespace

CENOTE_EXPORT int cuStreamCreate(Stream* stream, unsigned flags) {
  return forward(&Driver::stream_create, stream, flags);
}
// The emulated and the remote card have one priority.
CENOTE_EXPORT int cuStreamCreateWithPriority(Stream* stream, unsigned flags, int /*priority*/) {
  return cuStreamCreate(stream, flags);
}
CENOTE_EXPORT int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = 0;
  return 0;
}
CENOTE_EXPORT int cuStreamDestroy_v2(Stream stream) { return forward(&Driver::stream_destroy, stream); }
CENOTE_EXPORT int cuStreamSynchronize(Stream stream) { return forward(&Driver::stream_synchronize, stream); }
CENOTE_EXPORT int cuStreamQuery(Stream stream) { return forward(&Driver::stream_query, stream); }
CENOTE_EXPORT int cuStreamWaitEvent(Stream stream, Event event, unsigned flags) {
  return forward(&Driver::stream_wait_event, stream, event, flags);
}
CENOTE_EXPORT int cuStreamWaitValue32_v2(Stream stream, DevicePtr address, std::uint32_t value,
                                         unsigned flags) {
  return forward(&Driver::stream_wait_value32, stream, address, value, flags);
}
CENOTE_EXPORT int cuStreamWriteValue32_v2(Stream stream, DevicePtr address, std::uint32_t value,
                                          unsigned flags) {
  return forward(&Driver::stream_write_value32, stream, address, value, flags);
}
CENOTE_EXPORT int cuLaunchHostFunc(Stream stream, HostFn function, void* user) {
  return forward(&Driver::launch_host_func, stream, function, user);
}
CENOTE_EXPORT int cuEventCreate(Event* event, unsigned flags) {
  return forward(&Driver::event_create, event, flags);
}
CENOTE_EXPORT int cuEventDestroy_v2(Event event) { return forward(&Driver::event_destroy, event); }
CENOTE_EXPORT int cuEventRecord(Event event, Stream stream) {
  return forward(&Driver::event_record, event, stream);
}
CENOTE_EXPORT int cuEventQuery(Event event) { return forward(&Driver::event_query, event); }
CENOTE_EXPORT int cuEventSynchronize(Event event) { return forward(&Driver::event_synchronize, event); }
CENOTE_EXPORT int cuEventElapsedTime(float* ms, Event start, Event end) {
  return forward(&Driver::event_elapsed_time, ms, start, end);
}
CENOTE_EXPORT int cuEventElapsedTime_v2(float* ms, Event start, Event end) {
  return cuEventElapsedTime(ms, start, end);
}

CENOTE_EXPORT int cuModuleLoadData(Module* module, const void* image) {
  return forward(&Driver::module_load_data, module, image, std::size_t{0});
}
// The options tune a compiler that is not there.
CENOTE_EXPORT int cuModuleLoadDataEx(Module* module, const void* image, unsigned, int*, void**) {
  return cuModuleLoadData(module, image);
}
CENOTE_EXPORT int cuModuleLoadFatBinary(Module* module, const void* image) {
  return cuModuleLoadData(module, image);
}
CENOTE_EXPORT int cuModuleLoad(Module* module, const char* path) {
  if (path == nullptr) return kInvalidValue;
  std::ifstream file(path, std::ios::binary);
  std::string image{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) return static_cast<int>(Status::file_not_found);
  return forward(&Driver::module_load_data, module, static_cast<const void*>(image.data()), image.size());
}
CENOTE_EXPORT int cuModuleUnload(Module module) { return forward(&Driver::module_unload, module); }
CENOTE_EXPORT int cuModuleGetFunction(Function* function, Module module, const char* name) {
  return forward(&Driver::module_get_function, function, module, name);
}
CENOTE_EXPORT int cuModuleGetGlobal_v2(DevicePtr* pointer, std::size_t* bytes, Module module,
                                       const char* name) {
  return forward(&Driver::module_get_global, pointer, bytes, module, name);
}
CENOTE_EXPORT int cuFuncGetAttribute(int* value, int attribute, Function function) {
  return forward(&Driver::func_get_attribute, value, static_cast<FunctionAttribute>(attribute), function);
}
CENOTE_EXPORT int cuFuncSetAttribute(Function function, int attribute, int value) {
  return forward(&Driver::func_set_attribute, function, static_cast<FunctionAttribute>(attribute), value);
}
CENOTE_EXPORT int cuFuncGetParamInfo(Function function, std::size_t index, std::size_t* offset,
                                     std::size_t* size) {
  if (offset == nullptr) return kInvalidValue;
  ParamInfo info{};
  const int status = forward(&Driver::func_get_param_info, &info, function, index);
  if (status != 0) return status;
  *offset = info.offset;
  if (size != nullptr) *size = info.size;
  return 0;
}

CENOTE_EXPORT int cuLaunchKernel(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                 Stream stream, void** params, void** extra) {
  auto* target = driver();
  if (target == nullptr) return static_cast<int>(Status::not_initialized);
  const LaunchConfig config{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared};
  if (extra == nullptr) return static_cast<int>(target->launch_kernel(function, config, stream, params));
  Packed packed;
  if (params != nullptr || !packed.read(extra)) return kInvalidValue;
  return static_cast<int>(
      target->launch_kernel_packed(function, config, stream, packed.buffer, packed.bytes));
}

// The variants for programs built with a default stream per thread.
CENOTE_EXPORT int cuStreamSynchronize_ptsz(Stream stream) { return cuStreamSynchronize(per_thread(stream)); }
CENOTE_EXPORT int cuStreamQuery_ptsz(Stream stream) { return cuStreamQuery(per_thread(stream)); }
CENOTE_EXPORT int cuStreamWaitEvent_ptsz(Stream stream, Event event, unsigned flags) {
  return cuStreamWaitEvent(per_thread(stream), event, flags);
}
CENOTE_EXPORT int cuStreamWaitValue32_v2_ptsz(Stream stream, DevicePtr address, std::uint32_t value,
                                              unsigned flags) {
  return cuStreamWaitValue32_v2(per_thread(stream), address, value, flags);
}
CENOTE_EXPORT int cuStreamWriteValue32_v2_ptsz(Stream stream, DevicePtr address, std::uint32_t value,
                                               unsigned flags) {
  return cuStreamWriteValue32_v2(per_thread(stream), address, value, flags);
}
CENOTE_EXPORT int cuLaunchHostFunc_ptsz(Stream stream, HostFn function, void* user) {
  return cuLaunchHostFunc(per_thread(stream), function, user);
}
CENOTE_EXPORT int cuEventRecord_ptsz(Event event, Stream stream) {
  return cuEventRecord(event, per_thread(stream));
}
CENOTE_EXPORT int cuLaunchKernel_ptsz(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                      Stream stream, void** params, void** extra) {
  return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
                        per_thread(stream), params, extra);
}
