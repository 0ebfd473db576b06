// The inside of the scripted fabric: its objects and its one lock. Every function that ends in _locked, and
// every member of the objects, wants Core::mutex held.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "tests/unit/transports/verbs/scripted_provider.h"

namespace cenote::transport::verbs::test::detail {

struct Process;
struct Qp;
struct Mr;

struct Port {
  PortSpec spec;
  std::set<int> broken_gids;
};

struct Device {
  DeviceSpec spec;
  int number = 0;
  bool removed = false;
  std::vector<Port> ports;
  std::vector<Mr*> keys;  ///< by the index half of a key
  std::deque<std::uint32_t> free_keys;
  std::vector<std::uint8_t> generations;
  std::map<std::uint32_t, Qp*> qps;
  std::uint32_t next_qpn = 0;
  Port* port(int number_from_1);
};

/// What every handle is besides its ibv_ struct.
struct Node {
  Process* process = nullptr;
  Device* card = nullptr;
  bool alive = true;
  virtual ~Node() = default;
};

/// A device in one process's list.
struct Listed final : ibv_device, Node {
  Listed() : ibv_device{} {}
};

/// A file descriptor that is readable while something waits; one token each.
class Tokens {
 public:
  Tokens();
  ~Tokens();
  Tokens(const Tokens&) = delete;
  Tokens& operator=(const Tokens&) = delete;
  int fd() const { return fd_; }
  void add();
  void take();
  void close();

 private:
  int fd_ = -1;
};

struct Context final : ibv_context, Node {
  Context() : ibv_context{} {}
  Tokens tokens;
  std::deque<ibv_async_event> events;
  bool closed = false;  ///< nothing more comes: readers get EIO
};

struct Pd final : ibv_pd, Node {
  Pd() : ibv_pd{} {}
  int users = 0;
};

struct Mr final : ibv_mr, Node {
  Mr() : ibv_mr{} {}
  unsigned access = 0;
  std::byte* backing = nullptr;  ///< of `start`
  std::uint64_t start = 0;       ///< as requests name it
};

struct Cq;
struct Channel final : ibv_comp_channel, Node {
  Channel() : ibv_comp_channel{} {}
  Tokens tokens;
  std::deque<Cq*> events;
  int users = 0;
  bool closed = false;
};

struct Completion {
  ibv_wc wc;
  Qp* qp;
  std::uint64_t freed;  ///< send slots before this number are free once it is polled; 0: a receive
};

struct Cq final : ibv_cq, Node {
  Cq() : ibv_cq{} {}
  std::vector<Completion> ring;
  std::size_t head = 0;
  std::size_t count = 0;
  enum class Armed { no, solicited, any } armed = Armed::no;
  bool overrun = false;
  int users = 0;
  int unacked_completions = 0;
  int unacked_async = 0;
};

struct Receive {
  std::uint64_t wr_id;
  int num_sge;
  std::array<ibv_sge, 16> sges;
};

struct Srq final : ibv_srq, Node {
  Srq() : ibv_srq{} {}
  std::vector<Receive> ring;
  std::size_t head = 0;
  std::size_t count = 0;
  int max_sge = 0;
  int users = 0;
  int unacked_async = 0;
};

struct Request {
  std::uint64_t wr_id;
  ibv_wr_opcode opcode;
  unsigned flags;
  __be32 imm;
  std::uint64_t remote;
  std::uint32_t rkey;
  std::uint64_t compare_add;
  std::uint64_t swap;
  int num_sge;
  bool inlined;
  std::uint32_t length;
  std::uint32_t done;      ///< bytes that have moved
  std::uint64_t response;  ///< of an atomic
  ibv_wc_status fate;      ///< how a fault makes it end
  bool fate_executed;
  std::vector<std::byte> read;
};

inline bool is_write(const Request& request) {
  return request.opcode == IBV_WR_RDMA_WRITE || request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

enum class Road { open, held, lost };

/// Where a queue pair's packets go, and how its peer's come back.
struct Route {
  Qp* peer = nullptr;  ///< null: nobody answers
  bool own_port_down = false;
  Road there = Road::open;
  Road back = Road::open;
};

struct Qp final : ibv_qp, Node {
  Qp() : ibv_qp{} {}
  ibv_qp_attr attr{};
  ibv_qp_cap cap{};
  bool signal_all = false;
  // The send queue: slot numbers grow; freed <= acked <= executed <= posted <= freed + cap.max_send_wr.
  std::vector<Request> requests;
  std::vector<ibv_sge> sges;
  std::vector<std::byte> inlined;
  std::uint64_t posted = 0, executed = 0, acked = 0, freed = 0;
  std::uint64_t reads_executed = 0, reads_acked = 0;
  std::uint32_t send_psn = 0, receive_psn = 0;
  int silent_steps = 0;
  int rnr_tries = 0;
  bool rnr_waits = false;
  Route route;  ///< as of route_epoch
  std::uint64_t route_epoch = 0;
  bool active = false;  ///< listed in Core::active
  int unacked_async = 0;

  Request& request(std::uint64_t slot) { return requests[slot % requests.size()]; }
  ibv_sge* sges_of(std::uint64_t slot) { return &sges[(slot % requests.size()) * cap.max_send_sge]; }
  std::byte* inline_of(std::uint64_t slot) {
    return &inlined[(slot % requests.size()) * cap.max_inline_data];
  }
  Cq& send_queue() { return *static_cast<Cq*>(send_cq); }
  Cq& receive_queue() { return *static_cast<Cq*>(recv_cq); }
};

struct Refusal {
  Call call;
  int pass;
  int times;
  int error;
};

struct Hook {
  Call call;
  int countdown;
  std::function<void()> run;
};

struct Fault {
  const Device* device;
  std::uint32_t qp_num;
  int opcode;
  ibv_wc_status status;
  int countdown;
  bool executed;
};

struct Process {
  Core* core = nullptr;
  std::string name;
  int slot = -1;
  bool killed = false;
  std::vector<Listed*> listed;
  VerbsApi table;
  VerbsApi table_without_dmabuf;
  std::vector<Refusal> refusals;
  std::function<void*(int, std::uint64_t, std::size_t)> dmabuf;
  std::function<void*(void*, std::size_t)> peer_memory;
  std::array<std::uint64_t, kCalls> calls{};
  Alive alive;
  Counters counters;
  std::vector<Context*> contexts;
  std::set<ibv_device**> lists;
  std::mutex hooks_mutex;
  std::vector<Hook> hooks;
  std::atomic<int> hooks_set{0};
};

/// A write whose queue pair has gone while the network still carries it.
struct Ghost {
  const Device* from;
  Device* to;
  std::uint32_t source_qpn, target_qpn;
  std::uint32_t psn, packets;
  Request request;
  std::vector<std::byte> payload;  ///< from request.done on
};

/// Bytes of a relaxed-ordering write that have not reached memory.
struct Lingering {
  const Device* by;
  const Mr* mr;
  std::byte* to;
  std::vector<std::byte> bytes;
};

struct Core {
  mutable std::mutex mutex;
  std::list<Device> devices;
  std::list<Process> processes;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::string> violations;
  bool lagging = false;
  std::mt19937_64 random;
  int steps_per_try = 2;
  std::vector<Qp*> active;  ///< with requests that are not acknowledged
  std::map<std::pair<const Device*, const Device*>, Road> roads;
  std::vector<Fault> faults;
  std::uint64_t epoch = 1;  ///< changes with whatever a Route depends on
  std::deque<Ghost> ghosts;
  std::deque<Lingering> lingering;
  bool relaxed_linger = false;
  std::vector<Cq*> overruns;  ///< whose queue pairs have yet to fail
  std::uint32_t next_handle = 1;

  ~Core();
  Device& device(const std::string& name);
  template <class T>
  T* make(Process& process, Device& device) {
    auto made = std::make_unique<T>();
    made->process = &process;
    made->card = &device;
    T* kept = made.get();
    nodes.push_back(std::move(made));
    return kept;
  }
};

// scripted_provider.cpp
void violation_locked(Core& core, const Process& process, const std::string& what);
/// Whether a refusal of `call` is due; its error, or 0.
int refused_locked(Process& process, Call call);

// scripted_calls.cpp, scripted_memory.cpp, scripted_queues.cpp: entries of the table.
void fill_device_calls(VerbsApi& table);
void fill_memory_calls(VerbsApi& table);
void fill_completion_calls(VerbsApi& table);
void fill_queue_calls(VerbsApi& table);

/// The start of every call on `node`: hooks, the lock, counts, refusals, liveness. With `error` set the call
/// fails.
struct Entry {
  Entry(Call call, Node* node, bool counts_requests = false);
  Entry(Call call, Process& process);
  std::unique_lock<std::mutex> lock;
  int error = 0;
  /// The call's last word where it returns a pointer: sets errno.
  template <class T>
  T* fail() const {
    errno = error;
    return nullptr;
  }
};
void run_hooks(Process& process, Call call);

// scripted_events.cpp
void async_locked(Context& context, ibv_event_type type, Node* element, int port = 0);
void device_event_locked(Core& core, Device& device, ibv_event_type type, int port);
void close_context_locked(Context& context);
void complete_locked(Core& core, Cq& cq, const Completion& completion, bool solicited);
void forget_completions_locked(Cq& cq, const Qp* qp);
/// Takes a dead process's or a removed device's objects away. Either may be null: any.
void vanish_locked(Core& core, const Process* process, const Device* device);

// scripted_late.cpp
/// `qp` is about to go: what the network still carries of it stays there.
void leave_ghosts_locked(Core& core, Qp& qp);
/// Delivers a ghost whose road is open; whether there was one.
bool haunt_locked(Core& core);
/// Writes what arrived: now, or later if relaxed writes linger and the region allows it.
void write_locked(Core& core, const Device& device, const Mr& mr, std::byte* to, const std::byte* from,
                  std::size_t bytes);
/// Everything that `device` has not yet written is written, as before any ordered access of its.
void flush_lingering_locked(Core& core, const Device& device);
/// Some lingering piece reaches memory, in no order; whether there was one.
bool land_lingering_locked(Core& core);
void forget_lingering_locked(Core& core, const Mr& mr);

// scripted_routes.cpp
const Route& route_locked(Core& core, Qp& qp);
Road road_locked(const Core& core, const Device* from, const Device* to);

// scripted_traffic.cpp
void fail_qp_locked(Core& core, Qp& qp);
void reset_qp_locked(Core& core, Qp& qp);
/// The local side of a request: what is wrong with it, if anything.
ibv_wc_status local_status_locked(Qp& qp, std::uint64_t slot);
/// Copies `bytes` of a sound request's payload from `offset` on.
void gather_locked(Qp& qp, std::uint64_t slot, std::uint64_t offset, std::byte* to, std::uint64_t bytes);
std::uint32_t packets_of(const Qp& qp, const Request& request);
/// Takes the peer's next receive for a message that is in place.
void deliver_receive_locked(Core& core, std::uint32_t source_qpn, Qp& peer, const Request& request);
/// One advance of some queue pair; whether anything moved or a try was counted.
bool step_locked(Core& core);
/// Advances every active queue pair as far as it gets.
bool tick_active_locked(Core& core);
/// A request was posted: runs it, or leaves it to the steps.
void start_locked(Core& core, Qp& qp);
/// A receive was posted: whoever waits for one goes on.
void receive_posted_locked(Core& core);
void forget_qp_events_locked(Qp& qp);

// scripted_memory.cpp
/// The bytes that a key names, or null: wrong key, domain, bounds or access.
const Mr* region_locked(const Device& device, std::uint32_t key, bool remote);
std::byte* reach_locked(Device& device, const ibv_pd* pd, std::uint32_t key, bool remote,
                        std::uint64_t address, std::uint64_t length, unsigned access);
/// Copies as a card does, see the fabric's contract.
void dma(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace cenote::transport::verbs::test::detail
