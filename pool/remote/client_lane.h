// The client's end of the protocol below the driver's calls: the session (one lock, one pump, all workers)
// and its lanes (one device each: a ring of commands out, a ring of answers in, requests waiting for theirs).
//
// Everything is called with the session's lock held. What waits may let go of it meanwhile, so that other
// threads go on; after a wait, whatever was read before may have changed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cuda/driver.h"
#include "pool/remote/codec.h"
#include "pool/remote/ring.h"
#include "pool/remote/silence.h"
#include "runtime/deadline.h"
#include "transports/fabric.h"

namespace cenote::pool::remote {

class Lane;

/// A request on its way. Lives with whoever waits for it; `owned` ones are deleted when answered.
struct Reply {
  std::uint32_t context = 0;
  bool done = false;
  cuda::Status status = cuda::Status::success;
  std::uint64_t a = 0, b = 0;
  std::string detail{};
  std::byte* into = nullptr;  ///< where data goes; null: to `blob`
  std::size_t room = 0;       ///< bytes expected there
  std::size_t got = 0;
  Bytes blob{};
};

/// Whether the status means that the context is lost until it is destroyed, as CUDA defines it.
bool is_sticky(cuda::Status status);

/// One worker: its endpoint, the memory that it answers into, what became of it.
struct WorkerLink {
  explicit WorkerLink(Clock::duration timeout) : silence(timeout) {}

  transport::Link link;
  std::unique_ptr<transport::Region> region;
  std::string peer;
  std::vector<Lane*> lanes;
  std::optional<Error> lost;
  std::uint64_t lost_as = 0;         ///< counted from 1, of the session's losses
  std::uint64_t bulk_in_flight = 0;  ///< puts from the caller's own memory
  Silence silence;
  bool asked = false;  ///< for a sign of life that has not come
  bool busy = false;   ///< in a long call of its driver, as it said
  std::uint64_t signs_of_life = 0;
};

class Session {
 public:
  /// A worker that answers nothing for `worker_timeout`, while somebody calls the driver, counts as lost.
  Session(std::unique_ptr<transport::Fabric> fabric, const CancelFlag* cancel, Clock::duration worker_timeout)
      : fabric_(std::move(fabric)), cancel_(cancel), worker_timeout_(worker_timeout) {}
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Holds the session for one call; wakes whoever sleeps in it.
  class Lock {
   public:
    explicit Lock(Session& session) : session_(session) { session.enter(); }
    ~Lock() { session_.mutex_.unlock(); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    Session& session_;
  };

  /// Progresses until ready() holds. Lets go of the lock while it waits; one waiting thread at a time drives
  /// the fabric, the others follow. ready() must hold once the workers that it depends on are lost.
  template <class Ready>
  void wait(Ready&& ready, std::string_view what) {
    if (ready()) return;
    do wait_once(what);
    while (!ready());
    stir();
  }
  /// The same without letting go of the lock: for the middle of a batch.
  template <class Ready>
  void wait_holding(Ready&& ready, std::string_view what) {
    while (!ready()) {
      if (!progress()) sleep(what);
    }
  }
  /// Moves everything forward, never blocks. True when anything happened.
  bool progress();
  /// Called once, soon after a worker was lost, where commands may be issued.
  void on_loss(std::function<void()> hook) { loss_hook_ = std::move(hook); }
  /// Runs what is due outside of progress(): the hook for losses, and, without the lock, the host functions
  /// that workers asked for.
  void run_host_calls();
  void add_host_call(Lane& lane, std::uint64_t id) { host_calls_.push_back({&lane, id}); }
  void lose(WorkerLink& worker, const Error& error);
  WorkerLink& add_worker() { return *workers_.emplace_back(std::make_unique<WorkerLink>(worker_timeout_)); }
  /// Workers that still keep somebody waiting when `limit` passes count as lost.
  void set_limit(Deadline limit) { limit_ = limit; }

  transport::Fabric& fabric() { return *fabric_; }
  std::vector<std::unique_ptr<WorkerLink>>& workers() { return workers_; }
  std::vector<std::unique_ptr<Lane>>& lanes() { return lanes_; }

 private:
  struct HostCall {
    Lane* lane;
    std::uint64_t id;
  };

  /// Takes the lock, waking whoever sleeps with it.
  void enter();
  void wait_once(std::string_view what);
  /// Lets the threads that follow look again.
  void stir();
  void sleep(std::string_view what);
  bool progress_worker(WorkerLink& worker);
  void watch(WorkerLink& worker, Clock::time_point now);
  Result<void> take_messages(WorkerLink& worker);

  std::unique_ptr<transport::Fabric> fabric_;
  const CancelFlag* cancel_;
  const Clock::duration worker_timeout_;
  Clock::time_point next_watch_{};
  Deadline limit_ = Deadline::never();
  std::vector<std::unique_ptr<WorkerLink>> workers_;
  std::uint64_t losses_ = 0;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::list<HostCall> host_calls_;
  std::mutex mutex_;
  std::mutex follow_mutex_;  ///< for `moved_` only; never held with anything else
  std::condition_variable moved_;
  std::uint64_t generation_ = 0;  ///< guarded by follow_mutex_
  std::atomic<int> followers_{0};
  std::atomic<int> newcomers_{0};
  std::atomic<bool> asleep_{false};
  bool pumping_ = false;
  bool loss_news_ = false;
  std::function<void()> loss_hook_;
};

struct LaneCounters {
  std::uint64_t bytes_out = 0, bytes_in = 0, launches = 0, commands = 0, batches = 0;
};

class Lane {
 public:
  Lane(Session& session, WorkerLink& worker, std::uint32_t ordinal, std::uint32_t index_in_worker,
       std::string name, const transport::RemoteKey& commands, std::span<std::byte> answers);

  /// Appends a command to be executed in context number `context`. False: the worker is lost.
  template <class C>
  bool issue(std::uint32_t context, const C& command) {
    constexpr std::size_t select = 16;
    if (!reserve(encoded_size(command) + select, 0)) return false;
    if (context != wire_context_) {
      append(CtxSelect{context});
      wire_context_ = context;
    }
    append(command);
    return after_append();
  }
  /// Sends `bytes` to device address `dst` in pieces, straight from the caller's memory where they are many;
  /// it may be reused on return.
  bool upload(std::uint32_t context, std::uint32_t stream, std::uint64_t dst,
              std::span<const std::byte> bytes);
  /// Issues a command with a request number and waits for the answer.
  template <class C>
  cuda::Status ask(Reply& reply, C command) {
    start(reply, command);
    return finish(reply);
  }
  /// The two halves of ask, for asking several lanes at once.
  template <class C>
  void start(Reply& reply, C& command) {
    command.request = expect(reply);
    if (issue(reply.context, command)) flush();
  }
  cuda::Status finish(Reply& reply);
  /// Like start(), for a reply that nobody waits for: the lane owns it.
  template <class C>
  void start_owned(std::unique_ptr<Reply> reply, C command) {
    command.request = expect(*reply);
    const auto context = reply->context;
    owned_.emplace(command.request, std::move(reply));
    issue(context, command);
  }
  /// Waits until no data is on its way into [from, from + bytes) of the caller's memory.
  void settle(const std::byte* from, std::size_t bytes);
  /// Waits until no data is on its way into the caller's memory at all.
  void settle_all();
  /// Puts what is batched on the wire. False: the worker is lost.
  bool flush();
  bool progress();
  void lost_worker();
  /// Tells the worker that the host function has returned.
  void host_function_done(std::uint64_t id);

  [[nodiscard]] bool lost() const { return worker_.lost.has_value(); }
  [[nodiscard]] bool waits() const { return !waiting_.empty(); }
  [[nodiscard]] const Error& loss() const { return *worker_.lost; }
  /// Of two that are lost: whether this loss explains the other. What its agent ended is no explanation, and
  /// may be noticed in one look with what is.
  [[nodiscard]] bool lost_before(const Lane& other) const;
  [[nodiscard]] WorkerLink& worker() { return worker_; }
  [[nodiscard]] Session& session() { return session_; }
  [[nodiscard]] std::uint32_t ordinal() const { return ordinal_; }
  [[nodiscard]] std::uint32_t index_in_worker() const { return index_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const LaneCounters& counters() const { return counters_; }
  LaneCounters& counters() { return counters_; }

  /// What the worker reported of a context without being asked; the driver takes it from here.
  struct Fault {
    cuda::Status status = cuda::Status::success;
    std::string detail{};
    bool sticky = false;
  };
  Fault& fault(std::uint32_t context) { return faults_[context]; }
  void remember(std::uint32_t context, cuda::Status status, std::string_view detail);

  std::unordered_map<std::uint64_t, std::pair<cuda::HostFn, void*>> host_functions{};
  std::uint64_t next_host_function = 1;

 private:
  bool reserve(std::size_t head, std::size_t bulk);
  bool after_append();
  std::uint64_t expect(Reply& reply);
  Result<void> handle(const Batch& batch);
  Result<void> accept(const Answered& result);
  Result<void> accept(std::uint64_t request, std::span<const std::byte> bytes);
  template <class C>
  void append(const C& command) {
    head_used_ += encode(command, out_.head().subspan(head_used_));
    ++counters_.commands;
  }

  Session& session_;
  WorkerLink& worker_;
  std::uint32_t ordinal_, index_;
  std::string name_;
  std::unique_ptr<std::byte[]> heads_;
  RingSender out_;
  RingReceiver in_;
  std::size_t head_used_ = 0, bulk_used_ = 0;
  std::uint32_t wire_context_ = 0;
  Clock::time_point last_flush_{};
  std::uint64_t next_request_ = 1;
  std::unordered_map<std::uint64_t, Reply*> waiting_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Reply>> owned_;
  std::unordered_map<std::uint32_t, Fault> faults_;
  LaneCounters counters_;
};

}  // namespace cenote::pool::remote
