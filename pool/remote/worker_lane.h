// WorkerLane: the worker's end of one device. Executes the commands of its ring in order on the worker's
// driver, and never waits: what takes time (a synchronisation, a download, the draining before memory is
// unmapped) is remembered and looked at again, so that the other lanes of the worker go on.
//
// Whatever the client sends is checked: handles, addresses, sizes, counts. What is well-formed but wrong
// becomes a CUDA status for the client; what is malformed ends the session. Belongs to the serving thread,
// but for load().
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/driver.h"
#include "pool/remote/codec.h"
#include "pool/remote/comm_rank.h"
#include "pool/remote/fence.h"
#include "pool/remote/ring.h"
#include "pool/remote/worker.h"

namespace cenote::pool::remote {

class WorkerLane;

/// What the lanes of one worker share. Outlives them.
struct WorkerShared {
  cuda::Driver& driver;
  transport::Fabric& fabric;
  const WorkerOptions& options;
  std::shared_ptr<Waker> waker;
  std::vector<std::unique_ptr<WorkerLane>> lanes{};
  cuda::Context current = nullptr;  ///< of the serving thread
  bool goodbye = false;
  std::uint64_t module_bytes = 0;  ///< kept by modules of all lanes, see WorkerOptions
  /// Tells the client that the next call of the driver may take long.
  std::function<void()> announce{};
};

class WorkerLane {
 public:
  WorkerLane(WorkerShared& shared, std::uint32_t index, cuda::DeviceId device, std::uint64_t memory_limit);
  ~WorkerLane();
  WorkerLane(const WorkerLane&) = delete;
  WorkerLane& operator=(const WorkerLane&) = delete;

  /// Takes the device's primary context and pins what copies need. Errors: driver_error.
  Result<void> open();
  void attach(transport::Endpoint& endpoint, std::span<std::byte> ring, const transport::RemoteKey& client);
  /// Whatever can be done now. True when anything happened. Errors end the session.
  Result<bool> step();
  /// The three steps of a session's end, each for all lanes before the next: lanes share memory.
  /// Lets go what waits for the client, and waits for the device to finish; false: at `until` it still works.
  bool settle(Deadline until);
  /// Destroys the contexts, of an unsettled lane with what still runs in them: nothing calls back afterwards.
  void end_contexts();
  /// Frees the client's memory.
  void give_back();

  /// How long the serving thread may sleep without looking here; forever when everything wakes it.
  [[nodiscard]] Clock::duration patience() const;
  [[nodiscard]] WorkerLoad::PerDevice load() const;
  [[nodiscard]] cuda::DeviceId device() const { return device_; }

  /// The client says that its function has returned: the stream that waits for it goes on.
  void host_function_done(std::uint64_t id);

  template <class C>
  Result<void> on(const C&) {
    return fail(ErrorCode::protocol_error, "serve", std::string(C::label) + " is not for workers");
  }
  // clang-format off
  Result<void> on(const Goodbye&);        Result<void> on(const DeviceInfo&);     Result<void> on(const RangeReserve&);
  Result<void> on(const LaneWait&);       Result<void> on(const CtxCreate&);      Result<void> on(const CtxDestroy&);
  Result<void> on(const CtxSelect&);      Result<void> on(const CtxSync&);        Result<void> on(const CtxPeer&);
  Result<void> on(const MemInfo&);        Result<void> on(const MemAlloc&);       Result<void> on(const MemFree&);
  Result<void> on(const Drain&);          Result<void> on(const VmmCreate&);      Result<void> on(const VmmRelease&);
  Result<void> on(const VmmMap&);         Result<void> on(const VmmUnmap&);       Result<void> on(const VmmAccess&);
  Result<void> on(const FlushWrites&);    Result<void> on(const Upload&);         Result<void> on(const UploadBulk&);
  Result<void> on(const Download&);       Result<void> on(const Copy&);           Result<void> on(const Fill&);
  Result<void> on(const StreamCreate&);   Result<void> on(const StreamDestroy&);  Result<void> on(const StreamSync&);
  Result<void> on(const StreamQuery&);    Result<void> on(const StreamWaitEvent&);
  Result<void> on(const StreamWaitValue&);Result<void> on(const StreamWriteValue&);
  Result<void> on(const HostFunc&);       Result<void> on(const EventCreate&);
  Result<void> on(const EventDestroy&);   Result<void> on(const EventRecord&);    Result<void> on(const EventSync&);
  Result<void> on(const EventQuery&);     Result<void> on(const EventElapsed&);   Result<void> on(const ModuleData&);
  Result<void> on(const ModuleLoad&);     Result<void> on(const ModuleUnload&);   Result<void> on(const ModuleGlobal&);
  Result<void> on(const FunctionGet&);    Result<void> on(const FunctionAttr&);   Result<void> on(const FunctionSet&);
  Result<void> on(const Launch&);         Result<void> on(const CommId&);         Result<void> on(const CommCreate&);
  Result<void> on(const CommAllreduce&);  Result<void> on(const CommBroadcast&);  Result<void> on(const CommStats&);
  Result<void> on(const CommFailure&);    Result<void> on(const CommAbort&);      Result<void> on(const CommDestroy&);
  // clang-format on

 private:
  struct StreamSlot {
    cuda::Stream handle = nullptr;
    std::uint32_t context = 0;
    bool live = false;
  };
  struct EventSlot {
    cuda::Event handle = nullptr;
    std::uint32_t context = 0;
    bool live = false;
  };
  struct ModuleSlot {
    cuda::Module handle = nullptr;
    std::uint32_t context = 0;
    bool live = false;
    Bytes image{};
    std::uint64_t kept = 0;     ///< of the session's module bytes
    std::uint64_t charged = 0;  ///< of the lease's memory, for its variables and code
    bool refused = false;       ///< its image went beyond the session's module bytes
    std::vector<std::uint64_t> globals{};
  };
  struct FunctionSlot {
    cuda::Function handle = nullptr;
    std::uint32_t module = 0;
    std::size_t param_bytes = 0;
    bool live = false;
  };
  /// Memory of the client's own handle; as long as the handle or a mapping holds it, it is charged.
  struct Physical {
    cuda::AllocationHandle handle = 0;
    std::uint64_t bytes = 0;
  };
  struct Mapping {
    std::uint64_t bytes = 0;
    cuda::AllocationHandle handle = 0;
    bool owned = false;
    std::shared_ptr<const Physical> physical{};  ///< where not owned
  };
  /// A synchronisation that the client waits for.
  struct Waiter {
    std::uint64_t request = 0;
    std::uint32_t context = 0;
    std::vector<Fence*> fences{};
    cuda::Event event = nullptr;
    bool ready = false;
  };
  struct Chunk {
    Fence* fence = nullptr;
    std::size_t staging = 0;
    std::size_t count = 0;
  };
  struct DownloadJob {
    std::uint64_t request = 0, src = 0, left = 0;
    std::uint32_t context = 0, stream = 0;
    std::deque<Chunk> chunks{};
    cuda::Status status = cuda::Status::success;
    std::string detail{};
  };
  /// A batch whose bytes are still being read by the device.
  struct SlotUse {
    std::uint64_t batch = 0;
    std::vector<Fence*> fences{};
  };
  struct Sent {
    std::uint64_t batch = 0;
    std::size_t staging = 0;
  };
  struct HostWait {
    Fence* fence = nullptr;
    std::uint64_t id = 0;
    std::size_t word = 0;
  };
  struct Collective {
    Fence* fence = nullptr;
    std::uint32_t comm = 0;
    CommRank::Operation operation{};
  };
  struct CommSlot {
    std::unique_ptr<BootstrapRoot> root{};
    std::unique_ptr<CommRank> rank{};
    std::uint64_t create_request = 0;
    std::uint32_t context = 0;
  };

  // serving
  Result<bool> run_commands();
  Result<void> execute_batch();
  Result<void> end_batch();
  bool poll_fences();
  Result<bool> finish_jobs();
  Result<bool> pump_downloads();
  Result<bool> feed_download();
  Result<void> answer_waiters();
  Result<bool> poll_comms();
  void poll_host_waits();
  void release_slots();
  void account_busy();

  // answers
  [[nodiscard]] bool can_answer() const { return out_->in_flight() + 3 < ring_slots; }
  template <class C>
  Result<void> say(const C& command);
  Result<void> answer(std::uint64_t request, cuda::Status status, std::uint64_t a = 0, std::uint64_t b = 0);
  Result<void> answer_text(std::uint64_t request, cuda::Status status, std::uint64_t a, std::uint64_t b,
                           std::string_view detail);
  Result<void> answer_blob(std::uint64_t request, std::span<const std::byte> blob,
                           cuda::Status status = cuda::Status::success);
  Result<void> tell_error(std::uint32_t context, cuda::Status status, std::string_view detail);
  /// For commands without an answer: a status that is not success becomes an asynchronous error.
  Result<void> check(cuda::Status status);
  Result<void> send_answers();
  /// Whether bulk bytes and the command that names them both fit the batch being made, so that no flush comes
  /// between the two; sends what is there when that makes it so.
  Result<bool> bulk_fits();

  // books
  cuda::Status enter(std::uint32_t context);
  bool find_stream(std::uint32_t wire, cuda::Stream& stream, std::uint32_t& context);
  EventSlot* find_event(std::uint32_t index);
  /// Puts work into the client's stream: work(stream) in its context, as part of what `what` names. A failure
  /// is told to the client as one of the stream's context.
  template <class Work>
  Result<void> in_stream(std::uint32_t wire, std::string_view what, Work&& work);
  template <class Slot>
  Slot* make_slot(std::vector<Slot>& table, std::uint32_t index);
  template <class Slot>
  Slot* live_slot(std::vector<Slot>& table, std::uint32_t index);
  [[nodiscard]] bool covers(std::uint64_t address, std::uint64_t bytes) const;
  [[nodiscard]] bool accessible(std::uint64_t address, std::uint64_t bytes) const;
  [[nodiscard]] bool in_range(std::uint64_t address, std::uint64_t bytes) const;
  [[nodiscard]] bool is_free(std::uint64_t address, std::uint64_t bytes) const;
  cuda::Status map_memory(std::uint64_t address, std::uint64_t bytes);
  void unmap_memory(std::uint64_t address, std::uint64_t bytes);
  [[nodiscard]] std::uint64_t free_memory();
  /// Lets go of one hold; the last one gives the bytes back to the share.
  void let_go(std::shared_ptr<const Physical>& physical);
  /// What is free on the device, whoever it is for.
  [[nodiscard]] std::uint64_t free_on_device();
  cuda::Status load_image(std::span<const std::byte> image, std::uint32_t containers, cuda::Module& made,
                          std::string& why);
  /// Reserves `bytes` of what the session's modules may hold in this process.
  bool keep(ModuleSlot& slot, std::uint64_t bytes);
  /// Takes the module out of the books, with its functions; unloading it is the caller's.
  void forget_module(std::uint32_t module);
  std::string detail_of() const { return shared_.driver.last_error_detail(); }

  // fences
  Fence* place_fence(cuda::Stream stream, std::uint32_t wire, std::uint32_t context);
  void retire(Fence* fence);
  std::vector<Fence*> fence_all(bool every_context);
  void worked(cuda::Stream stream, std::uint32_t wire, std::uint32_t context);
  static bool all_done(const std::vector<Fence*>& fences);
  void retire_all(std::vector<Fence*>& fences);
  void drain_then(std::function<Result<void>()> action);
  cuda::Status context_status(std::uint32_t context);

  Result<void> copy_in(std::uint64_t dst, std::uint32_t wire, std::span<const std::byte> bytes);
  Result<void> enqueue_collective(CommSlot& comm, std::uint32_t number, std::uint32_t wire,
                                  CommRank::Operation operation);
  cuda::Status open_housekeeping();
  void pin(void* memory, std::size_t bytes);
  void close_housekeeping();
  void destroy_context(std::uint32_t context);
  /// For a context that goes as a whole, with all that was made in it.
  void forget_context(std::uint32_t context);
  std::optional<std::size_t> take_word();
  void release_words();
  /// Before the words' memory goes with its context.
  void forget_words();

  WorkerShared& shared_;
  const std::uint32_t index_;
  const cuda::DeviceId device_;
  const std::uint64_t limit_;
  std::uint64_t granularity_ = 0, total_ = 0;
  std::uint64_t range_ = 0, range_bytes_ = 0;

  std::unique_ptr<RingReceiver> in_;
  std::unique_ptr<RingSender> out_;
  std::span<std::byte> ring_;
  std::size_t out_head_ = 0, out_bulk_ = 0;

  // housekeeping, in the primary context
  std::unique_ptr<std::byte[]> heads_;    ///< copies of the batches' heads
  std::unique_ptr<std::byte[]> staging_;  ///< downloads on their way
  std::vector<void*> pinned_;             ///< of these and the ring, what the driver pinned
  cuda::Stream control_ = nullptr;        ///< releases words; never waits for other streams
  cuda::DevicePtr words_ = 0;
  std::vector<std::uint32_t> word_values_;
  std::vector<std::size_t> free_words_, free_staging_;

  std::map<std::uint32_t, cuda::Context> contexts_;
  std::uint32_t context_ = 0;  ///< where commands run, by ctx_select
  std::vector<StreamSlot> streams_;
  std::vector<EventSlot> events_;
  std::vector<ModuleSlot> modules_;
  std::vector<FunctionSlot> functions_;
  std::map<std::uint64_t, Mapping> mappings_;
  std::vector<std::uint64_t> stale_;  ///< mappings that a lost context did not let go of
  std::map<std::uint64_t, std::uint64_t> globals_;
  std::map<std::uint32_t, std::shared_ptr<const Physical>> physical_;
  std::map<std::uint32_t, CommSlot> comms_;
  std::vector<cuda::DeviceId> peers_;  ///< devices whose contexts may reach this lane's memory

  std::optional<Batch> batch_;
  std::span<const std::byte> rest_;
  std::uint64_t commands_done_ = 0;
  std::function<bool()> blocked_;  ///< set: no further command until it returns true
  std::function<Result<void>()> after_block_;
  std::vector<std::pair<std::uint32_t, cuda::Stream>> uploading_;  ///< streams that read this batch
  std::vector<std::uint32_t> uploading_context_;
  std::deque<SlotUse> slots_;
  std::deque<Waiter> waiters_;
  std::deque<DownloadJob> downloads_;
  std::deque<Sent> sent_;
  std::deque<HostWait> host_waits_;
  std::unordered_map<std::uint64_t, std::size_t> host_calls_;  ///< id -> word, at the client
  std::deque<Collective> collectives_;
  std::vector<std::pair<Fence*, std::size_t>> words_in_use_;  ///< by streams that wait for a collective
  std::vector<std::pair<cuda::Stream, std::uint32_t>>
      doomed_streams_;  ///< destroyed by the client, fences pending

  std::deque<Fence> fence_store_;
  std::vector<Fence*> fences_free_, fences_live_;
  Clock::time_point last_poll_{};

  Fence* busy_ = nullptr;
  /// Fences are in streams, too: what the client put there is done when a fence behind it has fired, even
  /// while the driver still reports a later fence of ours.
  struct StreamWork {
    std::uint64_t last = 0, done = 0;
    std::uint32_t context = 0;  ///< whose work that is: contexts share the named streams' numbers
    unsigned since = 0;         ///< put there behind the last checkpoint
    unsigned open = 0;          ///< checkpoints that the device has not come to
  };
  StreamWork& work_of(std::uint32_t wire);
  /// Counts what was put into the stream, and places a checkpoint behind so much of it.
  void queued(cuda::Stream stream, std::uint32_t wire, std::uint32_t context);
  bool pass_checkpoints();
  /// Some stream holds as much as it may: no further command until the device has caught up. The driver would
  /// block in a launch instead, and with it every other lane.
  [[nodiscard]] bool backed_up() const { return full_streams_ != 0; }
  std::vector<Fence*> checkpoints_;
  unsigned full_streams_ = 0;
  std::uint64_t work_ = 0;
  StreamWork named_work_[3];
  std::vector<StreamWork> stream_work_;
  bool work_since_ = false, settled_ = false;
  cuda::Stream last_stream_ = nullptr;
  std::uint32_t last_wire_ = 0, last_context_ = 0;
  Clock::time_point busy_from_{};
  std::atomic<std::uint64_t> used_{0}, launches_{0}, busy_ns_{0};
};

}  // namespace cenote::pool::remote
