// The driver table: the part of the CUDA driver API that Cenote uses and serves. Three things fill it: the
// real libcuda.so.1 (real_driver.h), the emulated driver (emulator/emulated_driver.h) and the remote client
// (pool/remote/client_driver.h). Whoever holds a `Driver` does not know which one it is.
//
// Semantics are those of the CUDA driver API: each method is the function `cu<Name>` of its newest 64-bit
// version, takes the same arguments in the same order, returns the same codes, and reports asynchronous
// errors at the same later calls. As there, the current context belongs to the calling thread (and here to
// the Driver instance: two instances in one process do not see each other). Thread-safe. No method throws.
// Source: CUDA Driver API reference, 13.0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cenote::cuda {

/// CUresult. Values are the ABI's; tests compare them with <cuda.h> where the toolkit is found.
enum class Status : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  deinitialized = 4,
  no_device = 100,
  invalid_device = 101,
  invalid_image = 200,
  invalid_context = 201,
  map_failed = 205,
  already_mapped = 208,
  no_binary_for_gpu = 209,
  not_mapped = 211,
  ecc_uncorrectable = 214,
  unsupported_limit = 215,
  peer_access_unsupported = 217,
  invalid_ptx = 218,
  unsupported_ptx_version = 222,
  invalid_source = 300,
  file_not_found = 301,
  operating_system = 304,
  invalid_handle = 400,
  illegal_state = 401,
  not_found = 500,
  not_ready = 600,
  illegal_address = 700,
  launch_out_of_resources = 701,
  launch_timeout = 702,
  peer_access_already_enabled = 704,
  peer_access_not_enabled = 705,
  context_is_destroyed = 709,
  assert_failed = 710,
  host_memory_already_registered = 712,
  host_memory_not_registered = 713,
  misaligned_address = 716,
  illegal_instruction = 715,
  invalid_address_space = 717,
  launch_failed = 719,
  not_permitted = 800,
  not_supported = 801,
  system_not_ready = 802,
  timeout = 909,
  unknown = 999,
};

/// "CUDA_ERROR_OUT_OF_MEMORY", as cuGetErrorName says it.
std::string_view status_name(Status status);
/// "out of memory", as cuGetErrorString says it.
std::string_view status_text(Status status);

using DevicePtr = std::uint64_t;  ///< CUdeviceptr: never a host address, except where the driver says so
using DeviceId = int;             ///< CUdevice
// Handles are opaque; nobody but the driver that made one looks inside (the remote client chooses its own).
using Context = struct ContextTag*;    ///< CUcontext
using Module = struct ModuleTag*;      ///< CUmodule
using Function = struct FunctionTag*;  ///< CUfunction
using Stream =
    struct StreamTag*;  ///< CUstream; nullptr = the legacy default stream, 1 = legacy, 2 = per thread
using Event = struct EventTag*;          ///< CUevent
using AllocationHandle = std::uint64_t;  ///< CUmemGenericAllocationHandle
using HostFn = void (*)(void* user);

struct DeviceUuid {
  std::uint8_t bytes[16];
};
struct IpcMemHandle {
  std::uint8_t bytes[64];
};

/// CUdevice_attribute, the ones asked for here.
enum class DeviceAttribute : int {
  max_threads_per_block = 1,
  max_block_dim_x = 2,
  max_block_dim_y = 3,
  max_block_dim_z = 4,
  max_grid_dim_x = 5,
  max_grid_dim_y = 6,
  max_grid_dim_z = 7,
  max_shared_memory_per_block = 8,
  total_constant_memory = 9,
  warp_size = 10,
  clock_rate_khz = 13,
  multiprocessor_count = 16,
  integrated = 18,
  can_map_host_memory = 19,
  compute_mode = 20,
  concurrent_kernels = 31,
  ecc_enabled = 32,
  pci_bus_id = 33,
  pci_device_id = 34,
  memory_clock_khz = 36,
  memory_bus_width = 37,
  l2_cache_size = 38,
  max_threads_per_multiprocessor = 39,
  async_engine_count = 40,
  unified_addressing = 41,
  pci_domain_id = 50,
  compute_capability_major = 75,
  compute_capability_minor = 76,
  managed_memory = 83,
  max_shared_memory_per_block_optin = 97,
  pageable_access_uses_host_page_tables = 100,  ///< a coherent link to the CPU: NVLink-C2C, or POWER9's
  virtual_memory_management = 102,
  handle_type_posix_file_descriptor = 103,
  gpu_direct_rdma = 116,
  gpu_direct_rdma_flush_writes_options = 117,
  gpu_direct_rdma_writes_ordering = 118,
  dma_buf_supported = 124,
};
enum class PointerAttribute : int {
  context = 1,
  memory_type = 2,
  device_pointer = 3,
  host_pointer = 4,
  is_managed = 8,
  device_ordinal = 9,
  range_start_address = 11,
  range_size = 12,
  mapped = 13,
};
enum class FunctionAttribute : int {
  max_threads_per_block = 0,
  shared_size_bytes = 1,
  const_size_bytes = 2,
  local_size_bytes = 3,
  num_regs = 4,
  ptx_version = 5,
  binary_version = 6,
  max_dynamic_shared_size_bytes = 8,
};
enum StreamFlags : unsigned { stream_default = 0, stream_non_blocking = 1 };
enum EventFlags : unsigned {
  event_default = 0,
  event_blocking_sync = 1,
  event_disable_timing = 2,
  event_interprocess = 4
};
enum WaitValueFlags : unsigned { wait_geq = 0, wait_eq = 1, wait_and = 2, wait_nor = 3 };

/// One kernel launch. `params[i]` points at argument i, as in cuLaunchKernel; sizes come from the kernel.
struct LaunchConfig {
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
};

/// One kernel parameter: where it lies in the packed parameter buffer.
struct ParamInfo {
  std::size_t offset;
  std::size_t size;
};

class Driver {
 public:
  virtual ~Driver() = default;
  /// "libcuda 13.0", "emulated", "remote (lease 7f3a)": for logs and errors.
  [[nodiscard]] virtual std::string name() const = 0;
  /// What went wrong last on this thread, in words, beyond the code ("kernel saxpy, block 3, thread 17: store
  /// of 4 bytes at 0x7f..."). Empty when the driver has no more to say. Not part of CUDA.
  [[nodiscard]] virtual std::string last_error_detail() const { return {}; }

  // devices
  virtual Status init(unsigned flags) = 0;
  virtual Status driver_get_version(int* version) = 0;
  virtual Status device_get_count(int* count) = 0;
  virtual Status device_get(DeviceId* device, int ordinal) = 0;
  virtual Status device_get_name(char* name, int length, DeviceId device) = 0;
  virtual Status device_get_uuid(DeviceUuid* uuid, DeviceId device) = 0;
  virtual Status device_total_mem(std::size_t* bytes, DeviceId device) = 0;
  virtual Status device_get_attribute(int* value, DeviceAttribute attribute, DeviceId device) = 0;

  // contexts
  virtual Status primary_ctx_retain(Context* context, DeviceId device) = 0;
  virtual Status primary_ctx_release(DeviceId device) = 0;
  virtual Status ctx_create(Context* context, unsigned flags, DeviceId device) = 0;
  virtual Status ctx_destroy(Context context) = 0;
  virtual Status ctx_set_current(Context context) = 0;
  virtual Status ctx_get_current(Context* context) = 0;
  virtual Status ctx_push_current(Context context) = 0;
  virtual Status ctx_pop_current(Context* context) = 0;
  virtual Status ctx_get_device(DeviceId* device) = 0;
  virtual Status ctx_synchronize() = 0;
  virtual Status device_can_access_peer(int* can, DeviceId device, DeviceId peer) = 0;
  virtual Status ctx_enable_peer_access(Context peer, unsigned flags) = 0;

  // memory
  virtual Status mem_get_info(std::size_t* free, std::size_t* total) = 0;
  virtual Status mem_alloc(DevicePtr* pointer, std::size_t bytes) = 0;
  virtual Status mem_free(DevicePtr pointer) = 0;
  virtual Status mem_get_address_range(DevicePtr* base, std::size_t* size, DevicePtr pointer) = 0;
  virtual Status mem_host_alloc(void** pointer, std::size_t bytes, unsigned flags) = 0;
  virtual Status mem_free_host(void* pointer) = 0;
  virtual Status mem_host_register(void* pointer, std::size_t bytes, unsigned flags) = 0;
  virtual Status mem_host_unregister(void* pointer) = 0;
  virtual Status pointer_get_attribute(void* value, PointerAttribute attribute, DevicePtr pointer) = 0;
  virtual Status ipc_get_mem_handle(IpcMemHandle* handle, DevicePtr pointer) = 0;
  virtual Status ipc_open_mem_handle(DevicePtr* pointer, IpcMemHandle handle, unsigned flags) = 0;
  virtual Status ipc_close_mem_handle(DevicePtr pointer) = 0;

  // virtual memory management: reserve a range, make memory, map it there
  virtual Status mem_address_reserve(DevicePtr* pointer, std::size_t bytes, std::size_t alignment,
                                     DevicePtr hint) = 0;
  virtual Status mem_address_free(DevicePtr pointer, std::size_t bytes) = 0;
  /// cuMemCreate with a pinned allocation on `device`, cuMemGetAllocationGranularity for the same.
  virtual Status mem_create(AllocationHandle* handle, std::size_t bytes, DeviceId device) = 0;
  virtual Status mem_release(AllocationHandle handle) = 0;
  virtual Status mem_map(DevicePtr pointer, std::size_t bytes, std::size_t offset,
                         AllocationHandle handle) = 0;
  virtual Status mem_unmap(DevicePtr pointer, std::size_t bytes) = 0;
  /// cuMemSetAccess for one device, read and write.
  virtual Status mem_set_access(DevicePtr pointer, std::size_t bytes, DeviceId device) = 0;
  virtual Status mem_get_allocation_granularity(std::size_t* granularity, DeviceId device) = 0;
  /// cuMemGetHandleForAddressRange(DMA_BUF_FD). The caller owns the descriptor.
  virtual Status mem_get_dmabuf_fd(int* fd, DevicePtr pointer, std::size_t bytes) = 0;
  /// cuFlushGPUDirectRDMAWrites to the owner (target: current context). Data a NIC wrote is visible after it.
  virtual Status flush_gpu_direct_rdma_writes() = 0;

  // copies: the plain ones return when done as CUDA says, the async ones are ordered in `stream`
  virtual Status memcpy_htod(DevicePtr dst, const void* src, std::size_t bytes) = 0;
  virtual Status memcpy_dtoh(void* dst, DevicePtr src, std::size_t bytes) = 0;
  virtual Status memcpy_dtod(DevicePtr dst, DevicePtr src, std::size_t bytes) = 0;
  virtual Status memcpy_htod_async(DevicePtr dst, const void* src, std::size_t bytes, Stream stream) = 0;
  virtual Status memcpy_dtoh_async(void* dst, DevicePtr src, std::size_t bytes, Stream stream) = 0;
  virtual Status memcpy_dtod_async(DevicePtr dst, DevicePtr src, std::size_t bytes, Stream stream) = 0;
  virtual Status memset_d8(DevicePtr dst, unsigned char value, std::size_t count) = 0;
  virtual Status memset_d8_async(DevicePtr dst, unsigned char value, std::size_t count, Stream stream) = 0;
  virtual Status memset_d32_async(DevicePtr dst, unsigned value, std::size_t count, Stream stream) = 0;

  // streams and events
  virtual Status stream_create(Stream* stream, unsigned flags) = 0;
  virtual Status stream_destroy(Stream stream) = 0;
  virtual Status stream_synchronize(Stream stream) = 0;
  virtual Status stream_query(Stream stream) = 0;
  virtual Status stream_wait_event(Stream stream, Event event, unsigned flags) = 0;
  virtual Status stream_wait_value32(Stream stream, DevicePtr address, std::uint32_t value,
                                     unsigned flags) = 0;
  virtual Status stream_write_value32(Stream stream, DevicePtr address, std::uint32_t value,
                                      unsigned flags) = 0;
  /// The function may not call the driver, as in CUDA.
  virtual Status launch_host_func(Stream stream, HostFn function, void* user) = 0;
  virtual Status event_create(Event* event, unsigned flags) = 0;
  virtual Status event_destroy(Event event) = 0;
  virtual Status event_record(Event event, Stream stream) = 0;
  virtual Status event_query(Event event) = 0;
  virtual Status event_synchronize(Event event) = 0;
  virtual Status event_elapsed_time(float* ms, Event start, Event end) = 0;

  // modules and launches
  /// `image` is PTX text (NUL-terminated), a fatbin container or its wrapper. `size` = bytes of `image` known
  /// to be readable; CUDA does not pass it, the remote protocol needs it. 0 = unknown, trust the image's own
  /// lengths.
  virtual Status module_load_data(Module* module, const void* image, std::size_t size) = 0;
  virtual Status module_unload(Module module) = 0;
  virtual Status module_get_function(Function* function, Module module, const char* name) = 0;
  virtual Status module_get_global(DevicePtr* pointer, std::size_t* bytes, Module module,
                                   const char* name) = 0;
  virtual Status func_get_attribute(int* value, FunctionAttribute attribute, Function function) = 0;
  virtual Status func_set_attribute(Function function, FunctionAttribute attribute, int value) = 0;
  /// cuFuncGetParamInfo: invalid_value when the kernel has no parameter of that index.
  virtual Status func_get_param_info(ParamInfo* info, Function function, std::size_t index) = 0;
  virtual Status launch_kernel(Function function, const LaunchConfig& config, Stream stream,
                               void** params) = 0;
  /// The same with the parameters already packed (CU_LAUNCH_PARAM_BUFFER_POINTER).
  virtual Status launch_kernel_packed(Function function, const LaunchConfig& config, Stream stream,
                                      const void* buffer, std::size_t bytes) = 0;
};

}  // namespace cenote::cuda
