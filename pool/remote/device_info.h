// What a worker says of one of its devices when the client connects: everything a client may ask of a device
// without asking the worker again.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "runtime/bytes.h"
#include "runtime/result.h"

namespace cenote::pool::remote {

struct DeviceDescription {
  std::string name;
  cuda::DeviceUuid uuid{};
  int driver_version = 0;
  std::uint64_t total_memory = 0;               ///< the smaller of the lease's share and the device's memory
  std::uint64_t granularity = 0;                ///< of mappings, a power of two
  std::vector<std::pair<int, int>> attributes;  ///< (DeviceAttribute, value)
  std::vector<std::uint8_t> peers;              ///< by lane of the same worker: 1 = reachable
};

/// Every attribute of DeviceAttribute.
inline constexpr std::array device_attributes = {
    cuda::DeviceAttribute::max_threads_per_block,
    cuda::DeviceAttribute::max_block_dim_x,
    cuda::DeviceAttribute::max_block_dim_y,
    cuda::DeviceAttribute::max_block_dim_z,
    cuda::DeviceAttribute::max_grid_dim_x,
    cuda::DeviceAttribute::max_grid_dim_y,
    cuda::DeviceAttribute::max_grid_dim_z,
    cuda::DeviceAttribute::max_shared_memory_per_block,
    cuda::DeviceAttribute::total_constant_memory,
    cuda::DeviceAttribute::warp_size,
    cuda::DeviceAttribute::clock_rate_khz,
    cuda::DeviceAttribute::multiprocessor_count,
    cuda::DeviceAttribute::integrated,
    cuda::DeviceAttribute::can_map_host_memory,
    cuda::DeviceAttribute::compute_mode,
    cuda::DeviceAttribute::concurrent_kernels,
    cuda::DeviceAttribute::ecc_enabled,
    cuda::DeviceAttribute::pci_bus_id,
    cuda::DeviceAttribute::pci_device_id,
    cuda::DeviceAttribute::memory_clock_khz,
    cuda::DeviceAttribute::memory_bus_width,
    cuda::DeviceAttribute::l2_cache_size,
    cuda::DeviceAttribute::max_threads_per_multiprocessor,
    cuda::DeviceAttribute::async_engine_count,
    cuda::DeviceAttribute::unified_addressing,
    cuda::DeviceAttribute::pci_domain_id,
    cuda::DeviceAttribute::compute_capability_major,
    cuda::DeviceAttribute::compute_capability_minor,
    cuda::DeviceAttribute::managed_memory,
    cuda::DeviceAttribute::max_shared_memory_per_block_optin,
    cuda::DeviceAttribute::virtual_memory_management,
    cuda::DeviceAttribute::handle_type_posix_file_descriptor,
    cuda::DeviceAttribute::gpu_direct_rdma,
    cuda::DeviceAttribute::gpu_direct_rdma_flush_writes_options,
    cuda::DeviceAttribute::gpu_direct_rdma_writes_ordering,
    cuda::DeviceAttribute::dma_buf_supported,
};

/// What one kernel needs to be launched: its parameters' layout and its limits.
struct FunctionDescription {
  std::vector<cuda::ParamInfo> params;
  std::vector<std::pair<int, int>> attributes;  ///< (FunctionAttribute, value)
};

inline constexpr std::array function_attributes = {
    cuda::FunctionAttribute::max_threads_per_block,
    cuda::FunctionAttribute::shared_size_bytes,
    cuda::FunctionAttribute::const_size_bytes,
    cuda::FunctionAttribute::local_size_bytes,
    cuda::FunctionAttribute::num_regs,
    cuda::FunctionAttribute::ptx_version,
    cuda::FunctionAttribute::binary_version,
    cuda::FunctionAttribute::max_dynamic_shared_size_bytes,
};

/// The most bytes of kernel parameters that are carried: CUDA's own limit.
inline constexpr std::size_t max_param_bytes = 4096;

Bytes pack(const DeviceDescription& device);
Bytes pack(const FunctionDescription& function);
/// Errors: protocol_error.
Result<DeviceDescription> unpack_device(std::span<const std::byte> bytes);
Result<FunctionDescription> unpack_function(std::span<const std::byte> bytes);

/// An Error on the wire, for failures of communicators.
Bytes pack(const Error& error);
Result<Error> unpack_error(std::span<const std::byte> bytes);

}  // namespace cenote::pool::remote
