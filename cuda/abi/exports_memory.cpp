// cu*: memory and copies.
#include <cstring>

#include "cuda/abi/exports.h"

using namespace cenote::cuda;       // NOLINT(google-build-using-namespace)
using namespace cenote::cuda::abi;  // NOLINT(google-build-using-namespace)

namespace {

constexpr int kInvalidValue = static_cast<int>(Status::invalid_value);
constexpr int kNotSupported = static_cast<int>(Status::not_supported);

// Only memory of the card is made here, exported by no handle of its own.
int check(const MemAllocationProp* wanted) {
  if (wanted == nullptr) return kInvalidValue;
  const bool usual = wanted->type == mem_allocation_pinned && wanted->location.type == mem_location_device &&
                     wanted->requested_handle_types == 0 && wanted->flags.compression_type == 0;
  return usual ? 0 : kNotSupported;
}

bool on_device(DevicePtr pointer) {
  constexpr int kDevice = 2;
  int type = 0;
  return forward(&Driver::pointer_get_attribute, static_cast<void*>(&type), PointerAttribute::memory_type,
                 pointer) == 0 &&
         type == kDevice;
}

// NOLINTNEXTLINE(performance-no-int-to-ptr): unified addressing
void* host(DevicePtr pointer) { return reinterpret_cast<void*>(pointer); }

}  // namespace

CENOTE_EXPORT int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return forward(&Driver::mem_get_info, free, total);
}
CENOTE_EXPORT int cuMemAlloc_v2(DevicePtr* pointer, std::size_t bytes) {
  return forward(&Driver::mem_alloc, pointer, bytes);
}
CENOTE_EXPORT int cuMemFree_v2(DevicePtr pointer) { return forward(&Driver::mem_free, pointer); }
CENOTE_EXPORT int cuMemGetAddressRange_v2(DevicePtr* base, std::size_t* size, DevicePtr pointer) {
  return forward(&Driver::mem_get_address_range, base, size, pointer);
}
CENOTE_EXPORT int cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
  return forward(&Driver::mem_host_alloc, pointer, bytes, flags);
}
CENOTE_EXPORT int cuMemAllocHost_v2(void** pointer, std::size_t bytes) {
  return cuMemHostAlloc(pointer, bytes, 0);
}
CENOTE_EXPORT int cuMemFreeHost(void* pointer) { return forward(&Driver::mem_free_host, pointer); }
CENOTE_EXPORT int cuMemHostRegister_v2(void* pointer, std::size_t bytes, unsigned flags) {
  return forward(&Driver::mem_host_register, pointer, bytes, flags);
}
CENOTE_EXPORT int cuMemHostUnregister(void* pointer) {
  return forward(&Driver::mem_host_unregister, pointer);
}
CENOTE_EXPORT int cuMemHostGetDevicePointer_v2(DevicePtr* device, void* pointer, unsigned flags) {
  if (device == nullptr || flags != 0) return kInvalidValue;
  return forward(&Driver::pointer_get_attribute, static_cast<void*>(device), PointerAttribute::device_pointer,
                 reinterpret_cast<DevicePtr>(pointer));
}
CENOTE_EXPORT int cuPointerGetAttribute(void* value, int attribute, DevicePtr pointer) {
  return forward(&Driver::pointer_get_attribute, value, static_cast<PointerAttribute>(attribute), pointer);
}
// Unlike the single one, this answers zeroes for what the driver does not know.
CENOTE_EXPORT int cuPointerGetAttributes(unsigned count, int* attributes, void** values, DevicePtr pointer) {
  if (attributes == nullptr || values == nullptr) return kInvalidValue;
  for (unsigned i = 0; i < count; ++i) {
    if (values[i] == nullptr) return kInvalidValue;
    const int status = cuPointerGetAttribute(values[i], attributes[i], pointer);
    if (status != 0 && status != kInvalidValue) return status;
    if (status == 0) continue;
    const auto attribute = static_cast<PointerAttribute>(attributes[i]);
    const bool wide =
        attribute == PointerAttribute::context || attribute == PointerAttribute::device_pointer ||
        attribute == PointerAttribute::host_pointer || attribute == PointerAttribute::range_start_address ||
        attribute == PointerAttribute::range_size;
    const int none = attribute == PointerAttribute::device_ordinal ? -2 : 0;
    if (wide) {
      std::memset(values[i], 0, sizeof(void*));
    } else {
      std::memcpy(values[i], &none, sizeof(none));
    }
  }
  return 0;
}
CENOTE_EXPORT int cuIpcGetMemHandle(IpcMemHandle* handle, DevicePtr pointer) {
  return forward(&Driver::ipc_get_mem_handle, handle, pointer);
}
CENOTE_EXPORT int cuIpcOpenMemHandle_v2(DevicePtr* pointer, IpcMemHandle handle, unsigned flags) {
  return forward(&Driver::ipc_open_mem_handle, pointer, handle, flags);
}
CENOTE_EXPORT int cuIpcCloseMemHandle(DevicePtr pointer) {
  return forward(&Driver::ipc_close_mem_handle, pointer);
}

CENOTE_EXPORT int cuMemAddressReserve(DevicePtr* pointer, std::size_t bytes, std::size_t alignment,
                                      DevicePtr hint, unsigned long long flags) {
  return flags != 0 ? kInvalidValue : forward(&Driver::mem_address_reserve, pointer, bytes, alignment, hint);
}
CENOTE_EXPORT int cuMemAddressFree(DevicePtr pointer, std::size_t bytes) {
  return forward(&Driver::mem_address_free, pointer, bytes);
}
CENOTE_EXPORT int cuMemCreate(AllocationHandle* handle, std::size_t bytes, const MemAllocationProp* wanted,
                              unsigned long long flags) {
  if (flags != 0) return kInvalidValue;
  const int status = check(wanted);
  return status != 0 ? status : forward(&Driver::mem_create, handle, bytes, wanted->location.id);
}
CENOTE_EXPORT int cuMemRelease(AllocationHandle handle) { return forward(&Driver::mem_release, handle); }
CENOTE_EXPORT int cuMemMap(DevicePtr pointer, std::size_t bytes, std::size_t offset, AllocationHandle handle,
                           unsigned long long flags) {
  return flags != 0 ? kInvalidValue : forward(&Driver::mem_map, pointer, bytes, offset, handle);
}
CENOTE_EXPORT int cuMemUnmap(DevicePtr pointer, std::size_t bytes) {
  return forward(&Driver::mem_unmap, pointer, bytes);
}
CENOTE_EXPORT int cuMemSetAccess(DevicePtr pointer, std::size_t bytes, const MemAccessDesc* access,
                                 std::size_t count) {
  if (access == nullptr || count == 0) return kInvalidValue;
  for (std::size_t i = 0; i < count; ++i) {
    if (access[i].location.type != mem_location_device || access[i].flags != mem_access_read_write)
      return kNotSupported;
    const int status = forward(&Driver::mem_set_access, pointer, bytes, access[i].location.id);
    if (status != 0) return status;
  }
  return 0;
}
CENOTE_EXPORT int cuMemGetAllocationGranularity(std::size_t* granularity, const MemAllocationProp* wanted,
                                                int option) {
  if (option != mem_granularity_minimum && option != mem_granularity_recommended) return kInvalidValue;
  const int status = check(wanted);
  return status != 0 ? status
                     : forward(&Driver::mem_get_allocation_granularity, granularity, wanted->location.id);
}
CENOTE_EXPORT int cuMemGetHandleForAddressRange(void* handle, DevicePtr pointer, std::size_t bytes, int type,
                                                unsigned long long flags) {
  if (type != range_handle_dma_buf_fd || flags != 0) return kNotSupported;
  return forward(&Driver::mem_get_dmabuf_fd, static_cast<int*>(handle), pointer, bytes);
}
CENOTE_EXPORT int cuFlushGPUDirectRDMAWrites(int target, int scope) {
  if (target != flush_target_current_context || (scope != flush_to_owner && scope != flush_to_all_devices)) {
    return kInvalidValue;
  }
  return forward(&Driver::flush_gpu_direct_rdma_writes);
}

CENOTE_EXPORT int cuMemcpyHtoDAsync_v2(DevicePtr dst, const void* src, std::size_t bytes, Stream stream) {
  return forward(&Driver::memcpy_htod_async, dst, src, bytes, stream);
}
CENOTE_EXPORT int cuMemcpyDtoHAsync_v2(void* dst, DevicePtr src, std::size_t bytes, Stream stream) {
  return forward(&Driver::memcpy_dtoh_async, dst, src, bytes, stream);
}
CENOTE_EXPORT int cuMemcpyDtoDAsync_v2(DevicePtr dst, DevicePtr src, std::size_t bytes, Stream stream) {
  return forward(&Driver::memcpy_dtod_async, dst, src, bytes, stream);
}
CENOTE_EXPORT int cuMemsetD8Async(DevicePtr dst, unsigned char value, std::size_t count, Stream stream) {
  return forward(&Driver::memset_d8_async, dst, value, count, stream);
}
CENOTE_EXPORT int cuMemsetD32Async(DevicePtr dst, unsigned value, std::size_t count, Stream stream) {
  return forward(&Driver::memset_d32_async, dst, value, count, stream);
}
CENOTE_EXPORT int cuMemcpyHtoD_v2(DevicePtr dst, const void* src, std::size_t bytes) {
  return forward(&Driver::memcpy_htod, dst, src, bytes);
}
CENOTE_EXPORT int cuMemcpyDtoH_v2(void* dst, DevicePtr src, std::size_t bytes) {
  return forward(&Driver::memcpy_dtoh, dst, src, bytes);
}
CENOTE_EXPORT int cuMemcpyDtoD_v2(DevicePtr dst, DevicePtr src, std::size_t bytes) {
  return forward(&Driver::memcpy_dtod, dst, src, bytes);
}
CENOTE_EXPORT int cuMemsetD8_v2(DevicePtr dst, unsigned char value, std::size_t count) {
  return forward(&Driver::memset_d8, dst, value, count);
}
CENOTE_EXPORT int cuMemsetD32_v2(DevicePtr dst, unsigned value, std::size_t count) {
  return cuMemsetD32Async(dst, value, count, nullptr);
}
// Unified addressing: the addresses say whose memory it is, so the contexts need not.
CENOTE_EXPORT int cuMemcpyPeerAsync(DevicePtr dst, Context /*to*/, DevicePtr src, Context /*from*/,
                                    std::size_t bytes, Stream stream) {
  return cuMemcpyDtoDAsync_v2(dst, src, bytes, stream);
}
CENOTE_EXPORT int cuMemcpyPeer(DevicePtr dst, Context /*to*/, DevicePtr src, Context /*from*/,
                               std::size_t bytes) {
  return cuMemcpyDtoD_v2(dst, src, bytes);
}
// Here too they say which way it goes.
CENOTE_EXPORT int cuMemcpyAsync(DevicePtr dst, DevicePtr src, std::size_t bytes, Stream stream) {
  const bool to_device = on_device(dst);
  const bool from_device = on_device(src);
  if (to_device && from_device) return cuMemcpyDtoDAsync_v2(dst, src, bytes, stream);
  if (to_device) return cuMemcpyHtoDAsync_v2(dst, host(src), bytes, stream);
  if (from_device) return cuMemcpyDtoHAsync_v2(host(dst), src, bytes, stream);
  const int status = forward(&Driver::stream_synchronize, stream);
  if (status == 0) std::memmove(host(dst), host(src), bytes);
  return status;
}
CENOTE_EXPORT int cuMemcpy(DevicePtr dst, DevicePtr src, std::size_t bytes) {
  const int status = cuMemcpyAsync(dst, src, bytes, nullptr);
  return status != 0 ? status : forward(&Driver::stream_synchronize, static_cast<Stream>(nullptr));
}

// The variants for programs built with a default stream per thread.
CENOTE_EXPORT int cuMemcpyHtoDAsync_v2_ptsz(DevicePtr dst, const void* src, std::size_t bytes,
                                            Stream stream) {
  return cuMemcpyHtoDAsync_v2(dst, src, bytes, per_thread(stream));
}
CENOTE_EXPORT int cuMemcpyDtoHAsync_v2_ptsz(void* dst, DevicePtr src, std::size_t bytes, Stream stream) {
  return cuMemcpyDtoHAsync_v2(dst, src, bytes, per_thread(stream));
}
CENOTE_EXPORT int cuMemcpyDtoDAsync_v2_ptsz(DevicePtr dst, DevicePtr src, std::size_t bytes, Stream stream) {
  return cuMemcpyDtoDAsync_v2(dst, src, bytes, per_thread(stream));
}
CENOTE_EXPORT int cuMemcpyAsync_ptsz(DevicePtr dst, DevicePtr src, std::size_t bytes, Stream stream) {
  return cuMemcpyAsync(dst, src, bytes, per_thread(stream));
}
CENOTE_EXPORT int cuMemsetD8Async_ptsz(DevicePtr dst, unsigned char value, std::size_t count, Stream stream) {
  return cuMemsetD8Async(dst, value, count, per_thread(stream));
}
CENOTE_EXPORT int cuMemsetD32Async_ptsz(DevicePtr dst, unsigned value, std::size_t count, Stream stream) {
  return cuMemsetD32Async(dst, value, count, per_thread(stream));
}
CENOTE_EXPORT int cuMemcpyHtoD_v2_ptds(DevicePtr dst, const void* src, std::size_t bytes) {
  return and_wait([&] { return cuMemcpyHtoDAsync_v2(dst, src, bytes, per_thread(nullptr)); });
}
CENOTE_EXPORT int cuMemcpyDtoH_v2_ptds(void* dst, DevicePtr src, std::size_t bytes) {
  return and_wait([&] { return cuMemcpyDtoHAsync_v2(dst, src, bytes, per_thread(nullptr)); });
}
CENOTE_EXPORT int cuMemcpyDtoD_v2_ptds(DevicePtr dst, DevicePtr src, std::size_t bytes) {
  return cuMemcpyDtoDAsync_v2(dst, src, bytes, per_thread(nullptr));
}
CENOTE_EXPORT int cuMemcpy_ptds(DevicePtr dst, DevicePtr src, std::size_t bytes) {
  return and_wait([&] { return cuMemcpyAsync(dst, src, bytes, per_thread(nullptr)); });
}
CENOTE_EXPORT int cuMemsetD8_v2_ptds(DevicePtr dst, unsigned char value, std::size_t count) {
  return cuMemsetD8Async(dst, value, count, per_thread(nullptr));
}
CENOTE_EXPORT int cuMemsetD32_v2_ptds(DevicePtr dst, unsigned value, std::size_t count) {
  return cuMemsetD32Async(dst, value, count, per_thread(nullptr));
}
