// EmulatedDriver: the driver table over everything else in this folder. Its methods stand in
// driver_<part>.cpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "cuda/emulator/address_space.h"
#include "cuda/emulator/context.h"
#include "cuda/emulator/device_heap.h"
#include "cuda/emulator/emulated_driver.h"
#include "cuda/emulator/event.h"
#include "cuda/emulator/handle_table.h"
#include "cuda/emulator/models.h"
#include "cuda/emulator/module.h"
#include "cuda/emulator/rdma.h"

namespace cenote::cuda::emulator {

/// A stream handle's object: the queue and whose it is.
struct StreamState {
  std::shared_ptr<ContextState> context;
  std::shared_ptr<StreamQueue> queue;
};

struct ContextEntry {
  std::shared_ptr<ContextState> state;
  Context handle = nullptr;
};

/// What a thread keeps for one driver. Its end closes the thread's default streams; what is in them still
/// runs.
struct ThreadState {
  struct DefaultStream {
    std::weak_ptr<ContextState> context;
    std::weak_ptr<StreamQueue> queue;
  };
  ThreadState() = default;
  ~ThreadState();
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;
  /// The default stream of this thread in `context`, made at its first use.
  std::shared_ptr<StreamQueue> default_stream(const std::shared_ptr<ContextState>& context);

  std::vector<ContextEntry> contexts;  ///< the current one last
  std::vector<DefaultStream> default_streams;
  std::string detail;
};

struct DeviceState {
  CardModel model{};
  std::string name;
  std::size_t memory_bytes = 0;
  std::size_t context_bytes = 0;
  unsigned worker_threads = 1;
  DeviceUuid uuid{};
  std::uint64_t peers = 0;
  std::unique_ptr<DeviceHeap> heap;  ///< from init() on
  std::shared_ptr<ContextState> primary;
  Context primary_handle = nullptr;
  unsigned primary_users = 0;
};

/// Memory of mem_create; back on the card when nobody holds it.
struct PhysicalMemory {
  DeviceHeap& heap;
  const int device;
  const std::uint64_t offset;
  const std::size_t size;
  PhysicalMemory(DeviceHeap& on, int ordinal, std::uint64_t at, std::size_t bytes)
      : heap(on), device(ordinal), offset(at), size(bytes) {}
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;
  ~PhysicalMemory() { heap.free(offset, size, true); }
};

struct OpenedHandle {
  DevicePtr pointer = 0;
  unsigned users = 0;
};

struct Refusals {
  bool ipc, dmabuf, address_hints, peer_access;
};

class EmulatedDriver final : public Driver {
 public:
  explicit EmulatedDriver(EmulatorOptions options);
  ~EmulatedDriver() override;
  EmulatedDriver(const EmulatedDriver&) = delete;
  EmulatedDriver& operator=(const EmulatedDriver&) = delete;

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string last_error_detail() const override;
  Status init(unsigned flags) override;
  Status driver_get_version(int* version) override;
  Status device_get_count(int* count) override;
  Status device_get(DeviceId* device, int ordinal) override;
  Status device_get_name(char* name, int length, DeviceId device) override;
  Status device_get_uuid(DeviceUuid* uuid, DeviceId device) override;
  Status device_total_mem(std::size_t* bytes, DeviceId device) override;
  Status device_get_attribute(int* value, DeviceAttribute attribute, DeviceId device) override;
  Status primary_ctx_retain(Context* context, DeviceId device) override;
  Status primary_ctx_release(DeviceId device) override;
  Status ctx_create(Context* context, unsigned flags, DeviceId device) override;
  Status ctx_destroy(Context context) override;
  Status ctx_set_current(Context context) override;
  Status ctx_get_current(Context* context) override;
  Status ctx_push_current(Context context) override;
  Status ctx_pop_current(Context* context) override;
  Status ctx_get_device(DeviceId* device) override;
  Status ctx_synchronize() override;
  Status device_can_access_peer(int* can, DeviceId device, DeviceId peer) override;
  Status ctx_enable_peer_access(Context peer, unsigned flags) override;
  Status mem_get_info(std::size_t* free, std::size_t* total) override;
  Status mem_alloc(DevicePtr* pointer, std::size_t bytes) override;
  Status mem_free(DevicePtr pointer) override;
  Status mem_get_address_range(DevicePtr* base, std::size_t* size, DevicePtr pointer) override;
  Status mem_host_alloc(void** pointer, std::size_t bytes, unsigned flags) override;
  Status mem_free_host(void* pointer) override;
  Status mem_host_register(void* pointer, std::size_t bytes, unsigned flags) override;
  Status mem_host_unregister(void* pointer) override;
  Status pointer_get_attribute(void* value, PointerAttribute attribute, DevicePtr pointer) override;
  Status ipc_get_mem_handle(IpcMemHandle* handle, DevicePtr pointer) override;
  Status ipc_open_mem_handle(DevicePtr* pointer, IpcMemHandle handle, unsigned flags) override;
  Status ipc_close_mem_handle(DevicePtr pointer) override;
  Status mem_address_reserve(DevicePtr* pointer, std::size_t bytes, std::size_t alignment,
                             DevicePtr hint) override;
  Status mem_address_free(DevicePtr pointer, std::size_t bytes) override;
  Status mem_create(AllocationHandle* handle, std::size_t bytes, DeviceId device) override;
  Status mem_release(AllocationHandle handle) override;
  Status mem_map(DevicePtr pointer, std::size_t bytes, std::size_t offset, AllocationHandle handle) override;
  Status mem_unmap(DevicePtr pointer, std::size_t bytes) override;
  Status mem_set_access(DevicePtr pointer, std::size_t bytes, DeviceId device) override;
  Status mem_get_allocation_granularity(std::size_t* granularity, DeviceId device) override;
  Status mem_get_dmabuf_fd(int* fd, DevicePtr pointer, std::size_t bytes) override;
  Status flush_gpu_direct_rdma_writes() override;
  Status memcpy_htod(DevicePtr dst, const void* src, std::size_t bytes) override;
  Status memcpy_dtoh(void* dst, DevicePtr src, std::size_t bytes) override;
  Status memcpy_dtod(DevicePtr dst, DevicePtr src, std::size_t bytes) override;
  Status memcpy_htod_async(DevicePtr dst, const void* src, std::size_t bytes, Stream stream) override;
  Status memcpy_dtoh_async(void* dst, DevicePtr src, std::size_t bytes, Stream stream) override;
  Status memcpy_dtod_async(DevicePtr dst, DevicePtr src, std::size_t bytes, Stream stream) override;
  Status memset_d8(DevicePtr dst, unsigned char value, std::size_t count) override;
  Status memset_d8_async(DevicePtr dst, unsigned char value, std::size_t count, Stream stream) override;
  Status memset_d32_async(DevicePtr dst, unsigned value, std::size_t count, Stream stream) override;
  Status stream_create(Stream* stream, unsigned flags) override;
  Status stream_destroy(Stream stream) override;
  Status stream_synchronize(Stream stream) override;
  Status stream_query(Stream stream) override;
  Status stream_wait_event(Stream stream, Event event, unsigned flags) override;
  Status stream_wait_value32(Stream stream, DevicePtr address, std::uint32_t value, unsigned flags) override;
  Status stream_write_value32(Stream stream, DevicePtr address, std::uint32_t value, unsigned flags) override;
  Status launch_host_func(Stream stream, HostFn function, void* user) override;
  Status event_create(Event* event, unsigned flags) override;
  Status event_destroy(Event event) override;
  Status event_record(Event event, Stream stream) override;
  Status event_query(Event event) override;
  Status event_synchronize(Event event) override;
  Status event_elapsed_time(float* ms, Event start, Event end) override;
  Status module_load_data(Module* module, const void* image, std::size_t size) override;
  Status module_unload(Module module) override;
  Status module_get_function(Function* function, Module module, const char* name) override;
  Status module_get_global(DevicePtr* pointer, std::size_t* bytes, Module module, const char* name) override;
  Status func_get_attribute(int* value, FunctionAttribute attribute, Function function) override;
  Status func_set_attribute(Function function, FunctionAttribute attribute, int value) override;
  Status func_get_param_info(ParamInfo* info, Function function, std::size_t index) override;
  Status launch_kernel(Function function, const LaunchConfig& config, Stream stream, void** params) override;
  Status launch_kernel_packed(Function function, const LaunchConfig& config, Stream stream,
                              const void* buffer, std::size_t bytes) override;

 private:
  struct State;
  /// Why a call cannot go on, or the calling thread's current context.
  struct Entered {
    Status status;
    ThreadState* thread;
    ContextState* context;
  };
  /// For calls that need init() only, and for calls that need a context that is well.
  Entered enter() const;
  Entered enter_context() const;
  ThreadState& thread_state() const;
  Status refuse(ThreadState& thread, Status status, std::string detail) const;
  Status fault_of(const Entered& in) const;

  Status init_devices();
  DeviceState* device(DeviceId id) const;
  Status make_context(DeviceState& card, DeviceId id, bool primary, ContextEntry& made);
  void destroy_context(const ContextEntry& entry);
  std::shared_ptr<ContextState> context_by_id(std::uint64_t id) const;

  std::optional<StreamState> stream(const Entered& in, Stream handle) const;
  Status enqueue(const Entered& in, const StreamState& on, Task task, std::vector<Mark> after = {},
                 std::optional<Mark>* where = nullptr);
  Status wait_for(const Entered& in, ContextState& context, const Mark& mark);
  Status copy(const Entered& in, Stream on, std::vector<Piece> to, std::vector<Piece> from, bool wait);
  Status copy_in(DevicePtr dst, const void* src, std::size_t bytes, Stream on, bool plain);
  Status copy_out(void* dst, DevicePtr src, std::size_t bytes, Stream on, bool plain);
  Status copy_within(DevicePtr dst, DevicePtr src, std::size_t bytes, Stream on);
  Status fill(DevicePtr dst, std::uint32_t pattern, std::size_t width, std::size_t count, Stream on);
  Status bad_range(const Entered& in, const char* what, DevicePtr pointer, std::size_t bytes) const;

  Status allocate(const Entered& in, std::size_t bytes, bool module, DevicePtr& pointer);
  void release_region(const Region& region);
  /// Contexts look at the address space anew, so that nobody holds on to what was mapped.
  void drop_views();
  bool is_device_address(DevicePtr pointer) const;
  Status ipc_open_in(const Entered& in, const IpcMemHandle& handle, DevicePtr& pointer);
  Status place_variables(const Entered& in, ModuleState& module);
  void free_variables(const ModuleState& module);
  Status check_launch(const Entered& in, const FunctionState& function, const LaunchConfig& config) const;
  Status launch(const Entered& in, std::shared_ptr<FunctionState> function, const LaunchConfig& config,
                Stream on, const std::byte* packed, void** params);

  State* const state_;  // left alone in a forked child: its threads are not there
};

}  // namespace cenote::cuda::emulator
