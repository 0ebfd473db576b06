// Memory: allocation, copies, symbols.
#include <cstring>

#include "pool/dropin/cudart/runtime.h"

using namespace cenote;
using namespace cenote::cudart;
using cuda::DevicePtr;
using cuda::Status;
using cuda::Stream;

namespace {

const Stream per_thread_stream = reinterpret_cast<Stream>(2);  // CU_STREAM_PER_THREAD

DevicePtr device(const void* pointer) { return reinterpret_cast<DevicePtr>(pointer); }
// NOLINTNEXTLINE(performance-no-int-to-ptr): the driver has addresses as numbers, its callers as pointers
void* pointer_to(DevicePtr address) { return reinterpret_cast<void*>(address); }

/// memory_type of a pointer as the driver knows it; unregistered host memory is an error there.
int type_of(const void* pointer) {
  unsigned type = 0;
  const auto status = Runtime::get().driver().pointer_get_attribute(
      &type, cuda::PointerAttribute::memory_type, device(pointer));
  return status == Status::success ? static_cast<int>(type) : static_cast<int>(type_unregistered);
}

int resolve(int kind, const void* dst, const void* src) {
  if (kind != any_to_any) return kind;
  const bool to = type_of(dst) == type_device, from = type_of(src) == type_device;
  if (to) return from ? device_to_device : host_to_device;
  return from ? device_to_host : host_to_host;
}

int copy_async(void* dst, const void* src, std::size_t bytes, int kind, Stream stream) {
  CENOTE_RT_TRY(Runtime::get().enter());
  if (bytes == 0) return success;
  auto& driver = Runtime::get().driver();
  switch (resolve(kind, dst, src)) {
    case host_to_device:
      return remember(driver.memcpy_htod_async(device(dst), src, bytes, stream));
    case device_to_host:
      return remember(driver.memcpy_dtoh_async(dst, device(src), bytes, stream));
    case device_to_device:
      return remember(driver.memcpy_dtod_async(device(dst), device(src), bytes, stream));
    case host_to_host:
      CENOTE_RT_TRY(driver.stream_synchronize(stream));
      std::memmove(dst, src, bytes);
      return success;
    default:
      return remember(invalid_memcpy_direction);
  }
}

int copy(void* dst, const void* src, std::size_t bytes, int kind) {
  CENOTE_RT_TRY(Runtime::get().enter());
  if (bytes == 0) return success;
  auto& driver = Runtime::get().driver();
  switch (resolve(kind, dst, src)) {
    case host_to_device:
      return remember(driver.memcpy_htod(device(dst), src, bytes));
    case device_to_host:
      return remember(driver.memcpy_dtoh(dst, device(src), bytes));
    case device_to_device:
      return remember(driver.memcpy_dtod(device(dst), device(src), bytes));
    case host_to_host:
      std::memmove(dst, src, bytes);
      return success;
    default:
      return remember(invalid_memcpy_direction);
  }
}

int copy_per_thread(void* dst, const void* src, std::size_t bytes, int kind) {
  CENOTE_RT_TRY(copy_async(dst, src, bytes, kind, per_thread_stream));
  return remember(Runtime::get().driver().stream_synchronize(per_thread_stream));
}

/// Address of `bytes` bytes at `offset` in a device variable.
int place(const void* symbol, std::size_t bytes, std::size_t offset, void** address) {
  DevicePtr base = 0;
  std::size_t size = 0;
  CENOTE_RT_TRY(Runtime::get().variable(symbol, &base, &size));
  if (offset > size || bytes > size - offset) return remember(invalid_value);
  *address = pointer_to(base + offset);
  return success;
}

int copy_rows(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch, std::size_t width,
              std::size_t height, int kind, Stream stream) {
  if (width > dst_pitch || width > src_pitch) return remember(invalid_value);
  for (std::size_t row = 0; row < height; ++row) {
    CENOTE_RT_TRY(copy_async(static_cast<char*>(dst) + row * dst_pitch,
                             static_cast<const char*>(src) + row * src_pitch, width, kind, stream));
  }
  return success;
}

Stream or_per_thread(Stream stream) { return stream == nullptr ? per_thread_stream : stream; }

}  // namespace

CENOTE_RT int cudaMalloc(void** pointer, std::size_t bytes) {
  if (pointer == nullptr) return remember(invalid_value);
  CENOTE_RT_TRY(Runtime::get().enter());
  *pointer = nullptr;
  if (bytes == 0) return success;
  DevicePtr address = 0;
  CENOTE_RT_TRY(Runtime::get().driver().mem_alloc(&address, bytes));
  *pointer = pointer_to(address);
  return success;
}

CENOTE_RT int cudaFree(void* pointer) {
  CENOTE_RT_TRY(Runtime::get().enter());
  return pointer == nullptr ? success : remember(Runtime::get().driver().mem_free(device(pointer)));
}

CENOTE_RT int cudaMallocPitch(void** pointer, std::size_t* pitch, std::size_t width, std::size_t height) {
  if (pitch == nullptr) return remember(invalid_value);
  *pitch = (width + 511) / 512 * 512;
  return cudaMalloc(pointer, *pitch * height);
}

// Stream-ordered allocation over ordinary memory: the free waits for what was issued before it.
CENOTE_RT int cudaMallocAsync(void** pointer, std::size_t bytes, Stream /*stream*/) {
  return cudaMalloc(pointer, bytes);
}
CENOTE_RT int cudaMallocAsync_ptsz(void** pointer, std::size_t bytes, Stream /*stream*/) {
  return cudaMalloc(pointer, bytes);
}
CENOTE_RT int cudaFreeAsync(void* pointer, Stream stream) {
  CENOTE_RT_TRY(Runtime::get().enter());
  CENOTE_RT_TRY(Runtime::get().driver().stream_synchronize(stream));
  return cudaFree(pointer);
}
CENOTE_RT int cudaFreeAsync_ptsz(void* pointer, Stream stream) {
  return cudaFreeAsync(pointer, or_per_thread(stream));
}

CENOTE_RT int cudaHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
  if (pointer == nullptr) return remember(invalid_value);
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().mem_host_alloc(pointer, bytes, flags));
}
CENOTE_RT int cudaMallocHost(void** pointer, std::size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }
CENOTE_RT int cudaFreeHost(void* pointer) {
  CENOTE_RT_TRY(Runtime::get().enter());
  return pointer == nullptr ? success : remember(Runtime::get().driver().mem_free_host(pointer));
}
CENOTE_RT int cudaHostRegister(void* pointer, std::size_t bytes, unsigned flags) {
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().mem_host_register(pointer, bytes, flags));
}
CENOTE_RT int cudaHostUnregister(void* pointer) {
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().mem_host_unregister(pointer));
}
CENOTE_RT int cudaHostGetDevicePointer(void** pointer, void* host, unsigned /*flags*/) {
  if (pointer == nullptr) return remember(invalid_value);
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().pointer_get_attribute(
      pointer, cuda::PointerAttribute::device_pointer, device(host)));
}

CENOTE_RT int cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  if (free == nullptr || total == nullptr) return remember(invalid_value);
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().mem_get_info(free, total));
}

CENOTE_RT int cudaPointerGetAttributes(PointerAttributes* attributes, const void* pointer) {
  if (attributes == nullptr) return remember(invalid_value);
  CENOTE_RT_TRY(Runtime::get().enter());
  *attributes = {};
  attributes->type = type_of(pointer);
  attributes->device = -2;  // cudaInvalidDeviceId: plain host memory has none
  if (attributes->type == type_unregistered) {
    attributes->host_pointer = const_cast<void*>(pointer);
    return success;
  }
  auto& driver = Runtime::get().driver();
  driver.pointer_get_attribute(&attributes->device, cuda::PointerAttribute::device_ordinal, device(pointer));
  driver.pointer_get_attribute(&attributes->device_pointer, cuda::PointerAttribute::device_pointer,
                               device(pointer));
  if (attributes->type == type_host)
    driver.pointer_get_attribute(&attributes->host_pointer, cuda::PointerAttribute::host_pointer,
                                 device(pointer));
  return success;
}

CENOTE_RT int cudaMemcpy(void* dst, const void* src, std::size_t n, int kind) {
  return copy(dst, src, n, kind);
}
CENOTE_RT int cudaMemcpy_ptds(void* dst, const void* src, std::size_t n, int kind) {
  return copy_per_thread(dst, src, n, kind);
}
CENOTE_RT int cudaMemcpyAsync(void* dst, const void* src, std::size_t n, int kind, Stream stream) {
  return copy_async(dst, src, n, kind, stream);
}
CENOTE_RT int cudaMemcpyAsync_ptsz(void* dst, const void* src, std::size_t n, int kind, Stream stream) {
  return copy_async(dst, src, n, kind, or_per_thread(stream));
}
CENOTE_RT int cudaMemcpyPeer(void* dst, int /*dst_device*/, const void* src, int /*src_device*/,
                             std::size_t n) {
  return copy(dst, src, n, device_to_device);
}
CENOTE_RT int cudaMemcpyPeerAsync(void* dst, int /*dst_device*/, const void* src, int /*src_device*/,
                                  std::size_t n, Stream stream) {
  return copy_async(dst, src, n, device_to_device, stream);
}
CENOTE_RT int cudaMemcpy2DAsync(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch,
                                std::size_t width, std::size_t height, int kind, Stream stream) {
  return copy_rows(dst, dst_pitch, src, src_pitch, width, height, kind, stream);
}
CENOTE_RT int cudaMemcpy2D(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch,
                           std::size_t width, std::size_t height, int kind) {
  CENOTE_RT_TRY(copy_rows(dst, dst_pitch, src, src_pitch, width, height, kind, nullptr));
  return remember(Runtime::get().driver().stream_synchronize(nullptr));
}

CENOTE_RT int cudaMemset(void* dst, int value, std::size_t n) {
  CENOTE_RT_TRY(Runtime::get().enter());
  return n == 0
             ? success
             : remember(Runtime::get().driver().memset_d8(device(dst), static_cast<unsigned char>(value), n));
}
CENOTE_RT int cudaMemsetAsync(void* dst, int value, std::size_t n, Stream stream) {
  CENOTE_RT_TRY(Runtime::get().enter());
  if (n == 0) return success;
  return remember(
      Runtime::get().driver().memset_d8_async(device(dst), static_cast<unsigned char>(value), n, stream));
}
CENOTE_RT int cudaMemsetAsync_ptsz(void* dst, int value, std::size_t n, Stream stream) {
  return cudaMemsetAsync(dst, value, n, or_per_thread(stream));
}

CENOTE_RT int cudaGetSymbolAddress(void** address, const void* symbol) {
  if (address == nullptr) return remember(invalid_value);
  return place(symbol, 0, 0, address);
}
CENOTE_RT int cudaGetSymbolSize(std::size_t* bytes, const void* symbol) {
  if (bytes == nullptr) return remember(invalid_value);
  DevicePtr address = 0;
  return remember(Runtime::get().variable(symbol, &address, bytes));
}
CENOTE_RT int cudaMemcpyToSymbol(const void* symbol, const void* src, std::size_t n, std::size_t offset,
                                 int kind) {
  void* address = nullptr;
  CENOTE_RT_TRY(place(symbol, n, offset, &address));
  return copy(address, src, n, kind);
}
CENOTE_RT int cudaMemcpyFromSymbol(void* dst, const void* symbol, std::size_t n, std::size_t offset,
                                   int kind) {
  void* address = nullptr;
  CENOTE_RT_TRY(place(symbol, n, offset, &address));
  return copy(dst, address, n, kind);
}
CENOTE_RT int cudaMemcpyToSymbolAsync(const void* symbol, const void* src, std::size_t n, std::size_t offset,
                                      int kind, Stream stream) {
  void* address = nullptr;
  CENOTE_RT_TRY(place(symbol, n, offset, &address));
  return copy_async(address, src, n, kind, stream);
}
CENOTE_RT int cudaMemcpyFromSymbolAsync(void* dst, const void* symbol, std::size_t n, std::size_t offset,
                                        int kind, Stream stream) {
  void* address = nullptr;
  CENOTE_RT_TRY(place(symbol, n, offset, &address));
  return copy_async(dst, address, n, kind, stream);
}

CENOTE_RT int cudaIpcGetMemHandle(cuda::IpcMemHandle* handle, void* pointer) {
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().ipc_get_mem_handle(handle, device(pointer)));
}
CENOTE_RT int cudaIpcOpenMemHandle(void** pointer, cuda::IpcMemHandle handle, unsigned flags) {
  if (pointer == nullptr) return remember(invalid_value);
  CENOTE_RT_TRY(Runtime::get().enter());
  DevicePtr address = 0;
  CENOTE_RT_TRY(Runtime::get().driver().ipc_open_mem_handle(&address, handle, flags));
  *pointer = pointer_to(address);
  return success;
}
CENOTE_RT int cudaIpcCloseMemHandle(void* pointer) {
  CENOTE_RT_TRY(Runtime::get().enter());
  return remember(Runtime::get().driver().ipc_close_mem_handle(device(pointer)));
}
