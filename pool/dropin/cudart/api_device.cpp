// Devices: cudaGetDeviceCount and what surrounds it.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "pool/dropin/cudart/runtime.h"

using namespace cenote;
using namespace cenote::cudart;
using cuda::DeviceAttribute;

namespace {

int attribute(DeviceAttribute which, int device) {
  int value = 0;
  Runtime::get().driver().device_get_attribute(&value, which, device);
  return value;
}

int check_device(int device) {
  auto& runtime = Runtime::get();
  if (const int error = runtime.ready(); error != success) return error;
  return device >= 0 && device < runtime.device_count() ? success : invalid_device;
}

void fill(DeviceProp& prop, int device) {
  auto& driver = Runtime::get().driver();
  std::memset(&prop, 0, sizeof prop);
  driver.device_get_name(prop.name, static_cast<int>(sizeof prop.name), device);
  cuda::DeviceUuid uuid{};
  driver.device_get_uuid(&uuid, device);
  std::memcpy(prop.uuid, uuid.bytes, sizeof prop.uuid);
  driver.device_total_mem(&prop.total_global_mem, device);
  const auto get = [&](DeviceAttribute which) { return attribute(which, device); };
  prop.shared_mem_per_block = static_cast<std::size_t>(get(DeviceAttribute::max_shared_memory_per_block));
  prop.shared_mem_per_block_optin =
      static_cast<std::size_t>(get(DeviceAttribute::max_shared_memory_per_block_optin));
  prop.shared_mem_per_multiprocessor = prop.shared_mem_per_block_optin;
  prop.regs_per_block = prop.regs_per_multiprocessor = 65536;
  prop.warp_size = get(DeviceAttribute::warp_size);
  prop.mem_pitch = 0x7fffffff;
  prop.max_threads_per_block = get(DeviceAttribute::max_threads_per_block);
  prop.max_threads_dim[0] = get(DeviceAttribute::max_block_dim_x);
  prop.max_threads_dim[1] = get(DeviceAttribute::max_block_dim_y);
  prop.max_threads_dim[2] = get(DeviceAttribute::max_block_dim_z);
  prop.max_grid_size[0] = get(DeviceAttribute::max_grid_dim_x);
  prop.max_grid_size[1] = get(DeviceAttribute::max_grid_dim_y);
  prop.max_grid_size[2] = get(DeviceAttribute::max_grid_dim_z);
  prop.total_const_mem = static_cast<std::size_t>(get(DeviceAttribute::total_constant_memory));
  prop.major = get(DeviceAttribute::compute_capability_major);
  prop.minor = get(DeviceAttribute::compute_capability_minor);
  prop.texture_alignment = 512;
  prop.multiprocessor_count = get(DeviceAttribute::multiprocessor_count);
  prop.integrated = get(DeviceAttribute::integrated);
  prop.can_map_host_memory = get(DeviceAttribute::can_map_host_memory);
  prop.concurrent_kernels = get(DeviceAttribute::concurrent_kernels);
  prop.ecc_enabled = get(DeviceAttribute::ecc_enabled);
  prop.pci_bus_id = get(DeviceAttribute::pci_bus_id);
  prop.pci_device_id = get(DeviceAttribute::pci_device_id);
  prop.pci_domain_id = get(DeviceAttribute::pci_domain_id);
  prop.async_engine_count = get(DeviceAttribute::async_engine_count);
  prop.unified_addressing = get(DeviceAttribute::unified_addressing);
  prop.memory_bus_width = get(DeviceAttribute::memory_bus_width);
  prop.l2_cache_size = get(DeviceAttribute::l2_cache_size);
  prop.max_threads_per_multiprocessor = get(DeviceAttribute::max_threads_per_multiprocessor);
  prop.max_blocks_per_multiprocessor = 32;
  prop.managed_memory = get(DeviceAttribute::managed_memory);
  prop.host_register_supported = 1;
}

}  // namespace

CENOTE_RT int cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return remember(invalid_value);
  *version = runtime_version;
  return success;
}

CENOTE_RT int cudaDriverGetVersion(int* version) {
  if (version == nullptr) return remember(invalid_value);
  auto& runtime = Runtime::get();
  *version = 0;  // as CUDA says when there is no driver
  if (runtime.ready() == insufficient_driver) return success;
  return remember(runtime.driver().driver_get_version(version));
}

CENOTE_RT int cudaGetDeviceCount(int* count) {
  if (count == nullptr) return remember(invalid_value);
  auto& runtime = Runtime::get();
  *count = 0;
  CENOTE_RT_TRY(runtime.ready());
  *count = runtime.device_count();
  return success;
}

CENOTE_RT int cudaSetDevice(int device) { return remember(Runtime::get().set_device(device)); }
CENOTE_RT int cudaInitDevice(int device, unsigned /*device_flags*/, unsigned /*flags*/) {
  const int before = Runtime::get().current_device();
  CENOTE_RT_TRY(Runtime::get().set_device(device));
  return remember(Runtime::get().set_device(before));
}

CENOTE_RT int cudaGetDevice(int* device) {
  if (device == nullptr) return remember(invalid_value);
  CENOTE_RT_TRY(Runtime::get().ready());
  *device = Runtime::get().current_device();
  return success;
}

CENOTE_RT int cudaSetDeviceFlags(unsigned /*flags*/) { return remember(Runtime::get().ready()); }
CENOTE_RT int cudaGetDeviceFlags(unsigned* flags) {
  if (flags == nullptr) return remember(invalid_value);
  *flags = 0;
  return remember(Runtime::get().ready());
}

CENOTE_RT int cudaDeviceSynchronize() {
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().ctx_synchronize());
}

CENOTE_RT int cudaDeviceReset() { return remember(Runtime::get().reset_device()); }

CENOTE_RT int cudaGetDeviceProperties(DeviceProp* prop, int device) {
  if (prop == nullptr) return remember(invalid_value);
  CENOTE_RT_TRY(check_device(device));
  fill(*prop, device);
  return success;
}

CENOTE_RT int cudaDeviceGetAttribute(int* value, int which, int device) {
  if (value == nullptr) return remember(invalid_value);
  CENOTE_RT_TRY(check_device(device));
  return remember(
      Runtime::get().driver().device_get_attribute(value, static_cast<DeviceAttribute>(which), device));
}

CENOTE_RT int cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (text == nullptr || length <= 0) return remember(invalid_value);
  CENOTE_RT_TRY(check_device(device));
  const int written = std::snprintf(text, static_cast<std::size_t>(length), "%04x:%02x:%02x.0",
                                    static_cast<unsigned>(attribute(DeviceAttribute::pci_domain_id, device)),
                                    static_cast<unsigned>(attribute(DeviceAttribute::pci_bus_id, device)),
                                    static_cast<unsigned>(attribute(DeviceAttribute::pci_device_id, device)));
  return written < length ? success : remember(invalid_value);
}

CENOTE_RT int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = 0;
  return remember(Runtime::get().enter());
}

CENOTE_RT int cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (can == nullptr) return remember(invalid_value);
  CENOTE_RT_TRY(check_device(device));
  CENOTE_RT_TRY(check_device(peer));
  return remember(Runtime::get().driver().device_can_access_peer(can, device, peer));
}

CENOTE_RT int cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  CENOTE_RT_TRY(check_device(peer));
  CENOTE_RT_TRY(Runtime::get().enter());
  cuda::Context context = nullptr;
  CENOTE_RT_TRY(Runtime::get().driver().primary_ctx_retain(&context, peer));
  return remember(Runtime::get().driver().ctx_enable_peer_access(context, flags));
}

CENOTE_RT int cudaProfilerStart() { return success; }
CENOTE_RT int cudaProfilerStop() { return success; }
