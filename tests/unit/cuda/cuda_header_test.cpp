// Our own declarations against <cuda.h>. Compiled where a toolkit is found; everything is checked by the
// compiler.
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "cuda/abi/types.h"
#include "cuda/driver.h"

namespace cenote::cuda {
namespace {

#define SAME(ours, theirs) static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs))
#define SAME_FIELD(ours, field, theirs, their_field)                      \
  static_assert(offsetof(ours, field) == offsetof(theirs, their_field) && \
                sizeof(ours::field) == sizeof(theirs::their_field))

SAME(Status::success, CUDA_SUCCESS);
SAME(Status::invalid_value, CUDA_ERROR_INVALID_VALUE);
SAME(Status::out_of_memory, CUDA_ERROR_OUT_OF_MEMORY);
SAME(Status::not_initialized, CUDA_ERROR_NOT_INITIALIZED);
SAME(Status::deinitialized, CUDA_ERROR_DEINITIALIZED);
SAME(Status::no_device, CUDA_ERROR_NO_DEVICE);
SAME(Status::invalid_device, CUDA_ERROR_INVALID_DEVICE);
SAME(Status::invalid_image, CUDA_ERROR_INVALID_IMAGE);
SAME(Status::invalid_context, CUDA_ERROR_INVALID_CONTEXT);
SAME(Status::map_failed, CUDA_ERROR_MAP_FAILED);
SAME(Status::already_mapped, CUDA_ERROR_ALREADY_MAPPED);
SAME(Status::no_binary_for_gpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(Status::not_mapped, CUDA_ERROR_NOT_MAPPED);
SAME(Status::ecc_uncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
SAME(Status::unsupported_limit, CUDA_ERROR_UNSUPPORTED_LIMIT);
SAME(Status::peer_access_unsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
SAME(Status::invalid_ptx, CUDA_ERROR_INVALID_PTX);
SAME(Status::unsupported_ptx_version, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
SAME(Status::invalid_source, CUDA_ERROR_INVALID_SOURCE);
SAME(Status::file_not_found, CUDA_ERROR_FILE_NOT_FOUND);
SAME(Status::operating_system, CUDA_ERROR_OPERATING_SYSTEM);
SAME(Status::invalid_handle, CUDA_ERROR_INVALID_HANDLE);
SAME(Status::illegal_state, CUDA_ERROR_ILLEGAL_STATE);
SAME(Status::not_found, CUDA_ERROR_NOT_FOUND);
SAME(Status::not_ready, CUDA_ERROR_NOT_READY);
SAME(Status::illegal_address, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(Status::launch_out_of_resources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
SAME(Status::launch_timeout, CUDA_ERROR_LAUNCH_TIMEOUT);
SAME(Status::peer_access_already_enabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
SAME(Status::peer_access_not_enabled, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
SAME(Status::context_is_destroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME(Status::assert_failed, CUDA_ERROR_ASSERT);
SAME(Status::host_memory_already_registered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(Status::host_memory_not_registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME(Status::misaligned_address, CUDA_ERROR_MISALIGNED_ADDRESS);
SAME(Status::illegal_instruction, CUDA_ERROR_ILLEGAL_INSTRUCTION);
SAME(Status::invalid_address_space, CUDA_ERROR_INVALID_ADDRESS_SPACE);
SAME(Status::launch_failed, CUDA_ERROR_LAUNCH_FAILED);
SAME(Status::not_permitted, CUDA_ERROR_NOT_PERMITTED);
SAME(Status::not_supported, CUDA_ERROR_NOT_SUPPORTED);
SAME(Status::system_not_ready, CUDA_ERROR_SYSTEM_NOT_READY);
SAME(Status::timeout, CUDA_ERROR_TIMEOUT);
SAME(Status::unknown, CUDA_ERROR_UNKNOWN);

SAME(DeviceAttribute::max_threads_per_block, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME(DeviceAttribute::max_block_dim_x, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
SAME(DeviceAttribute::max_block_dim_y, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
SAME(DeviceAttribute::max_block_dim_z, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
SAME(DeviceAttribute::max_grid_dim_x, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
SAME(DeviceAttribute::max_grid_dim_y, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
SAME(DeviceAttribute::max_grid_dim_z, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
SAME(DeviceAttribute::max_shared_memory_per_block, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
SAME(DeviceAttribute::total_constant_memory, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
SAME(DeviceAttribute::warp_size, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
SAME(DeviceAttribute::clock_rate_khz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
SAME(DeviceAttribute::multiprocessor_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(DeviceAttribute::integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED);
SAME(DeviceAttribute::can_map_host_memory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
SAME(DeviceAttribute::compute_mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
SAME(DeviceAttribute::concurrent_kernels, CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS);
SAME(DeviceAttribute::ecc_enabled, CU_DEVICE_ATTRIBUTE_ECC_ENABLED);
SAME(DeviceAttribute::pci_bus_id, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
SAME(DeviceAttribute::pci_device_id, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
SAME(DeviceAttribute::memory_clock_khz, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
SAME(DeviceAttribute::memory_bus_width, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
SAME(DeviceAttribute::l2_cache_size, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME(DeviceAttribute::max_threads_per_multiprocessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
SAME(DeviceAttribute::async_engine_count, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
SAME(DeviceAttribute::unified_addressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME(DeviceAttribute::pci_domain_id, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
SAME(DeviceAttribute::compute_capability_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(DeviceAttribute::compute_capability_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(DeviceAttribute::managed_memory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
SAME(DeviceAttribute::max_shared_memory_per_block_optin,
     CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME(DeviceAttribute::pageable_access_uses_host_page_tables,
     CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
SAME(DeviceAttribute::virtual_memory_management, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME(DeviceAttribute::handle_type_posix_file_descriptor,
     CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME(DeviceAttribute::gpu_direct_rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
SAME(DeviceAttribute::gpu_direct_rdma_flush_writes_options,
     CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
SAME(DeviceAttribute::gpu_direct_rdma_writes_ordering, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
SAME(DeviceAttribute::dma_buf_supported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);

SAME(PointerAttribute::context, CU_POINTER_ATTRIBUTE_CONTEXT);
SAME(PointerAttribute::memory_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(PointerAttribute::device_pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
SAME(PointerAttribute::host_pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER);
SAME(PointerAttribute::is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(PointerAttribute::device_ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(PointerAttribute::range_start_address, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME(PointerAttribute::range_size, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME(PointerAttribute::mapped, CU_POINTER_ATTRIBUTE_MAPPED);

SAME(FunctionAttribute::max_threads_per_block, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME(FunctionAttribute::shared_size_bytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
SAME(FunctionAttribute::const_size_bytes, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES);
SAME(FunctionAttribute::local_size_bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
SAME(FunctionAttribute::num_regs, CU_FUNC_ATTRIBUTE_NUM_REGS);
SAME(FunctionAttribute::ptx_version, CU_FUNC_ATTRIBUTE_PTX_VERSION);
SAME(FunctionAttribute::binary_version, CU_FUNC_ATTRIBUTE_BINARY_VERSION);
SAME(FunctionAttribute::max_dynamic_shared_size_bytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);

SAME(stream_default, CU_STREAM_DEFAULT);
SAME(stream_non_blocking, CU_STREAM_NON_BLOCKING);
SAME(event_default, CU_EVENT_DEFAULT);
SAME(event_blocking_sync, CU_EVENT_BLOCKING_SYNC);
SAME(event_disable_timing, CU_EVENT_DISABLE_TIMING);
SAME(event_interprocess, CU_EVENT_INTERPROCESS);
SAME(wait_geq, CU_STREAM_WAIT_VALUE_GEQ);
SAME(wait_eq, CU_STREAM_WAIT_VALUE_EQ);
SAME(wait_and, CU_STREAM_WAIT_VALUE_AND);
SAME(wait_nor, CU_STREAM_WAIT_VALUE_NOR);
SAME(abi::stream_wait_value_flush, CU_STREAM_WAIT_VALUE_FLUSH);
SAME(abi::mem_location_device, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(abi::mem_allocation_pinned, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(abi::mem_access_read_write, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(abi::mem_granularity_minimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(abi::mem_granularity_recommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
SAME(abi::range_handle_dma_buf_fd, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
SAME(abi::flush_target_current_context, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX);
SAME(abi::flush_to_owner, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
SAME(abi::flush_to_all_devices, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES);
SAME(abi::attribute_gpu_direct_rdma_with_vmm, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME(abi::proc_legacy_stream, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
SAME(abi::proc_per_thread_stream, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
SAME(abi::proc_found, CU_GET_PROC_ADDRESS_SUCCESS);
SAME(abi::proc_not_found, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
SAME(abi::proc_version_not_sufficient, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
SAME(abi::launch_param_end, CU_LAUNCH_PARAM_END_AS_INT);
SAME(abi::launch_param_buffer_pointer, CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT);
SAME(abi::launch_param_buffer_size, CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT);

static_assert(sizeof(DevicePtr) == sizeof(CUdeviceptr) && sizeof(DeviceId) == sizeof(CUdevice));
static_assert(sizeof(AllocationHandle) == sizeof(CUmemGenericAllocationHandle));
static_assert(sizeof(DeviceUuid) == sizeof(CUuuid) && sizeof(IpcMemHandle) == sizeof(CUipcMemHandle));
static_assert(alignof(IpcMemHandle) == alignof(CUipcMemHandle), "it is passed by value");

static_assert(sizeof(abi::MemAllocationProp) == sizeof(CUmemAllocationProp));
SAME_FIELD(abi::MemAllocationProp, type, CUmemAllocationProp, type);
SAME_FIELD(abi::MemAllocationProp, requested_handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_FIELD(abi::MemAllocationProp, location, CUmemAllocationProp, location);
SAME_FIELD(abi::MemAllocationProp, flags, CUmemAllocationProp, allocFlags);
static_assert(offsetof(abi::MemAllocationProp, flags.gpu_direct_rdma_capable) ==
              offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
static_assert(sizeof(abi::MemLocation) == sizeof(CUmemLocation));
SAME_FIELD(abi::MemLocation, id, CUmemLocation, id);
static_assert(sizeof(abi::MemAccessDesc) == sizeof(CUmemAccessDesc));
SAME_FIELD(abi::MemAccessDesc, flags, CUmemAccessDesc, flags);

// The texts of every status are there; the names agree with the enumerators above by construction.
TEST(CudaHeader, EveryStatusHasANameOfTheHeaders) {
  EXPECT_EQ(status_name(static_cast<Status>(CUDA_ERROR_ILLEGAL_ADDRESS)), "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(status_text(static_cast<Status>(CUDA_ERROR_OUT_OF_MEMORY)), "out of memory");
}

}  // namespace
}  // namespace cenote::cuda
