// An RDMA fabric inside this process, for tests: a stand-in for libibverbs that is strict, not kind.
//
// A ScriptedFabric holds devices; each process() sees some of them through a VerbsApi of its own and reaches
// the others as a real one would. RC queue pairs only, receives over shared receive queues (the table has no
// other).
//
// Kept as on real hardware: state transitions and their attribute masks; addressing by GID or LID, GID types,
// partitions, path MTU, packet sequence numbers (a mismatch is silence, so RETRY_EXC_ERR); lkeys differ from
// rkeys and are of one device; protection domains, bounds and access flags; send queue slots come free only
// when a later completion is polled; inline limits; RNR; error states on both sides and flush errors; a
// completion queue overruns; a completion channel that is armed after the completion came stays silent; an
// error completion holds nothing but wr_id, status, qp_num and vendor_err. What hardware leaves undefined or
// would hang on (use after destroy, destroying with events not acknowledged, closing a device with objects
// alive) is written down in violations() and refused with EINVAL or EBUSY.
//
// When bytes move: `at_once` runs a work request inside post_send, its completion can be polled when the call
// returns. `lagging(seed)` runs it later, a piece at a time: step() or any poll_cq advances some queue pair,
// in order within it, in no order between them; the payload is read when its piece is sent, and a completion
// comes only after an acknowledgement of its own. A request that nobody answers counts a try per step, in
// both modes. Where both sides sleep on their channels, a Clockwork steps. Writes of a queue pair that ends
// while the network carries them may land afterwards, as long as the target's end is there.
//
// A queue pair's own receives would be flushed when it fails; those of a shared queue stay for the others,
// and LAST_WQE_REACHED says that it takes no more.
//
// Thread-safe; hooks run outside the fabric's lock. Payloads move as a card moves them: unseen by the thread
// sanitizer, ascending, aligned words whole. The fabric, its objects and tables live until the last of the
// ScriptedFabric and the tables handed out is gone. Destroyed objects are kept (emptied) to find use after
// destroy. Misuse of the double itself (an unknown device) throws std::logic_error.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "transports/verbs/verbs_api.h"

namespace cenote::transport::verbs::test {

/// Every entry of VerbsApi, by its name there.
enum class Call {
  get_device_list,
  free_device_list,
  get_device_name,
  open_device,
  close_device,
  query_device,
  query_port,
  query_gid_table,
  query_pkey,
  get_async_event,
  ack_async_event,
  alloc_pd,
  dealloc_pd,
  reg_mr,
  reg_dmabuf_mr,
  dereg_mr,
  create_comp_channel,
  destroy_comp_channel,
  create_cq,
  destroy_cq,
  poll_cq,
  req_notify_cq,
  get_cq_event,
  ack_cq_events,
  create_srq,
  destroy_srq,
  post_srq_recv,
  create_qp,
  modify_qp,
  destroy_qp,
  post_send,
};
inline constexpr int kCalls = static_cast<int>(Call::post_send) + 1;
const char* name_of(Call call);

struct GidSpec {
  ibv_gid gid{};
  ibv_gid_type type = IBV_GID_TYPE_ROCE_V2;
  bool valid = true;  ///< an invalid one is a hole in the table
};
/// ::ffff:a.b.c.d, as RoCE writes an IPv4 address.
ibv_gid gid_of_ipv4(const std::string& dotted);
/// fe80::<interface>, the GID of every port.
ibv_gid link_local_gid(std::uint64_t interface);

struct PortSpec {
  int link_layer = IBV_LINK_LAYER_ETHERNET;
  ibv_mtu max_mtu = IBV_MTU_4096;
  ibv_mtu active_mtu = IBV_MTU_4096;
  std::uint16_t lid = 0;
  std::uint8_t lmc = 0;
  std::uint8_t active_width = 2;   ///< 4x
  std::uint8_t active_speed = 64;  ///< HDR
  std::vector<GidSpec> gids;
  std::vector<std::uint16_t> pkeys = {0xffff};
  bool up = true;
};

/// A device as query_device describes it; ports count from 1. What is not a field is generous.
struct DeviceSpec {
  std::string name;
  std::vector<PortSpec> ports;
  int max_qp_wr = 8192;
  int max_srq_wr = 8192;
  int max_cqe = 65536;
  int max_sge = 16;
  std::uint32_t max_inline = 256;
  std::uint32_t max_msg_sz = 1u << 30;
  int max_qp_rd_atom = 16;       ///< as responder
  int max_qp_init_rd_atom = 16;  ///< as initiator
  ibv_atomic_cap atomics = IBV_ATOMIC_HCA;
  /// How requests end while the device's own port is down: LOC_QP_OP_ERR or WR_FLUSH_ERR (Soft-RoCE of
  /// Linux 6.1 and 6.12), or RETRY_EXC_ERR after the retries (a card whose cable is pulled).
  ibv_wc_status own_port_down = IBV_WC_LOC_QP_OP_ERR;
  /// Completions of a destroyed queue pair stay in the completion queue (Soft-RoCE) or are taken out (mlx5).
  bool keeps_completions_of_destroyed_qps = false;
};
/// One RoCE port, up, with the GID table of a card: link-local v1 and v2, IPv4 v1 and v2 (index 3).
DeviceSpec roce_device(std::string name, const std::string& ipv4);
/// One InfiniBand port, up, GID 0 made of its LID.
DeviceSpec infiniband_device(std::string name, std::uint16_t lid);

/// Objects that were made and not destroyed. A leak test is one comparison with {}.
struct Alive {
  int lists = 0, contexts = 0, pds = 0, mrs = 0, channels = 0, cqs = 0, srqs = 0, qps = 0;
  bool operator==(const Alive&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Alive& alive);

struct Counters {
  std::uint64_t doorbells = 0;      ///< post_send calls that posted something
  std::uint64_t work_requests = 0;  ///< that they posted
  std::uint64_t receives = 0;       ///< posted to shared receive queues
  std::uint64_t completions = 0;    ///< that poll_cq returned
  std::uint64_t empty_polls = 0;
  std::uint64_t events = 0;  ///< completion events that channels got
};

/// A queue pair as its owner set it up.
struct QueuePairView {
  std::string process;
  std::string device;
  std::uint32_t qp_num = 0;
  ibv_qp_state state = IBV_QPS_RESET;
  ibv_qp_attr attributes{};
  ibv_qp_cap cap{};
  std::uint64_t outstanding = 0;  ///< posted and not completed
};

/// Work requests that a fault is for: those of `device`, narrowed by what is set.
struct Target {
  std::string device;
  std::uint32_t qp_num = 0;  ///< 0: any
  int opcode = -1;           ///< ibv_wr_opcode, -1: any
};

namespace detail {
struct Core;
struct Process;
}  // namespace detail

/// One simulated process. A handle; all copies are the same process.
class ScriptedProcess {
 public:
  /// The table of this process. Keeps the fabric alive.
  std::shared_ptr<const VerbsApi> api() const;
  /// The same table with `call` missing, as from an older library.
  std::shared_ptr<const VerbsApi> api_without_dmabuf() const;

  /// From now, lets nth - 1 calls pass and fails the next `times` (-1: for ever) with `error` in the manner
  /// of the call. For post_send and post_srq_recv work requests are counted, not calls, so that the middle of
  /// a list can fail. Calls that return nothing cannot be refused: std::logic_error.
  void refuse(Call call, int error, int nth = 1, int times = 1);
  void refuse(const std::string& call, int error, int nth = 1, int times = 1);
  /// Runs `hook` once, before the nth call from now, on its thread: a delay (block in it), or a fault at an
  /// exact moment.
  void before(Call call, std::function<void()> hook, int nth = 1);
  /// The process dies: its objects are gone without a destroy, its own calls fail with EIO, peers hear
  /// nothing.
  void kill();
  /// What backs a dma-buf: the address of its first byte here, or null with errno set. Without a hook
  /// reg_dmabuf_mr fails with EOPNOTSUPP.
  void on_dmabuf(std::function<void*(int fd, std::uint64_t offset, std::size_t length)> hook);
  /// A module that knows addresses of another card's memory (nvidia_peermem): where reg_mr's bytes are here,
  /// or null for addresses that are not its own.
  void on_peer_memory(std::function<void*(void* address, std::size_t length)> hook);

  Alive alive() const;
  Counters counters() const;
  std::uint64_t calls(Call call) const;

 private:
  friend class ScriptedFabric;
  ScriptedProcess(std::shared_ptr<detail::Core> core, detail::Process* process);
  std::shared_ptr<detail::Core> core_;
  detail::Process* process_;
};

class ScriptedFabric {
 public:
  ScriptedFabric();
  ~ScriptedFabric();
  ScriptedFabric(const ScriptedFabric&) = delete;
  ScriptedFabric& operator=(const ScriptedFabric&) = delete;

  void add_device(DeviceSpec spec);
  /// A process that sees these devices, in this order. Several may share a device.
  ScriptedProcess process(const std::string& name, const std::vector<std::string>& devices);

  void at_once();
  void lagging(std::uint64_t seed);
  /// Advances up to `count` times. How many did something.
  int step(int count = 1);
  /// Steps until nothing moves or counts tries any more, at most `limit` times.
  void settle(int limit = 1'000'000);
  /// Steps that one try of an unanswered request takes; a queue pair gives up after retry_cnt + 1 tries
  /// (never with timeout 0). Default 2.
  void steps_per_try(int steps);

  /// Writes to regions with IBV_ACCESS_RELAXED_ORDERING reach memory in no order, some time after their
  /// acknowledgement: by steps, and before any completion, atomic, read answer, or write to an ordered region
  /// of the same device. Shows who polls a flag in such a region, or orders by another device. Off at first.
  void relaxed_writes_linger(bool linger);

  // Links. Ports count from 1. Events reach the contexts of the device.
  void link_down(const std::string& device, int port = 1);
  void link_up(const std::string& device, int port = 1);
  /// Packets from one device to another are lost. Of one direction: requests from a to b need (a, b), their
  /// acknowledgements (b, a); so drop(b, a) alone lets requests of a take effect and never be known to.
  void drop(const std::string& from, const std::string& to);
  /// Packets wait, in order, and no try is counted. They are in the network: if their queue pair goes, writes
  /// among them land when the road opens, unless the target's queue pair has gone too (or gone on).
  void hold(const std::string& from, const std::string& to);
  void deliver(const std::string& from, const std::string& to);
  /// Packets that leave or arrive by this GID are lost (a GID that does not route).
  void break_gid(const std::string& device, int port, int index);
  /// Replaces a GID; GID_CHANGE event.
  void set_gid(const std::string& device, int port, int index, GidSpec gid);

  /// The nth matching work request from now completes with `status`, its queue pair in error. With
  /// `executed`, the target has seen it all the same.
  void fail_next(const Target& target, ibv_wc_status status, int nth = 1, bool executed = false);
  /// The device is pulled: DEVICE_FATAL to its contexts, then EIO from every call; destroy calls fail too,
  /// their objects are gone.
  void remove(const std::string& device);
  /// An event out of nowhere for every context of `device` (for LID_CHANGE, SM_CHANGE, CLIENT_REREGISTER
  /// ...).
  void raise(const std::string& device, ibv_event_type type, int port = 1);

  // What happened.
  Alive alive() const;
  Counters counters() const;
  std::uint64_t calls(Call call) const;
  std::vector<QueuePairView> queue_pairs() const;
  std::vector<std::string> violations() const;

 private:
  friend class Clockwork;
  std::shared_ptr<detail::Core> core_;
};

/// Steps a fabric from a thread of its own, for tests whose two sides both sleep. Ends with its life.
class Clockwork {
 public:
  explicit Clockwork(ScriptedFabric& fabric, std::chrono::microseconds tick = std::chrono::microseconds(200));
  ~Clockwork();
  Clockwork(const Clockwork&) = delete;
  Clockwork& operator=(const Clockwork&) = delete;

 private:
  std::shared_ptr<detail::Core> core_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace cenote::transport::verbs::test
