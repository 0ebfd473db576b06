// What the cards do: requests travel, are served by the peer, are acknowledged, time out.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/unit/transports/verbs/scripted_core.h"

namespace cenote::transport::verbs::test::detail {

namespace {

enum class Outcome {
  moved,   ///< a piece, or an acknowledgement
  waits,   ///< for something of this queue pair: an acknowledgement, a fence
  idle,    ///< held, or no time-out runs
  silent,  ///< nobody answered; the try is counted
  failed,
};

bool is_atomic(const Request& request) {
  return request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
bool answers(const Request& request) { return request.opcode == IBV_WR_RDMA_READ || is_atomic(request); }
bool is_send(const Request& request) {
  return request.opcode == IBV_WR_SEND || request.opcode == IBV_WR_SEND_WITH_IMM;
}
bool has_imm(const Request& request) {
  return request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM || request.opcode == IBV_WR_SEND_WITH_IMM;
}

std::uint32_t mtu_of(const Qp& qp) { return 128u << qp.attr.path_mtu; }

// --- Completions ---

ibv_wc_opcode completed_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return IBV_WC_SEND;
    default:
      return IBV_WC_RDMA_WRITE;
  }
}

ibv_wc error_wc(const Qp& qp, std::uint64_t wr_id, ibv_wc_status status) {
  ibv_wc wc{};
  wc.wr_id = wr_id;
  wc.status = status;
  wc.opcode = IBV_WC_BIND_MW;  // of an error nothing else is valid: let nobody rely on it
  wc.vendor_err = 0x80u + static_cast<unsigned>(status);
  wc.byte_len = 0xdeadbeef;
  wc.qp_num = qp.qp_num;
  return wc;
}

/// The oldest request without acknowledgement ends with an error, the others are flushed.
Outcome fail_oldest(Core& core, Qp& qp, ibv_wc_status status) {
  const std::uint64_t slot = qp.acked++;
  if (qp.executed < qp.acked) {
    // Its sequence numbers are missing for ever: what the network carries behind it is not taken.
    qp.executed = qp.acked;
    qp.send_psn = (qp.send_psn + packets_of(qp, qp.request(slot))) & 0xffffff;
  }
  complete_locked(core, qp.send_queue(), {error_wc(qp, qp.request(slot).wr_id, status), &qp, slot + 1},
                  false);
  fail_qp_locked(core, qp);
  return Outcome::failed;
}

std::byte* local(const Qp& qp, const ibv_sge& sge, unsigned access) {
  return reach_locked(*qp.card, qp.pd, sge.lkey, false, sge.addr, sge.length, access);
}

/// Puts an answer where the request wanted it.
void scatter(Qp& qp, std::uint64_t slot, const std::byte* from, std::size_t bytes) {
  const ibv_sge* sge = qp.sges_of(slot);
  for (; bytes > 0; ++sge) {
    const std::size_t part = std::min<std::size_t>(bytes, sge->length);
    // The region may have gone since the request was sent; then the answer has no place.
    if (std::byte* to = local(qp, *sge, IBV_ACCESS_LOCAL_WRITE)) dma(to, from, part);
    from += part, bytes -= part;
  }
}

void acknowledge(Core& core, Qp& qp) {
  const std::uint64_t slot = qp.acked;
  Request& request = qp.request(slot);
  if (request.fate != IBV_WC_SUCCESS) {
    fail_oldest(core, qp, request.fate);
    return;
  }
  if (is_atomic(request))
    scatter(qp, slot, reinterpret_cast<const std::byte*>(&request.response), sizeof request.response);
  else if (answers(request))
    scatter(qp, slot, request.read.data(), request.length);
  if (answers(request)) ++qp.reads_acked;
  ++qp.acked;
  if ((request.flags & IBV_SEND_SIGNALED) == 0) return;
  ibv_wc wc{};
  wc.wr_id = request.wr_id;
  wc.opcode = completed_opcode(request.opcode);
  wc.qp_num = qp.qp_num;
  if (answers(request)) wc.byte_len = is_atomic(request) ? 8 : request.length;
  complete_locked(core, qp.send_queue(), {wc, &qp, slot + 1}, false);
}

/// What the peer refused: a NAK acknowledges all that came before.
Outcome refuse_at_peer(Core& core, Qp& qp, ibv_wc_status status) {
  const Road back = qp.route.back;
  if (back != Road::open) return back == Road::held ? Outcome::idle : Outcome::silent;
  while (qp.acked != qp.executed && qp.state == IBV_QPS_RTS) acknowledge(core, qp);
  if (qp.state != IBV_QPS_RTS) return Outcome::failed;
  return fail_oldest(core, qp, status);
}

/// As above, where the refusal is the peer's own end too.
Outcome break_both(Core& core, Qp& qp, Qp& peer, ibv_wc_status status, ibv_event_type event) {
  const Outcome outcome = refuse_at_peer(core, qp, status);
  async_locked(*static_cast<Context*>(peer.context), event, &peer);
  fail_qp_locked(core, peer);
  return outcome;
}

}  // namespace

// --- Serving a request ---

ibv_wc_status local_status_locked(Qp& qp, std::uint64_t slot) {
  const Request& request = qp.request(slot);
  if (request.length > qp.card->spec.max_msg_sz) return IBV_WC_LOC_LEN_ERR;
  if (is_atomic(request) && request.length != 8) return IBV_WC_LOC_LEN_ERR;
  if (answers(request) && qp.attr.max_rd_atomic == 0) return IBV_WC_LOC_QP_OP_ERR;
  if (request.inlined) return IBV_WC_SUCCESS;
  const unsigned access = answers(request) ? IBV_ACCESS_LOCAL_WRITE : 0;
  const ibv_sge* sges = qp.sges_of(slot);
  for (int i = 0; i < request.num_sge; ++i)
    if (sges[i].length != 0 && local(qp, sges[i], access) == nullptr) return IBV_WC_LOC_PROT_ERR;
  return IBV_WC_SUCCESS;
}

void gather_locked(Qp& qp, std::uint64_t slot, std::uint64_t offset, std::byte* to, std::uint64_t bytes) {
  const Request& request = qp.request(slot);
  if (request.inlined) return dma(to, qp.inline_of(slot) + offset, bytes);
  for (const ibv_sge* sge = qp.sges_of(slot); bytes > 0; ++sge) {
    if (offset >= sge->length) {
      offset -= sge->length;
      continue;
    }
    const std::uint64_t part = std::min<std::uint64_t>(bytes, sge->length - offset);
    dma(to, local(qp, *sge, 0) + offset, part);
    to += part, bytes -= part, offset = 0;
  }
}

void deliver_receive_locked(Core& core, std::uint32_t source_qpn, Qp& peer, const Request& request) {
  Srq& srq = *static_cast<Srq*>(peer.srq);
  ibv_wc wc{};
  wc.wr_id = srq.ring[srq.head].wr_id;
  wc.opcode = is_send(request) ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
  wc.byte_len = request.length;
  wc.qp_num = peer.qp_num;
  wc.src_qp = source_qpn;
  if (has_imm(request)) {
    wc.imm_data = request.imm;
    wc.wc_flags = IBV_WC_WITH_IMM;
  }
  srq.head = (srq.head + 1) % srq.ring.size();
  --srq.count;
  complete_locked(core, peer.receive_queue(), {wc, &peer, 0}, (request.flags & IBV_SEND_SOLICITED) != 0);
}

std::uint32_t packets_of(const Qp& qp, const Request& request) {
  return std::max(1u, (request.length + mtu_of(qp) - 1) / mtu_of(qp));
}

namespace {

Outcome fail_receive(Core& core, Qp& qp, Qp& peer, ibv_wc_status here, ibv_wc_status there) {
  Srq& srq = *static_cast<Srq*>(peer.srq);
  const std::uint64_t wr_id = srq.ring[srq.head].wr_id;
  srq.head = (srq.head + 1) % srq.ring.size();
  --srq.count;
  complete_locked(core, peer.receive_queue(), {error_wc(peer, wr_id, there), &peer, 0}, false);
  const Outcome outcome = refuse_at_peer(core, qp, here);
  fail_qp_locked(core, peer);
  return outcome;
}

Outcome serve_send(Core& core, Qp& qp, Qp& peer, std::uint64_t slot) {
  const Request& request = qp.request(slot);
  Srq& srq = *static_cast<Srq*>(peer.srq);
  const Receive& receive = srq.ring[srq.head];
  std::uint64_t room = 0;
  for (int i = 0; i < receive.num_sge; ++i) room += receive.sges[static_cast<std::size_t>(i)].length;
  if (room < request.length) return fail_receive(core, qp, peer, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR);
  const auto place = [&](const ibv_sge& sge) {
    return reach_locked(*peer.card, srq.pd, sge.lkey, false, sge.addr, sge.length, IBV_ACCESS_LOCAL_WRITE);
  };
  for (int i = 0; i < receive.num_sge; ++i)
    if (place(receive.sges[static_cast<std::size_t>(i)]) == nullptr)
      return fail_receive(core, qp, peer, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR);
  std::uint64_t offset = 0;
  for (const ibv_sge* sge = receive.sges.data(); offset < request.length; ++sge) {
    const std::uint64_t part = std::min<std::uint64_t>(sge->length, request.length - offset);
    gather_locked(qp, slot, offset, place(*sge), part);
    offset += part;
  }
  return Outcome::moved;
}

void serve_atomic(Request& request, std::byte* target) {
  auto* word = reinterpret_cast<std::uint64_t*>(target);
  if (request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    request.response = __atomic_fetch_add(word, request.compare_add, __ATOMIC_SEQ_CST);
    return;
  }
  request.response = request.compare_add;
  __atomic_compare_exchange_n(word, &request.response, request.swap, false, __ATOMIC_SEQ_CST,
                              __ATOMIC_SEQ_CST);
}

unsigned right_needed(const Request& request) {
  if (is_atomic(request)) return IBV_ACCESS_REMOTE_ATOMIC;
  if (answers(request)) return IBV_ACCESS_REMOTE_READ;
  return is_write(request) ? IBV_ACCESS_REMOTE_WRITE : 0;
}

Outcome lack_receive(Core& core, Qp& qp) {
  qp.rnr_waits = true;
  if (qp.attr.rnr_retry == 7) return Outcome::idle;
  if (++qp.rnr_tries <= qp.attr.rnr_retry) return Outcome::silent;
  return refuse_at_peer(core, qp, IBV_WC_RNR_RETRY_EXC_ERR);
}

/// One piece of a write or of a read's answer; the whole where nothing lags.
void move_piece(Core& core, Qp& qp, Qp& peer, std::uint64_t slot, std::byte* target) {
  Request& request = qp.request(slot);
  const std::uint32_t mtu = mtu_of(qp);
  const std::uint32_t piece = core.lagging ? std::max(mtu, request.length / 8 / mtu * mtu) : request.length;
  const std::uint32_t bytes = std::min(piece, request.length - request.done);
  if (is_write(request)) {
    if (core.relaxed_linger) {
      std::vector<std::byte> payload(bytes);
      gather_locked(qp, slot, request.done, payload.data(), bytes);
      write_locked(core, *peer.card, *region_locked(*peer.card, request.rkey, true), target + request.done,
                   payload.data(), bytes);
    } else {
      gather_locked(qp, slot, request.done, target + request.done, bytes);
    }
  } else {
    request.read.resize(request.length);
    dma(request.read.data() + request.done, target + request.done, bytes);
  }
  request.done += bytes;
}

/// What the peer's card does with the request's next piece. executed grows with the last.
Outcome serve(Core& core, Qp& qp, Qp& peer, std::uint64_t slot) {
  Request& request = qp.request(slot);
  const bool fits_mtu = request.length <= std::min(mtu_of(qp), mtu_of(peer));
  const unsigned right = right_needed(request);
  const bool misplaced = is_atomic(request) && request.remote % 8 != 0;
  const bool too_deep = answers(request) && qp.attr.max_rd_atomic > peer.attr.max_dest_rd_atomic;
  if ((qp.attr.path_mtu != peer.attr.path_mtu && !fits_mtu) || (peer.attr.qp_access_flags & right) != right ||
      misplaced || too_deep)
    return break_both(core, qp, peer, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
  if (!core.lingering.empty() && !is_write(request)) flush_lingering_locked(core, *peer.card);
  std::byte* target = nullptr;
  if (!is_send(request) && request.length != 0) {
    target = reach_locked(*peer.card, peer.pd, request.rkey, true, request.remote, request.length, right);
    if (target == nullptr) return break_both(core, qp, peer, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  }
  const auto* srq = static_cast<const Srq*>(peer.srq);
  const bool takes_receive = is_send(request) || has_imm(request);
  if (takes_receive && (srq == nullptr || srq->count == 0)) return lack_receive(core, qp);
  qp.rnr_tries = 0;
  if (is_send(request)) {
    if (const Outcome outcome = serve_send(core, qp, peer, slot); outcome != Outcome::moved) return outcome;
  } else if (is_atomic(request)) {
    serve_atomic(request, target);
  } else if (request.length != 0) {
    move_piece(core, qp, peer, slot, target);
    if (request.done < request.length) return Outcome::moved;
  }
  qp.send_psn = peer.receive_psn = (qp.send_psn + packets_of(qp, request)) & 0xffffff;
  if (answers(request)) ++qp.reads_executed;
  ++qp.executed;
  if (takes_receive) deliver_receive_locked(core, qp.qp_num, peer, request);
  return Outcome::moved;
}

// --- Advancing a queue pair ---

/// The own port is down: what the device makes of it.
Outcome cut_off(Core& core, Qp& qp) {
  switch (qp.card->spec.own_port_down) {
    case IBV_WC_RETRY_EXC_ERR:
      return Outcome::silent;
    case IBV_WC_WR_FLUSH_ERR:
      fail_qp_locked(core, qp);
      return Outcome::failed;
    default:
      return fail_oldest(core, qp, qp.card->spec.own_port_down);
  }
}

Outcome execute(Core& core, Qp& qp) {
  const std::uint64_t slot = qp.executed;
  const Request& request = qp.request(slot);
  const std::uint64_t reads = qp.reads_executed - qp.reads_acked;
  if ((request.flags & IBV_SEND_FENCE) != 0 && reads != 0) return Outcome::waits;
  if (answers(request) && reads != 0 && reads >= qp.attr.max_rd_atomic) return Outcome::waits;
  ibv_wc_status status = local_status_locked(qp, slot);
  if (status == IBV_WC_SUCCESS && !request.fate_executed) status = request.fate;
  if (status != IBV_WC_SUCCESS)  // in its turn
    return qp.acked != qp.executed ? Outcome::waits : fail_oldest(core, qp, status);
  const Route& route = route_locked(core, qp);
  if (route.own_port_down) return cut_off(core, qp);
  if (route.peer == nullptr || route.there == Road::lost) return Outcome::silent;
  if (route.there == Road::held) return Outcome::idle;
  if (qp.send_psn != route.peer->receive_psn) return Outcome::silent;
  return serve(core, qp, *route.peer, slot);
}

Outcome hear_acknowledgement(Core& core, Qp& qp) {
  const Route& route = route_locked(core, qp);
  if (route.own_port_down) return cut_off(core, qp);
  if (route.peer == nullptr || route.back == Road::lost) return Outcome::silent;
  if (route.back == Road::held) return Outcome::idle;
  acknowledge(core, qp);
  return Outcome::moved;
}

/// One advance; counts the try where nobody answered. Whether something happened.
Outcome advance(Core& core, Qp& qp, bool acknowledgement_first) {
  const bool unacknowledged = qp.executed != qp.acked;
  Outcome outcome = Outcome::waits;
  qp.rnr_waits = false;
  if (qp.executed != qp.posted && !(unacknowledged && acknowledgement_first)) outcome = execute(core, qp);
  if (outcome == Outcome::waits && qp.executed != qp.acked && qp.state == IBV_QPS_RTS)
    outcome = hear_acknowledgement(core, qp);
  if (outcome == Outcome::moved) qp.silent_steps = 0;
  if (outcome != Outcome::silent || qp.rnr_waits) return outcome;
  if (qp.attr.timeout == 0) return Outcome::idle;
  if (++qp.silent_steps < core.steps_per_try * (qp.attr.retry_cnt + 1)) return Outcome::silent;
  return fail_oldest(core, qp, IBV_WC_RETRY_EXC_ERR);
}

void set_active(Core& core, Qp& qp) {
  const bool wanted = qp.state == IBV_QPS_RTS && qp.acked != qp.posted;
  if (wanted == qp.active) return;
  qp.active = wanted;
  if (wanted)
    core.active.push_back(&qp);
  else
    std::erase(core.active, &qp);
}

/// Runs what is posted, as far as it gets now.
bool drain(Core& core, Qp& qp) {
  bool happened = false;
  Outcome outcome = Outcome::moved;
  while (outcome == Outcome::moved && qp.state == IBV_QPS_RTS && qp.acked != qp.posted) {
    outcome = advance(core, qp, true);
    happened = happened || (outcome != Outcome::idle && outcome != Outcome::waits);
  }
  set_active(core, qp);
  return happened;
}

void fail_overruns(Core& core) {
  while (!core.overruns.empty()) {
    const Cq* cq = core.overruns.back();
    core.overruns.pop_back();
    for (const auto& [number, qp] : cq->card->qps) {
      if (qp->send_cq != cq && qp->recv_cq != cq) continue;
      async_locked(*static_cast<Context*>(qp->context), IBV_EVENT_QP_FATAL, qp);
      fail_qp_locked(core, *qp);
    }
  }
}

}  // namespace

void fail_qp_locked(Core& core, Qp& qp) {
  const bool news = qp.state != IBV_QPS_ERR;
  leave_ghosts_locked(core, qp);
  qp.state = qp.attr.qp_state = IBV_QPS_ERR;
  if (news) ++core.epoch;
  for (; qp.acked != qp.posted; ++qp.acked)
    complete_locked(core, qp.send_queue(),
                    {error_wc(qp, qp.request(qp.acked).wr_id, IBV_WC_WR_FLUSH_ERR), &qp, qp.acked + 1},
                    false);
  qp.executed = qp.posted;
  qp.rnr_waits = false;
  set_active(core, qp);
  if (news && qp.srq != nullptr)
    async_locked(*static_cast<Context*>(qp.context), IBV_EVENT_QP_LAST_WQE_REACHED, &qp);
}

void reset_qp_locked(Core& core, Qp& qp) {
  leave_ghosts_locked(core, qp);
  forget_completions_locked(qp.send_queue(), &qp);
  forget_completions_locked(qp.receive_queue(), &qp);
  qp.state = IBV_QPS_RESET;
  qp.attr = {};
  qp.posted = qp.executed = qp.acked = qp.freed = 0;
  qp.reads_executed = qp.reads_acked = 0;
  qp.silent_steps = qp.rnr_tries = 0;
  qp.rnr_waits = false;
  set_active(core, qp);
}

void start_locked(Core& core, Qp& qp) {
  if (qp.state == IBV_QPS_ERR)
    fail_qp_locked(core, qp);
  else if (core.lagging)
    set_active(core, qp);
  else if (!qp.active)
    drain(core, qp);
  if (!core.overruns.empty()) fail_overruns(core);
}

void receive_posted_locked(Core& core) {
  if (core.lagging || core.active.empty()) return;
  const std::vector<Qp*> waiting = core.active;
  for (Qp* qp : waiting)
    if (qp->active && qp->rnr_waits) drain(core, *qp);
  if (!core.overruns.empty()) fail_overruns(core);
}

bool tick_active_locked(Core& core) {
  bool happened = false;
  const std::vector<Qp*> waiting = core.active;
  for (Qp* qp : waiting)
    if (qp->active && drain(core, *qp)) happened = true;
  while (haunt_locked(core) || land_lingering_locked(core)) happened = true;
  if (!core.overruns.empty()) fail_overruns(core);
  return happened;
}

bool step_locked(Core& core) {
  if (!core.lagging) return tick_active_locked(core);
  if (core.active.empty() || core.random() % 4 == 0)
    if (haunt_locked(core) || land_lingering_locked(core)) return true;
  if (core.active.empty()) return false;
  Qp& qp = *core.active[core.random() % core.active.size()];
  const Outcome outcome = advance(core, qp, core.random() % 2 == 0);
  set_active(core, qp);
  if (!core.overruns.empty()) fail_overruns(core);
  return outcome != Outcome::idle && outcome != Outcome::waits;
}

}  // namespace cenote::transport::verbs::test::detail
