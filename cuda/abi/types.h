// The structs and constants of the CUDA driver API that its functions take by pointer, as far as Cenote
// passes or serves them. tests/unit/cuda/cuda_header_test.cpp compares them with <cuda.h> where a toolkit is
// found.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cenote::cuda::abi {

/// CUmemLocation.
struct MemLocation {
  int type;
  int id;
};
/// CUmemAllocationProp.
struct MemAllocationProp {
  int type;
  int requested_handle_types;
  MemLocation location;
  void* win32_handle_metadata;
  struct {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
/// CUmemAccessDesc.
struct MemAccessDesc {
  MemLocation location;
  int flags;
};

inline constexpr int mem_location_device = 1;
inline constexpr int mem_allocation_pinned = 1;
inline constexpr int mem_access_read_write = 3;
inline constexpr int mem_granularity_minimum = 0;
inline constexpr int mem_granularity_recommended = 1;
inline constexpr int range_handle_dma_buf_fd = 1;
inline constexpr int flush_target_current_context = 0;
inline constexpr int flush_to_owner = 100;
inline constexpr int flush_to_all_devices = 200;
inline constexpr int attribute_gpu_direct_rdma_with_vmm = 110;
inline constexpr unsigned stream_wait_value_flush = 1u << 30;

// cuGetProcAddress
inline constexpr std::uint64_t proc_legacy_stream = 1, proc_per_thread_stream = 2;
inline constexpr int proc_found = 0, proc_not_found = 1, proc_version_not_sufficient = 2;

// The `extra` array of cuLaunchKernel.
inline constexpr std::uintptr_t launch_param_end = 0, launch_param_buffer_pointer = 1,
                                launch_param_buffer_size = 2;

/// The values of CUstream that name the default streams.
inline constexpr std::uintptr_t stream_legacy = 1, stream_per_thread = 2;

}  // namespace cenote::cuda::abi
