// RemoteDriverImpl: what RemoteDriver::connect makes. The calls are in client_*.cpp by theme.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "pool/remote/address_space.h"
#include "pool/remote/client_driver.h"
#include "pool/remote/client_lane.h"
#include "pool/remote/device_info.h"
#include "pool/remote/handle_table.h"

namespace cenote::pool::remote {

struct ContextEntry {
  bool primary = false;
  unsigned retained = 0;
  unsigned flags = 0;
};
struct StreamEntry {
  std::uint32_t context = 0;
};
struct EventEntry {
  std::uint32_t context = 0;
  unsigned flags = 0;
  bool recorded = false;
};
struct FunctionEntry {
  std::uint32_t context = 0;
  std::uint64_t module = 0;
  std::vector<cuda::ParamInfo> params{};
  std::size_t param_bytes = 0;
  std::map<int, int> attributes{};
  unsigned max_threads = 0, max_dynamic_shared = 0;
};
struct ModuleEntry {
  std::uint32_t context = 0;
  std::map<std::string, std::uint64_t, std::less<>> functions{};
  std::vector<std::uint64_t> globals{};
};

/// One device: its lane, what it is, and the client's books of what exists there.
struct RemoteDevice {
  RemoteDevice(Lane& l, std::uint32_t ordinal)
      : lane(l),
        contexts(HandleKind::context, ordinal, 0),
        streams(HandleKind::stream, ordinal, 3),
        events(HandleKind::event, ordinal, 0),
        modules(HandleKind::module, ordinal, 0),
        functions(HandleKind::function, ordinal, 0) {}

  Lane& lane;
  DeviceDescription info{};
  unsigned max_grid[3]{}, max_block[3]{}, max_threads = 0;
  AddressSpace space{};
  std::uint64_t known_free = 0;                      ///< memory that the worker can still map, as last heard
  std::map<std::uint64_t, std::uint64_t> globals{};  ///< addresses outside `space`: base -> bytes
  Handle primary{};
  HandleTable<ContextEntry> contexts;
  HandleTable<StreamEntry> streams;
  HandleTable<EventEntry> events;
  HandleTable<ModuleEntry> modules;
  HandleTable<FunctionEntry> functions;
  std::set<std::uint64_t> physical{};               ///< handles of mem_create
  std::map<std::uint64_t, std::uint64_t> mapped{};  ///< by mem_map: address -> bytes
  std::uint64_t next_physical = 1;
  std::uint32_t next_comm = 1;
};

class RemoteCommunicatorImpl;

class RemoteDriverImpl final : public RemoteDriver {
 public:
  RemoteDriverImpl(std::unique_ptr<transport::Fabric> fabric, const CancelFlag* cancel,
                   Clock::duration worker_timeout);
  ~RemoteDriverImpl() override;
  Result<void> open(const std::vector<WorkerAddress>& workers, Deadline deadline);

  // RemoteDriver
  Result<std::unique_ptr<RemoteCommunicator>> communicator(const std::vector<cuda::DeviceId>& devices,
                                                           Deadline deadline) override;
  [[nodiscard]] RemoteStats remote_stats() const override;
  Result<void> flush() override;
  std::optional<Error> failure() override;

  // cuda::Driver
  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string last_error_detail() const override;
  cuda::Status init(unsigned flags) override;
  cuda::Status driver_get_version(int* version) override;
  cuda::Status device_get_count(int* count) override;
  cuda::Status device_get(cuda::DeviceId* device, int ordinal) override;
  cuda::Status device_get_name(char* name, int length, cuda::DeviceId device) override;
  cuda::Status device_get_uuid(cuda::DeviceUuid* uuid, cuda::DeviceId device) override;
  cuda::Status device_total_mem(std::size_t* bytes, cuda::DeviceId device) override;
  cuda::Status device_get_attribute(int* value, cuda::DeviceAttribute attribute,
                                    cuda::DeviceId device) override;
  cuda::Status primary_ctx_retain(cuda::Context* context, cuda::DeviceId device) override;
  cuda::Status primary_ctx_release(cuda::DeviceId device) override;
  cuda::Status ctx_create(cuda::Context* context, unsigned flags, cuda::DeviceId device) override;
  cuda::Status ctx_destroy(cuda::Context context) override;
  cuda::Status ctx_set_current(cuda::Context context) override;
  cuda::Status ctx_get_current(cuda::Context* context) override;
  cuda::Status ctx_push_current(cuda::Context context) override;
  cuda::Status ctx_pop_current(cuda::Context* context) override;
  cuda::Status ctx_get_device(cuda::DeviceId* device) override;
  cuda::Status ctx_synchronize() override;
  cuda::Status device_can_access_peer(int* can, cuda::DeviceId device, cuda::DeviceId peer) override;
  cuda::Status ctx_enable_peer_access(cuda::Context peer, unsigned flags) override;
  cuda::Status mem_get_info(std::size_t* free, std::size_t* total) override;
  cuda::Status mem_alloc(cuda::DevicePtr* pointer, std::size_t bytes) override;
  cuda::Status mem_free(cuda::DevicePtr pointer) override;
  cuda::Status mem_get_address_range(cuda::DevicePtr* base, std::size_t* size,
                                     cuda::DevicePtr pointer) override;
  cuda::Status mem_host_alloc(void** pointer, std::size_t bytes, unsigned flags) override;
  cuda::Status mem_free_host(void* pointer) override;
  cuda::Status mem_host_register(void* pointer, std::size_t bytes, unsigned flags) override;
  cuda::Status mem_host_unregister(void* pointer) override;
  cuda::Status pointer_get_attribute(void* value, cuda::PointerAttribute attribute,
                                     cuda::DevicePtr pointer) override;
  cuda::Status ipc_get_mem_handle(cuda::IpcMemHandle* handle, cuda::DevicePtr pointer) override;
  cuda::Status ipc_open_mem_handle(cuda::DevicePtr* pointer, cuda::IpcMemHandle handle,
                                   unsigned flags) override;
  cuda::Status ipc_close_mem_handle(cuda::DevicePtr pointer) override;
  cuda::Status mem_address_reserve(cuda::DevicePtr* pointer, std::size_t bytes, std::size_t alignment,
                                   cuda::DevicePtr hint) override;
  cuda::Status mem_address_free(cuda::DevicePtr pointer, std::size_t bytes) override;
  cuda::Status mem_create(cuda::AllocationHandle* handle, std::size_t bytes, cuda::DeviceId device) override;
  cuda::Status mem_release(cuda::AllocationHandle handle) override;
  cuda::Status mem_map(cuda::DevicePtr pointer, std::size_t bytes, std::size_t offset,
                       cuda::AllocationHandle handle) override;
  cuda::Status mem_unmap(cuda::DevicePtr pointer, std::size_t bytes) override;
  cuda::Status mem_set_access(cuda::DevicePtr pointer, std::size_t bytes, cuda::DeviceId device) override;
  cuda::Status mem_get_allocation_granularity(std::size_t* granularity, cuda::DeviceId device) override;
  cuda::Status mem_get_dmabuf_fd(int* fd, cuda::DevicePtr pointer, std::size_t bytes) override;
  cuda::Status flush_gpu_direct_rdma_writes() override;
  cuda::Status memcpy_htod(cuda::DevicePtr dst, const void* src, std::size_t bytes) override;
  cuda::Status memcpy_dtoh(void* dst, cuda::DevicePtr src, std::size_t bytes) override;
  cuda::Status memcpy_dtod(cuda::DevicePtr dst, cuda::DevicePtr src, std::size_t bytes) override;
  cuda::Status memcpy_htod_async(cuda::DevicePtr dst, const void* src, std::size_t bytes,
                                 cuda::Stream stream) override;
  cuda::Status memcpy_dtoh_async(void* dst, cuda::DevicePtr src, std::size_t bytes,
                                 cuda::Stream stream) override;
  cuda::Status memcpy_dtod_async(cuda::DevicePtr dst, cuda::DevicePtr src, std::size_t bytes,
                                 cuda::Stream stream) override;
  cuda::Status memset_d8(cuda::DevicePtr dst, unsigned char value, std::size_t count) override;
  cuda::Status memset_d8_async(cuda::DevicePtr dst, unsigned char value, std::size_t count,
                               cuda::Stream stream) override;
  cuda::Status memset_d32_async(cuda::DevicePtr dst, unsigned value, std::size_t count,
                                cuda::Stream stream) override;
  cuda::Status stream_create(cuda::Stream* stream, unsigned flags) override;
  cuda::Status stream_destroy(cuda::Stream stream) override;
  cuda::Status stream_synchronize(cuda::Stream stream) override;
  cuda::Status stream_query(cuda::Stream stream) override;
  cuda::Status stream_wait_event(cuda::Stream stream, cuda::Event event, unsigned flags) override;
  cuda::Status stream_wait_value32(cuda::Stream stream, cuda::DevicePtr address, std::uint32_t value,
                                   unsigned flags) override;
  cuda::Status stream_write_value32(cuda::Stream stream, cuda::DevicePtr address, std::uint32_t value,
                                    unsigned flags) override;
  cuda::Status launch_host_func(cuda::Stream stream, cuda::HostFn function, void* user) override;
  cuda::Status event_create(cuda::Event* event, unsigned flags) override;
  cuda::Status event_destroy(cuda::Event event) override;
  cuda::Status event_record(cuda::Event event, cuda::Stream stream) override;
  cuda::Status event_query(cuda::Event event) override;
  cuda::Status event_synchronize(cuda::Event event) override;
  cuda::Status event_elapsed_time(float* ms, cuda::Event start, cuda::Event end) override;
  cuda::Status module_load_data(cuda::Module* module, const void* image, std::size_t size) override;
  cuda::Status module_unload(cuda::Module module) override;
  cuda::Status module_get_function(cuda::Function* function, cuda::Module module, const char* name) override;
  cuda::Status module_get_global(cuda::DevicePtr* pointer, std::size_t* bytes, cuda::Module module,
                                 const char* name) override;
  cuda::Status func_get_attribute(int* value, cuda::FunctionAttribute attribute,
                                  cuda::Function function) override;
  cuda::Status func_set_attribute(cuda::Function function, cuda::FunctionAttribute attribute,
                                  int value) override;
  cuda::Status func_get_param_info(cuda::ParamInfo* info, cuda::Function function,
                                   std::size_t index) override;
  cuda::Status launch_kernel(cuda::Function function, const cuda::LaunchConfig& config, cuda::Stream stream,
                             void** params) override;
  cuda::Status launch_kernel_packed(cuda::Function function, const cuda::LaunchConfig& config,
                                    cuda::Stream stream, const void* buffer, std::size_t bytes) override;

 private:
  friend class RemoteCommunicatorImpl;
  struct ThreadState {
    const void* instance = nullptr;
    std::uint64_t born = 0;
    std::vector<cuda::Context> stack{};
    std::string detail{};
    std::map<std::pair<std::uint32_t, std::uint32_t>, Handle> streams{};  ///< (device, context): its own
  };
  /// One call of the driver: holds the session, and forgets what an earlier call's error was about.
  class Call {
   public:
    explicit Call(const RemoteDriverImpl& driver) : lock_(driver.session_) {
      if (auto& detail = driver.thread_state().detail; !detail.empty()) detail.clear();
    }

   private:
    const Session::Lock lock_;
  };
  /// Where a call goes: a device, a context there, and the stream's number on the wire.
  struct Target {
    RemoteDevice* device = nullptr;
    std::uint32_t context = 0;
    std::uint32_t stream = 0;
  };
  struct Place {
    RemoteDevice* device = nullptr;
    std::uint64_t base = 0, bytes = 0;
    bool exact = true;
  };

  ThreadState& thread_state() const;
  cuda::Status explain(cuda::Status status, std::string detail) const;
  RemoteDevice* device_of(Handle handle);
  RemoteDevice* device_at(cuda::DeviceId id);
  /// The calling thread's current context; checks that worker and context are well.
  cuda::Status current(Target& target);
  cuda::Status target_of(cuda::Stream stream, Target& target);
  cuda::Status own_stream(Target& target);
  /// Whether worker and context are well; the error that CUDA would return if not.
  cuda::Status well(RemoteDevice& device, std::uint32_t context);
  /// The same at a synchronisation: also reports, once, what happened asynchronously.
  cuda::Status settled(RemoteDevice& device, std::uint32_t context, cuda::Status status,
                       const std::string& detail);
  template <class C>
  cuda::Status ask(const Target& target, C command, Reply* out = nullptr) {
    Reply reply;
    reply.context = target.context;
    const auto status = target.device->lane.ask(reply, command);
    if (out != nullptr)
      *out = std::move(reply);
    else if (status != cuda::Status::success)
      return report(*target.device, status, reply.detail);
    return out == nullptr || status == cuda::Status::success ? status
                                                             : report(*target.device, status, out->detail);
  }
  template <class C>
  cuda::Status tell(const Target& target, const C& command) {
    if (target.device->lane.issue(target.context, command)) return cuda::Status::success;
    return well(*target.device, target.context);
  }
  cuda::Status report(const RemoteDevice& device, cuda::Status status, const std::string& detail) const;
  cuda::Status synchronized(const Target& target, Reply& reply, cuda::Status status);
  /// Asks for a point that the device has to come to, or whether it has (`not_ready`: not yet).
  template <class C>
  cuda::Status synchronize(const Target& target, C command) {
    Reply reply;
    reply.context = target.context;
    const auto status = target.device->lane.ask(reply, command);
    return status == cuda::Status::not_ready ? status : synchronized(target, reply, status);
  }
  /// The caller's event and where it lives; nullptr: none of ours.
  EventEntry* event_of(cuda::Event event, Target& target);
  void spread_loss();
  void order_after(RemoteDevice& later, RemoteDevice& earlier);

  Place locate(cuda::DevicePtr pointer, RemoteDevice* preferred);
  cuda::Status within(cuda::DevicePtr pointer, std::size_t bytes, RemoteDevice* preferred, Place& place);
  cuda::Status fill(cuda::DevicePtr dst, std::uint32_t value, std::uint32_t width, std::size_t count,
                    cuda::Stream stream);
  cuda::Status upload(cuda::DevicePtr dst, const void* src, std::size_t bytes, const Target& target);
  cuda::Status copy_across(cuda::DevicePtr dst, const Place& to, cuda::DevicePtr src, const Place& from,
                           std::size_t bytes, const Target& target);
  cuda::Status copy(cuda::DevicePtr dst, cuda::DevicePtr src, std::size_t bytes, const Target& target,
                    bool wait);
  /// Whether the pointer lies in a device's range: this process must not follow it.
  bool is_device_address(const void* pointer) const;
  bool is_pinned(const void* pointer, std::size_t bytes) const;
  void drop_context(RemoteDevice& device, Handle context);
  void drop_module(RemoteDevice& device, Handle module);
  cuda::Status launch(cuda::Function function, const cuda::LaunchConfig& config, cuda::Stream stream,
                      void** params, const void* packed, std::size_t packed_bytes);

  Result<void> greet(WorkerLink& worker, const WorkerAddress& address, Deadline deadline);
  Result<void> describe(RemoteDevice& device, Deadline deadline);
  Result<void> agree_on_range(RemoteDevice& device, Deadline deadline);
  [[nodiscard]] bool is_disjoint(const RemoteDevice& device, std::uint64_t base, std::uint64_t bytes) const;

  struct Reservation {
    void* at;
    std::size_t bytes;
  };

  mutable Session session_;
  std::uint64_t born_;
  std::vector<std::unique_ptr<RemoteDevice>> devices_;
  std::vector<Reservation> reservations_;
  std::map<std::uint64_t, std::size_t> pinned_;      ///< host memory: address -> bytes
  std::set<std::uint64_t> pinned_ours_;              ///< of them, those that mem_host_alloc made
  std::set<RemoteCommunicatorImpl*> communicators_;  ///< told when a worker is lost
  bool initialized_ = false;
};

}  // namespace cenote::pool::remote
