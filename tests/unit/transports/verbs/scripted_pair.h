// Two processes with a device, a queue pair and a region each, connected: what the double's own tests stand
// on. Bare calls of the table, so that the tests see what a transport would see.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <cstring>
#include <vector>

#include "tests/unit/transports/verbs/scripted_provider.h"

namespace cenote::transport::verbs::test {

constexpr unsigned kAllRights =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

struct EndOptions {
  std::uint32_t send_slots = 16;
  int completions = 64;
  std::uint32_t receives = 8;
  std::uint32_t inline_data = 64;
};

/// One side: everything up to a queue pair in RESET. Destroys what it made, unless its process has died.
struct End {
  End(ScriptedProcess of, EndOptions options = {}) : process(std::move(of)), api(process.api()) {
    int count = 0;
    ibv_device** list = api->get_device_list(&count);
    context = api->open_device(list[0]);
    api->free_device_list(list);
    pd = api->alloc_pd(context);
    channel = api->create_comp_channel(context);
    cq = api->create_cq(context, options.completions, this, channel, 0);
    ibv_srq_init_attr srq_attributes{};
    srq_attributes.attr.max_wr = options.receives;
    srq_attributes.attr.max_sge = 2;
    srq = api->create_srq(pd, &srq_attributes);
    memory.resize(1 << 16);
    mr = api->reg_mr(pd, memory.data(), memory.size(), kAllRights);
    qp = make_qp(options);
  }
  ~End() {
    if (qp != nullptr) api->destroy_qp(qp);
    api->destroy_srq(srq);
    api->destroy_cq(cq);
    api->destroy_comp_channel(channel);
    api->dereg_mr(mr);
    api->dealloc_pd(pd);
    api->close_device(context);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  ibv_qp* make_qp(EndOptions options = {}) const {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = cq;
    attributes.srq = srq;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap.max_send_wr = options.send_slots;
    attributes.cap.max_send_sge = 2;
    attributes.cap.max_inline_data = options.inline_data;
    return api->create_qp(pd, &attributes);
  }

  std::uint64_t at(std::size_t offset) const {
    return reinterpret_cast<std::uint64_t>(memory.data()) + offset;
  }
  ibv_sge sge(std::size_t offset, std::size_t length) const {
    return {at(offset), static_cast<std::uint32_t>(length), mr->lkey};
  }
  std::uint64_t word(std::size_t offset) const {
    std::uint64_t value = 0;
    std::memcpy(&value, memory.data() + offset, sizeof value);
    return value;
  }
  void set_word(std::size_t offset, std::uint64_t value) {
    std::memcpy(memory.data() + offset, &value, sizeof value);
  }

  int post(ibv_send_wr wr) const {
    ibv_send_wr* bad = nullptr;
    return api->post_send(qp, &wr, &bad);
  }
  int receive(std::uint64_t wr_id, std::size_t offset, std::size_t length) const {
    ibv_sge where = sge(offset, length);
    ibv_recv_wr wr{wr_id, nullptr, &where, 1};
    ibv_recv_wr* bad = nullptr;
    return api->post_srq_recv(srq, &wr, &bad);
  }
  std::vector<ibv_wc> poll(int most = 16) const {
    std::vector<ibv_wc> found(static_cast<std::size_t>(most));
    const int count = api->poll_cq(cq, most, found.data());
    found.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
    return found;
  }
  /// Polls until there is one; a status of 255 when none comes in a thousand polls.
  ibv_wc next() const {
    for (int i = 0; i < 1000; ++i)
      if (const auto found = poll(1); !found.empty()) return found[0];
    ibv_wc none{};
    none.status = static_cast<ibv_wc_status>(IBV_WC_TM_RNDV_INCOMPLETE);
    none.wr_id = ~0ull;
    return none;
  }
  ibv_qp_state state() const { return qp->state; }

  ScriptedProcess process;
  std::shared_ptr<const VerbsApi> api;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  ibv_srq* srq = nullptr;
  std::vector<std::byte> memory;
  ibv_mr* mr = nullptr;
  ibv_qp* qp = nullptr;
};

constexpr int kInitMask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kRtrMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kRtsMask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                         IBV_QP_MAX_QP_RD_ATOMIC;

/// What brings a queue pair of `from` to RTS against one of a peer; a test bends what it wants bent.
struct Wiring {
  ibv_qp_attr init{}, rtr{}, rts{};
};

inline Wiring wiring(std::uint32_t peer_qpn, ibv_gid peer_gid, std::uint8_t gid_index,
                     std::uint16_t lid = 0) {
  Wiring w;
  w.init.qp_state = IBV_QPS_INIT;
  w.init.port_num = 1;
  w.init.qp_access_flags = kAllRights;
  w.rtr.qp_state = IBV_QPS_RTR;
  w.rtr.path_mtu = IBV_MTU_1024;
  w.rtr.dest_qp_num = peer_qpn;
  w.rtr.rq_psn = w.rts.sq_psn = 0x123456;
  w.rtr.max_dest_rd_atomic = 4;
  w.rtr.min_rnr_timer = 12;
  w.rtr.ah_attr.port_num = 1;
  w.rtr.ah_attr.dlid = lid;
  w.rtr.ah_attr.is_global = lid == 0 ? 1 : 0;
  w.rtr.ah_attr.grh.dgid = peer_gid;
  w.rtr.ah_attr.grh.sgid_index = gid_index;
  w.rtr.ah_attr.grh.hop_limit = 64;
  w.rts.qp_state = IBV_QPS_RTS;
  w.rts.timeout = 14;
  w.rts.retry_cnt = 3;
  w.rts.rnr_retry = 7;
  w.rts.max_rd_atomic = 4;
  return w;
}

inline int bring_up(const VerbsApi& api, ibv_qp* qp, Wiring w) {
  if (const int error = api.modify_qp(qp, &w.init, kInitMask); error != 0) return error;
  if (const int error = api.modify_qp(qp, &w.rtr, kRtrMask); error != 0) return error;
  return api.modify_qp(qp, &w.rts, kRtsMask);
}

/// A fabric with RoCE devices a0 and b0, and an End on each.
struct Pair {
  explicit Pair(EndOptions options = {})
      : a((add("a0", "10.0.0.1"), add("b0", "10.0.0.2"), fabric.process("a", {"a0"})), options),
        b(fabric.process("b", {"b0"}), options) {}
  void add(const char* name, const char* address) { fabric.add_device(roce_device(name, address)); }

  Wiring a_wiring() const { return wiring(b.qp->qp_num, gid_of_ipv4("10.0.0.2"), 3); }
  Wiring b_wiring() const { return wiring(a.qp->qp_num, gid_of_ipv4("10.0.0.1"), 3); }
  void connect(const Wiring& wa, const Wiring& wb) {
    ASSERT_EQ(bring_up(*a.api, a.qp, wa), 0);
    ASSERT_EQ(bring_up(*b.api, b.qp, wb), 0);
  }
  void connect() { connect(a_wiring(), b_wiring()); }

  ScriptedFabric fabric;
  End a;
  End b;
};

/// Requests of `from` on the memory of `to`, signaled.
inline ibv_send_wr request(ibv_wr_opcode opcode, std::uint64_t wr_id, ibv_sge* sge, const End& to,
                           std::size_t offset) {
  ibv_send_wr wr{};
  wr.wr_id = wr_id;
  wr.opcode = opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.sg_list = sge;
  wr.num_sge = sge == nullptr ? 0 : 1;
  if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    wr.wr.atomic.remote_addr = to.at(offset);
    wr.wr.atomic.rkey = to.mr->rkey;
  } else {
    wr.wr.rdma.remote_addr = to.at(offset);
    wr.wr.rdma.rkey = to.mr->rkey;
  }
  return wr;
}

inline bool readable(int fd) {
  pollfd wait{fd, POLLIN, 0};
  return ::poll(&wait, 1, 0) == 1;
}

/// The next asynchronous event, acknowledged; -1 when there is none.
inline int next_event(const End& end) {
  if (!readable(end.context->async_fd)) return -1;
  ibv_async_event event{};
  if (end.api->get_async_event(end.context, &event) != 0) return -1;
  end.api->ack_async_event(&event);
  return static_cast<int>(event.event_type);
}

inline std::vector<int> events(const End& end) {
  std::vector<int> found;
  for (int event = next_event(end); event >= 0; event = next_event(end)) found.push_back(event);
  return found;
}

inline std::vector<ibv_wc_status> statuses(const End& end) {
  std::vector<ibv_wc_status> found;
  for (int i = 0; i < 200; ++i)
    for (const ibv_wc& wc : end.poll()) found.push_back(wc.status);
  return found;
}

inline ibv_wc_status write_word(Pair& pair, std::size_t offset = 0) {
  ibv_sge sge = pair.a.sge(0, 8);
  if (pair.a.post(request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, offset)) != 0) return IBV_WC_GENERAL_ERR;
  return pair.a.next().status;
}

using Statuses = std::vector<ibv_wc_status>;

}  // namespace cenote::transport::verbs::test
