// The part of the CUDA runtime's binary interface (version 13) that the drop-in serves: numbers and layouts
// only. A test compares each with <cuda_runtime_api.h> where the toolkit is found.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/driver.h"

#define CENOTE_RT extern "C" __attribute__((visibility("default")))

namespace cenote::cudart {

inline constexpr int runtime_version = 13000;

/// cudaError_t. Codes of the driver keep their number (CUresult and cudaError_t agree); these are the
/// runtime's own.
enum Error : int {
  success = 0,
  invalid_value = 1,
  memory_allocation = 2,
  initialization_error = 3,
  invalid_configuration = 9,
  invalid_symbol = 13,
  invalid_memcpy_direction = 21,
  insufficient_driver = 35,
  missing_configuration = 52,
  invalid_device_function = 98,
  no_device = 100,
  invalid_device = 101,
  invalid_resource_handle = 400,
  symbol_not_found = 500,
  not_supported = 801,
};

const char* error_name(int error);
const char* error_text(int error);

struct Dim3 {
  unsigned x, y, z;
};

enum MemcpyKind : int {
  host_to_host = 0,
  host_to_device = 1,
  device_to_host = 2,
  device_to_device = 3,
  any_to_any = 4
};
enum MemoryType : int { type_unregistered = 0, type_host = 1, type_device = 2, type_managed = 3 };

struct PointerAttributes {
  int type;
  int device;
  void* device_pointer;
  void* host_pointer;
  long reserved[8];
};

struct FuncAttributes {
  std::size_t shared_size_bytes, const_size_bytes, local_size_bytes;
  int max_threads_per_block, num_regs, ptx_version, binary_version, cache_mode_ca,
      max_dynamic_shared_size_bytes, preferred_shmem_carveout;
  int later_fields[19];
};

struct LaunchAttribute {
  int id;
  int padding;
  union {
    int cooperative;
    char bytes[64];
  } value;
};

struct LaunchConfigC {
  Dim3 grid, block;
  std::size_t dynamic_shared_bytes;
  cuda::Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
inline constexpr int launch_attribute_cooperative = 2;

/// cudaDeviceProp of CUDA 13: fields in their places, gaps for what is always zero here.
struct DeviceProp {
  char name[256];
  std::uint8_t uuid[16];
  char gap_luid[16];
  std::size_t total_global_mem;  // 288
  std::size_t shared_mem_per_block;
  int regs_per_block;  // 304
  int warp_size;
  std::size_t mem_pitch;      // 312
  int max_threads_per_block;  // 320
  int max_threads_dim[3];
  int max_grid_size[3];  // 336
  int gap_clock;
  std::size_t total_const_mem;    // 352
  int major, minor;               // 360
  std::size_t texture_alignment;  // 368
  std::size_t gap_texture_pitch;
  int multiprocessor_count;  // 384
  int integrated;
  int can_map_host_memory;  // 392
  char gap_textures[164];
  int concurrent_kernels;  // 560
  int ecc_enabled;
  int pci_bus_id, pci_device_id, pci_domain_id;
  int gap_tcc;
  int async_engine_count;  // 584
  int unified_addressing;
  int memory_bus_width;  // 592
  int l2_cache_size;
  int gap_persisting;
  int max_threads_per_multiprocessor;  // 604
  int stream_priorities_supported;
  int gap_l1[3];
  std::size_t shared_mem_per_multiprocessor;  // 624
  int regs_per_multiprocessor;
  int managed_memory;  // 636
  int gap_board[7];
  int cooperative_launch;                  // 668
  std::size_t shared_mem_per_block_optin;  // 672
  int gap_pageable[2];
  int max_blocks_per_multiprocessor;  // 688
  int gap_window[3];
  int host_register_supported;  // 704
  int gap_sparse[3];
  int memory_pools_supported;  // 720
  char gap_rest[284];
};

}  // namespace cenote::cudart
