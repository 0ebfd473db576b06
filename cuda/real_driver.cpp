#include "cuda/real_driver.h"

#include <dlfcn.h>

#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/abi/types.h"
#include "cuda/fatbin.h"

namespace cenote::cuda {
namespace {

// NOLINTBEGIN(bugprone-macro-parentheses): the arguments are names and parameter lists

// libcuda's functions, under the names of the methods that call them.
struct Table {
#define CENOTE_CU(member, name, version, symbol, need, arguments) int(*member) arguments = nullptr;
#include "cuda/abi/functions.def"
#undef CENOTE_CU
};

// NOLINTEND(bugprone-macro-parentheses)

enum class Need { required, optional };

using GetProcAddress = int (*)(const char*, void**, int, std::uint64_t);
using GetProcAddress2 = int (*)(const char*, void**, int, std::uint64_t, int*);

// How the library is asked for a function: the newest way that it knows.
class Resolver {
 public:
  explicit Resolver(void* library)
      : library_(library),
        newer_(reinterpret_cast<GetProcAddress2>(dlsym(library, "cuGetProcAddress_v2"))),
        older_(reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress"))) {}

  [[nodiscard]] void* find(const char* name, int version, const char* symbol) const {
    void* found = nullptr;
    int how = abi::proc_found;
    if (newer_ != nullptr && newer_(name, &found, version, abi::proc_legacy_stream, &how) == 0 &&
        found != nullptr) {
      return found;
    }
    if (newer_ == nullptr && older_ != nullptr &&
        older_(name, &found, version, abi::proc_legacy_stream) == 0 && found != nullptr) {
      return found;
    }
    return dlsym(library_, symbol);
  }

 private:
  void* library_;
  GetProcAddress2 newer_;
  GetProcAddress older_;
};

class RealDriver final : public Driver {
 public:
  RealDriver(Table table, std::string library) : cu_(table), library_(std::move(library)) {}

  [[nodiscard]] std::string name() const override {
    int version = 0;
    if (cu_.driver_get_version(&version) != 0) return library_;
    return library_ + " " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  }

  Status init(unsigned flags) override { return call(cu_.init, flags); }
  Status driver_get_version(int* version) override { return call(cu_.driver_get_version, version); }
  Status device_get_count(int* count) override { return call(cu_.device_get_count, count); }
  Status device_get(DeviceId* device, int ordinal) override { return call(cu_.device_get, device, ordinal); }
  Status device_get_name(char* name, int length, DeviceId device) override {
    return call(cu_.device_get_name, name, length, device);
  }
  Status device_get_uuid(DeviceUuid* uuid, DeviceId device) override {
    return call(cu_.device_get_uuid, uuid, device);
  }
  Status device_total_mem(std::size_t* bytes, DeviceId device) override {
    return call(cu_.device_total_mem, bytes, device);
  }
  Status device_get_attribute(int* value, DeviceAttribute attribute, DeviceId device) override {
    return call(cu_.device_get_attribute, value, static_cast<int>(attribute), device);
  }

  Status primary_ctx_retain(Context* context, DeviceId device) override {
    return call(cu_.primary_ctx_retain, context, device);
  }
  Status primary_ctx_release(DeviceId device) override { return call(cu_.primary_ctx_release, device); }
  Status ctx_create(Context* context, unsigned flags, DeviceId device) override {
    return call(cu_.ctx_create, context, flags, device);
  }
  Status ctx_destroy(Context context) override { return call(cu_.ctx_destroy, context); }
  Status ctx_set_current(Context context) override { return call(cu_.ctx_set_current, context); }
  Status ctx_get_current(Context* context) override { return call(cu_.ctx_get_current, context); }
  Status ctx_push_current(Context context) override { return call(cu_.ctx_push_current, context); }
  Status ctx_pop_current(Context* context) override { return call(cu_.ctx_pop_current, context); }
  Status ctx_get_device(DeviceId* device) override { return call(cu_.ctx_get_device, device); }
  Status ctx_synchronize() override { return call(cu_.ctx_synchronize); }
  Status device_can_access_peer(int* can, DeviceId device, DeviceId peer) override {
    return call(cu_.device_can_access_peer, can, device, peer);
  }
  Status ctx_enable_peer_access(Context peer, unsigned flags) override {
    return call(cu_.ctx_enable_peer_access, peer, flags);
  }

  Status mem_get_info(std::size_t* free, std::size_t* total) override {
    return call(cu_.mem_get_info, free, total);
  }
  Status mem_alloc(DevicePtr* pointer, std::size_t bytes) override {
    return call(cu_.mem_alloc, pointer, bytes);
  }
  Status mem_free(DevicePtr pointer) override { return call(cu_.mem_free, pointer); }
  Status mem_get_address_range(DevicePtr* base, std::size_t* size, DevicePtr pointer) override {
    return call(cu_.mem_get_address_range, base, size, pointer);
  }
  Status mem_host_alloc(void** pointer, std::size_t bytes, unsigned flags) override {
    return call(cu_.mem_host_alloc, pointer, bytes, flags);
  }
  Status mem_free_host(void* pointer) override { return call(cu_.mem_free_host, pointer); }
  Status mem_host_register(void* pointer, std::size_t bytes, unsigned flags) override {
    return call(cu_.mem_host_register, pointer, bytes, flags);
  }
  Status mem_host_unregister(void* pointer) override { return call(cu_.mem_host_unregister, pointer); }
  Status pointer_get_attribute(void* value, PointerAttribute attribute, DevicePtr pointer) override {
    return call(cu_.pointer_get_attribute, value, static_cast<int>(attribute), pointer);
  }
  Status ipc_get_mem_handle(IpcMemHandle* handle, DevicePtr pointer) override {
    return call(cu_.ipc_get_mem_handle, handle, pointer);
  }
  Status ipc_open_mem_handle(DevicePtr* pointer, IpcMemHandle handle, unsigned flags) override {
    return call(cu_.ipc_open_mem_handle, pointer, handle, flags);
  }
  Status ipc_close_mem_handle(DevicePtr pointer) override { return call(cu_.ipc_close_mem_handle, pointer); }

  Status mem_address_reserve(DevicePtr* pointer, std::size_t bytes, std::size_t alignment,
                             DevicePtr hint) override {
    return call(cu_.mem_address_reserve, pointer, bytes, alignment, hint, 0ull);
  }
  Status mem_address_free(DevicePtr pointer, std::size_t bytes) override {
    return call(cu_.mem_address_free, pointer, bytes);
  }
  Status mem_create(AllocationHandle* handle, std::size_t bytes, DeviceId device) override {
    const auto wanted = pinned_on(device);
    return call(cu_.mem_create, handle, bytes, &wanted, 0ull);
  }
  Status mem_release(AllocationHandle handle) override { return call(cu_.mem_release, handle); }
  Status mem_map(DevicePtr pointer, std::size_t bytes, std::size_t offset, AllocationHandle handle) override {
    return call(cu_.mem_map, pointer, bytes, offset, handle, 0ull);
  }
  Status mem_unmap(DevicePtr pointer, std::size_t bytes) override {
    return call(cu_.mem_unmap, pointer, bytes);
  }
  Status mem_set_access(DevicePtr pointer, std::size_t bytes, DeviceId device) override {
    const abi::MemAccessDesc access{{abi::mem_location_device, device}, abi::mem_access_read_write};
    return call(cu_.mem_set_access, pointer, bytes, &access, std::size_t{1});
  }
  Status mem_get_allocation_granularity(std::size_t* granularity, DeviceId device) override {
    const auto wanted = pinned_on(device);
    return call(cu_.mem_get_allocation_granularity, granularity, &wanted, abi::mem_granularity_minimum);
  }
  Status mem_get_dmabuf_fd(int* fd, DevicePtr pointer, std::size_t bytes) override {
    return call(cu_.mem_get_handle_for_address_range, static_cast<void*>(fd), pointer, bytes,
                abi::range_handle_dma_buf_fd, 0ull);
  }
  Status flush_gpu_direct_rdma_writes() override {
    return call(cu_.flush_gpu_direct_rdma_writes, abi::flush_target_current_context, abi::flush_to_owner);
  }

  Status memcpy_htod(DevicePtr dst, const void* src, std::size_t bytes) override {
    return call(cu_.memcpy_htod, dst, src, bytes);
  }
  Status memcpy_dtoh(void* dst, DevicePtr src, std::size_t bytes) override {
    return call(cu_.memcpy_dtoh, dst, src, bytes);
  }
  Status memcpy_dtod(DevicePtr dst, DevicePtr src, std::size_t bytes) override {
    return call(cu_.memcpy_dtod, dst, src, bytes);
  }
  Status memcpy_htod_async(DevicePtr dst, const void* src, std::size_t bytes, Stream stream) override {
    return call(cu_.memcpy_htod_async, dst, src, bytes, stream);
  }
  Status memcpy_dtoh_async(void* dst, DevicePtr src, std::size_t bytes, Stream stream) override {
    return call(cu_.memcpy_dtoh_async, dst, src, bytes, stream);
  }
  Status memcpy_dtod_async(DevicePtr dst, DevicePtr src, std::size_t bytes, Stream stream) override {
    return call(cu_.memcpy_dtod_async, dst, src, bytes, stream);
  }
  Status memset_d8(DevicePtr dst, unsigned char value, std::size_t count) override {
    return call(cu_.memset_d8, dst, value, count);
  }
  Status memset_d8_async(DevicePtr dst, unsigned char value, std::size_t count, Stream stream) override {
    return call(cu_.memset_d8_async, dst, value, count, stream);
  }
  Status memset_d32_async(DevicePtr dst, unsigned value, std::size_t count, Stream stream) override {
    return call(cu_.memset_d32_async, dst, value, count, stream);
  }

  Status stream_create(Stream* stream, unsigned flags) override {
    return call(cu_.stream_create, stream, flags);
  }
  Status stream_destroy(Stream stream) override { return call(cu_.stream_destroy, stream); }
  Status stream_synchronize(Stream stream) override { return call(cu_.stream_synchronize, stream); }
  Status stream_query(Stream stream) override { return call(cu_.stream_query, stream); }
  Status stream_wait_event(Stream stream, Event event, unsigned flags) override {
    return call(cu_.stream_wait_event, stream, event, flags);
  }
  Status stream_wait_value32(Stream stream, DevicePtr address, std::uint32_t value, unsigned flags) override {
    return call(cu_.stream_wait_value32, stream, address, value, flags);
  }
  Status stream_write_value32(Stream stream, DevicePtr address, std::uint32_t value,
                              unsigned flags) override {
    return call(cu_.stream_write_value32, stream, address, value, flags);
  }
  Status launch_host_func(Stream stream, HostFn function, void* user) override {
    return call(cu_.launch_host_func, stream, function, user);
  }
  Status event_create(Event* event, unsigned flags) override { return call(cu_.event_create, event, flags); }
  Status event_destroy(Event event) override { return call(cu_.event_destroy, event); }
  Status event_record(Event event, Stream stream) override { return call(cu_.event_record, event, stream); }
  Status event_query(Event event) override { return call(cu_.event_query, event); }
  Status event_synchronize(Event event) override { return call(cu_.event_synchronize, event); }
  Status event_elapsed_time(float* ms, Event start, Event end) override {
    return call(cu_.event_elapsed_time, ms, start, end);
  }

  Status module_load_data(Module* module, const void* image, std::size_t size) override;
  Status module_unload(Module module) override { return call(cu_.module_unload, module); }
  Status module_get_function(Function* function, Module module, const char* name) override {
    return call(cu_.module_get_function, function, module, name);
  }
  Status module_get_global(DevicePtr* pointer, std::size_t* bytes, Module module, const char* name) override {
    return call(cu_.module_get_global, pointer, bytes, module, name);
  }
  Status func_get_attribute(int* value, FunctionAttribute attribute, Function function) override {
    return call(cu_.func_get_attribute, value, static_cast<int>(attribute), function);
  }
  Status func_set_attribute(Function function, FunctionAttribute attribute, int value) override {
    return call(cu_.func_set_attribute, function, static_cast<int>(attribute), value);
  }
  Status func_get_param_info(ParamInfo* info, Function function, std::size_t index) override {
    if (info == nullptr) return Status::invalid_value;
    return call(cu_.func_get_param_info, function, index, &info->offset, &info->size);
  }
  Status launch_kernel(Function function, const LaunchConfig& config, Stream stream, void** params) override {
    return launch(function, config, stream, params, nullptr);
  }
  Status launch_kernel_packed(Function function, const LaunchConfig& config, Stream stream,
                              const void* buffer, std::size_t bytes) override {
    // NOLINTBEGIN(performance-no-int-to-ptr): the array's tags are small numbers in pointers
    void* extra[] = {reinterpret_cast<void*>(abi::launch_param_buffer_pointer), const_cast<void*>(buffer),
                     reinterpret_cast<void*>(abi::launch_param_buffer_size), &bytes,
                     reinterpret_cast<void*>(abi::launch_param_end)};
    // NOLINTEND(performance-no-int-to-ptr)
    return launch(function, config, stream, nullptr, extra);
  }

 private:
  template <class... Formal, class... Actual>
  static Status call(int (*function)(Formal...), Actual... arguments) {
    if (function == nullptr) return Status::not_supported;
    return static_cast<Status>(function(arguments...));
  }

  Status launch(Function function, const LaunchConfig& c, Stream stream, void** params, void** extra) {
    return call(cu_.launch_kernel, function, c.grid[0], c.grid[1], c.grid[2], c.block[0], c.block[1],
                c.block[2], c.shared_bytes, stream, params, extra);
  }

  // Pinned memory on the device, reachable by NICs where the device can map it so.
  abi::MemAllocationProp pinned_on(DeviceId device) {
    abi::MemAllocationProp wanted{};
    wanted.type = abi::mem_allocation_pinned;
    wanted.location = {abi::mem_location_device, device};
    int reachable = 0;
    if (cu_.device_get_attribute(&reachable, abi::attribute_gpu_direct_rdma_with_vmm, device) == 0 &&
        reachable != 0) {
      wanted.flags.gpu_direct_rdma_capable = 1;
    }
    return wanted;
  }

  const Table cu_;
  const std::string library_;
};

// libcuda trusts an image's own lengths; here they are checked against `size` first.
Status RealDriver::module_load_data(Module* module, const void* image, std::size_t size) {
  if (image == nullptr) return Status::invalid_value;
  if (size == 0) return call(cu_.module_load_data, module, image);
  constexpr std::size_t kHeader = 16;
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(image), size);
  if (is_fatbin(bytes)) {
    const auto needed = size >= kHeader ? fatbin_size(bytes.first(kHeader)) : 0;
    if (needed == 0 || needed > size) return Status::invalid_image;
    return call(cu_.module_load_data, module, image);
  }
  std::uint32_t magic = 0;
  if (size >= sizeof(magic)) std::memcpy(&magic, image, sizeof(magic));
  // A wrapper holds pointers, and an ELF file lengths that nobody here checks.
  if (magic == fatbin_wrapper_magic || magic == 0x464C457F) return Status::invalid_image;
  if (std::memchr(image, 0, size) != nullptr) return call(cu_.module_load_data, module, image);
  std::vector<char> text(size + 1);
  std::memcpy(text.data(), image, size);
  return call(cu_.module_load_data, module, static_cast<const void*>(text.data()));
}

}  // namespace

Result<std::unique_ptr<Driver>> load_real_driver(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return fail(Error{ErrorCode::not_found, "open the CUDA driver",
                      why != nullptr ? why : library + ": no reason given"}
                    .fix("install the NVIDIA driver (its library is libcuda.so.1), or use emulated GPUs"));
  }
  const Resolver resolver(handle);
  Table table;
  std::string missing;
// NOLINTBEGIN(bugprone-macro-parentheses)
#define CENOTE_CU(member, name, version, symbol, need, arguments)                          \
  table.member = reinterpret_cast<int(*) arguments>(resolver.find(name, version, symbol)); \
  if (table.member == nullptr && Need::need == Need::required) missing += std::string(" ") + symbol;
#include "cuda/abi/functions.def"
#undef CENOTE_CU
  // NOLINTEND(bugprone-macro-parentheses)
  if (!missing.empty()) {
    return fail(Error{ErrorCode::not_supported, "use the CUDA driver " + library, "it has no" + missing}.fix(
        "update the NVIDIA driver to one of CUDA 11.7 or newer"));
  }
  return std::make_unique<RealDriver>(table, library);
}

}  // namespace cenote::cuda
