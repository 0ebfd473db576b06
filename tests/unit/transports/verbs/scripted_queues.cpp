// Shared receive queues and queue pairs: making, modifying, posting.
#include <algorithm>
#include <bit>
#include <cerrno>

#include "tests/unit/transports/verbs/scripted_core.h"

namespace cenote::transport::verbs::test::detail {

namespace {

template <class T>
T* refused(int error) {
  errno = error;
  return nullptr;
}

ibv_srq* create_srq(ibv_pd* opaque, ibv_srq_init_attr* attributes) {
  auto* pd = static_cast<Pd*>(opaque);
  const Entry entry(Call::create_srq, pd);
  if (entry.error != 0) return entry.fail<ibv_srq>();
  const DeviceSpec& spec = pd->card->spec;
  const ibv_srq_attr& wanted = attributes->attr;
  if (wanted.max_wr < 1 || wanted.max_wr > static_cast<std::uint32_t>(spec.max_srq_wr) ||
      wanted.max_sge > static_cast<std::uint32_t>(std::min(spec.max_sge, 16)))
    return refused<ibv_srq>(EINVAL);
  Core& core = *pd->process->core;
  Srq* srq = core.make<Srq>(*pd->process, *pd->card);
  srq->context = pd->context;
  srq->srq_context = attributes->srq_context;
  srq->pd = pd;
  srq->handle = core.next_handle++;
  srq->ring.resize(wanted.max_wr);
  srq->max_sge = static_cast<int>(wanted.max_sge);
  ++pd->users;
  ++pd->process->alive.srqs;
  return srq;
}

int destroy_srq(ibv_srq* opaque) {
  auto* srq = static_cast<Srq*>(opaque);
  const Entry entry(Call::destroy_srq, srq);
  if (entry.error != 0) return entry.error;
  if (srq->users != 0) return EBUSY;
  srq->alive = false;
  srq->ring = {};
  --static_cast<Pd*>(srq->pd)->users;
  --srq->process->alive.srqs;
  return 0;
}

int post_one_receive(Srq& srq, const ibv_recv_wr& wr) {
  if (!srq.process->refusals.empty())
    if (const int error = refused_locked(*srq.process, Call::post_srq_recv); error != 0) return error;
  if (wr.num_sge < 0 || wr.num_sge > srq.max_sge) return EINVAL;
  if (srq.count == srq.ring.size()) return ENOMEM;
  Receive& receive = srq.ring[(srq.head + srq.count) % srq.ring.size()];
  receive.wr_id = wr.wr_id;
  receive.num_sge = wr.num_sge;
  std::copy_n(wr.sg_list, wr.num_sge, receive.sges.begin());
  ++srq.count;
  ++srq.process->counters.receives;
  return 0;
}

int post_srq_recv(ibv_srq* opaque, ibv_recv_wr* list, ibv_recv_wr** bad) {
  auto* srq = static_cast<Srq*>(opaque);
  const Entry entry(Call::post_srq_recv, srq, true);
  int error = entry.error;
  for (; error == 0 && list != nullptr; list = list->next) {
    error = post_one_receive(*srq, *list);
    if (error != 0) break;
  }
  if (error != 0) *bad = list;
  if (entry.error == 0) receive_posted_locked(*srq->process->core);
  return error;
}

bool fits(const DeviceSpec& spec, const ibv_qp_cap& cap) {
  return cap.max_send_wr <= static_cast<std::uint32_t>(spec.max_qp_wr) &&
         cap.max_recv_wr <= static_cast<std::uint32_t>(spec.max_qp_wr) &&
         cap.max_send_sge <= static_cast<std::uint32_t>(spec.max_sge) &&
         cap.max_recv_sge <= static_cast<std::uint32_t>(spec.max_sge) &&
         cap.max_inline_data <= spec.max_inline;
}

ibv_qp* create_qp(ibv_pd* opaque, ibv_qp_init_attr* attributes) {
  auto* pd = static_cast<Pd*>(opaque);
  const Entry entry(Call::create_qp, pd);
  if (entry.error != 0) return entry.fail<ibv_qp>();
  auto* send = static_cast<Cq*>(attributes->send_cq);
  auto* receive = static_cast<Cq*>(attributes->recv_cq);
  auto* srq = static_cast<Srq*>(attributes->srq);
  if (attributes->qp_type != IBV_QPT_RC) return refused<ibv_qp>(EOPNOTSUPP);
  if (send == nullptr || receive == nullptr || !send->alive || !receive->alive ||
      send->context != pd->context || receive->context != pd->context ||
      (srq != nullptr && (!srq->alive || srq->context != pd->context)) ||
      !fits(pd->card->spec, attributes->cap))
    return refused<ibv_qp>(EINVAL);
  Core& core = *pd->process->core;
  Qp* qp = core.make<Qp>(*pd->process, *pd->card);
  qp->context = pd->context;
  qp->qp_context = attributes->qp_context;
  qp->pd = pd;
  qp->send_cq = send;
  qp->recv_cq = receive;
  qp->srq = srq;
  qp->handle = core.next_handle++;
  qp->qp_num = pd->card->next_qpn++;
  qp->qp_type = IBV_QPT_RC;
  qp->cap = attributes->cap;
  qp->signal_all = attributes->sq_sig_all != 0;
  qp->requests.resize(qp->cap.max_send_wr);
  qp->sges.resize(std::size_t{qp->cap.max_send_wr} * qp->cap.max_send_sge);
  qp->inlined.resize(std::size_t{qp->cap.max_send_wr} * qp->cap.max_inline_data);
  pd->card->qps[qp->qp_num] = qp;
  ++pd->users, ++send->users, ++receive->users;
  if (srq != nullptr) ++srq->users;
  ++pd->process->alive.qps;
  return qp;
}

int destroy_qp(ibv_qp* opaque) {
  auto* qp = static_cast<Qp*>(opaque);
  const Entry entry(Call::destroy_qp, qp);
  if (entry.error != 0) return entry.error;
  Core& core = *qp->process->core;
  if (qp->unacked_async != 0) {
    violation_locked(core, *qp->process,
                     "destroy_qp with events not acknowledged: the real one waits for ever");
    return EBUSY;
  }
  leave_ghosts_locked(core, *qp);
  forget_qp_events_locked(*qp);
  if (!qp->card->spec.keeps_completions_of_destroyed_qps) {
    forget_completions_locked(qp->send_queue(), qp);
    forget_completions_locked(qp->receive_queue(), qp);
  }
  std::erase(core.active, qp);
  qp->card->qps.erase(qp->qp_num);
  ++core.epoch;
  qp->alive = false;
  qp->requests = {}, qp->sges = {}, qp->inlined = {};
  --static_cast<Pd*>(qp->pd)->users, --qp->send_queue().users, --qp->receive_queue().users;
  if (qp->srq != nullptr) --static_cast<Srq*>(qp->srq)->users;
  --qp->process->alive.qps;
  return 0;
}

struct Transition {
  ibv_qp_state from, to;
  int required, optional;
};

// Of a reliable connection, from the kernel's table (ib_modify_qp_is_ok). IBV_QP_STATE is always among them.
constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE},
};

bool transition_allowed(ibv_qp_state from, ibv_qp_state to, int mask) {
  mask &= ~IBV_QP_STATE;
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return mask == 0;
  return std::any_of(std::begin(kTransitions), std::end(kTransitions), [&](const Transition& known) {
    return known.from == from && known.to == to && (mask & known.required) == known.required &&
           (mask & ~(known.required | known.optional)) == 0;
  });
}

bool address_allowed(const Port& port, const ibv_ah_attr& address) {
  if (address.is_global == 0) return port.spec.link_layer == IBV_LINK_LAYER_INFINIBAND && address.dlid != 0;
  const auto& gids = port.spec.gids;
  return address.grh.sgid_index < gids.size() && gids[address.grh.sgid_index].valid;
}

bool attributes_allowed(Qp& qp, const ibv_qp_attr& wanted, int mask) {
  const bool moves_port = (mask & IBV_QP_PORT) != 0;
  const Port* port = qp.card->port(moves_port ? wanted.port_num : qp.attr.port_num);
  if (port == nullptr) return false;
  const DeviceSpec& spec = qp.card->spec;
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && wanted.pkey_index >= port->spec.pkeys.size()) return false;
  if ((mask & IBV_QP_PATH_MTU) != 0 &&
      (wanted.path_mtu < IBV_MTU_256 || wanted.path_mtu > port->spec.active_mtu))
    return false;
  if ((mask & IBV_QP_AV) != 0 &&
      (qp.card->port(wanted.ah_attr.port_num) != port || !address_allowed(*port, wanted.ah_attr)))
    return false;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0 && wanted.max_dest_rd_atomic > spec.max_qp_rd_atom)
    return false;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && wanted.max_rd_atomic > spec.max_qp_init_rd_atom) return false;
  if ((mask & IBV_QP_TIMEOUT) != 0 && wanted.timeout > 31) return false;
  if ((mask & IBV_QP_RETRY_CNT) != 0 && wanted.retry_cnt > 7) return false;
  if ((mask & IBV_QP_RNR_RETRY) != 0 && wanted.rnr_retry > 7) return false;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && wanted.min_rnr_timer > 31) return false;
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0 && (wanted.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC) != 0 &&
      spec.atomics == IBV_ATOMIC_NONE)
    return false;
  return true;
}

void take_attributes(Qp& qp, const ibv_qp_attr& wanted, int mask) {
  ibv_qp_attr& attr = qp.attr;
  if ((mask & IBV_QP_PKEY_INDEX) != 0) attr.pkey_index = wanted.pkey_index;
  if ((mask & IBV_QP_PORT) != 0) attr.port_num = wanted.port_num;
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) attr.qp_access_flags = wanted.qp_access_flags;
  if ((mask & IBV_QP_AV) != 0) attr.ah_attr = wanted.ah_attr;
  if ((mask & IBV_QP_PATH_MTU) != 0) attr.path_mtu = wanted.path_mtu;
  if ((mask & IBV_QP_DEST_QPN) != 0) attr.dest_qp_num = wanted.dest_qp_num;
  if ((mask & IBV_QP_RQ_PSN) != 0) qp.receive_psn = attr.rq_psn = wanted.rq_psn & 0xffffff;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) attr.max_dest_rd_atomic = wanted.max_dest_rd_atomic;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) attr.min_rnr_timer = wanted.min_rnr_timer;
  if ((mask & IBV_QP_TIMEOUT) != 0) attr.timeout = wanted.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0) attr.retry_cnt = wanted.retry_cnt;
  if ((mask & IBV_QP_RNR_RETRY) != 0) attr.rnr_retry = wanted.rnr_retry;
  if ((mask & IBV_QP_SQ_PSN) != 0) qp.send_psn = attr.sq_psn = wanted.sq_psn & 0xffffff;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) attr.max_rd_atomic = wanted.max_rd_atomic;
}

int modify_qp(ibv_qp* opaque, ibv_qp_attr* wanted, int mask) {
  auto* qp = static_cast<Qp*>(opaque);
  const Entry entry(Call::modify_qp, qp);
  if (entry.error != 0) return entry.error;
  Core& core = *qp->process->core;
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? wanted->qp_state : qp->state;
  if ((mask & IBV_QP_CUR_STATE) != 0 && wanted->cur_qp_state != qp->state) return EINVAL;
  if (!transition_allowed(qp->state, to, mask)) return EINVAL;
  ++core.epoch;
  if (to == IBV_QPS_RESET) return reset_qp_locked(core, *qp), 0;
  if (to == IBV_QPS_ERR) return fail_qp_locked(core, *qp), 0;
  if (!attributes_allowed(*qp, *wanted, mask)) return EINVAL;
  take_attributes(*qp, *wanted, mask);
  qp->state = qp->attr.qp_state = to;
  return 0;
}

void inherit_fault(Qp& qp, Request& request) {
  std::vector<Fault>& faults = qp.process->core->faults;
  for (auto fault = faults.begin(); fault != faults.end(); ++fault) {
    if (fault->device != qp.card || (fault->qp_num != 0 && fault->qp_num != qp.qp_num) ||
        (fault->opcode >= 0 && fault->opcode != static_cast<int>(request.opcode)))
      continue;
    if (--fault->countdown > 0) continue;
    request.fate = fault->status;
    request.fate_executed = fault->executed;
    faults.erase(fault);
    return;
  }
}

int check_request(const Qp& qp, const ibv_send_wr& wr, std::uint64_t length) {
  const bool atomic = wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  const bool answers = atomic || wr.opcode == IBV_WR_RDMA_READ;
  const bool known = answers || wr.opcode == IBV_WR_RDMA_WRITE || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
                     wr.opcode == IBV_WR_SEND || wr.opcode == IBV_WR_SEND_WITH_IMM;
  if (!known || (atomic && qp.card->spec.atomics == IBV_ATOMIC_NONE)) return EINVAL;
  if (length > 0xffffffff) return EINVAL;
  if ((wr.send_flags & IBV_SEND_INLINE) != 0 && (answers || length > qp.cap.max_inline_data)) return EINVAL;
  if (qp.posted - qp.freed >= qp.cap.max_send_wr) return ENOMEM;
  return 0;
}

void copy_inline(Qp& qp, const ibv_send_wr& wr) {
  std::byte* to = qp.inline_of(qp.posted);
  for (int i = 0; i < wr.num_sge; ++i) {  // keys of inline data are not looked at
    dma(to, std::bit_cast<const std::byte*>(wr.sg_list[i].addr), wr.sg_list[i].length);
    to += wr.sg_list[i].length;
  }
}

int post_one(Qp& qp, const ibv_send_wr& wr) {
  if (!qp.process->refusals.empty())
    if (const int error = refused_locked(*qp.process, Call::post_send); error != 0) return error;
  if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > qp.cap.max_send_sge) return EINVAL;
  std::uint64_t length = 0;
  for (int i = 0; i < wr.num_sge; ++i) length += wr.sg_list[i].length;
  if (const int error = check_request(qp, wr, length); error != 0) return error;
  Request& request = qp.request(qp.posted);
  request.wr_id = wr.wr_id;
  request.opcode = wr.opcode;
  request.flags = wr.send_flags | (qp.signal_all ? IBV_SEND_SIGNALED : 0);
  request.imm = wr.imm_data;
  const bool atomic = wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  request.remote = atomic ? wr.wr.atomic.remote_addr : wr.wr.rdma.remote_addr;
  request.rkey = atomic ? wr.wr.atomic.rkey : wr.wr.rdma.rkey;
  request.compare_add = atomic ? wr.wr.atomic.compare_add : 0;
  request.swap = atomic ? wr.wr.atomic.swap : 0;
  request.num_sge = wr.num_sge;
  request.inlined = (wr.send_flags & IBV_SEND_INLINE) != 0;
  request.length = static_cast<std::uint32_t>(length);
  request.done = 0;
  request.fate = IBV_WC_SUCCESS;
  request.fate_executed = false;
  if (request.inlined)
    copy_inline(qp, wr);
  else
    std::copy_n(wr.sg_list, wr.num_sge, qp.sges_of(qp.posted));
  if (!qp.process->core->faults.empty()) inherit_fault(qp, request);
  ++qp.posted;
  ++qp.process->counters.work_requests;
  return 0;
}

int post_send(ibv_qp* opaque, ibv_send_wr* list, ibv_send_wr** bad) {
  auto* qp = static_cast<Qp*>(opaque);
  const Entry entry(Call::post_send, qp, true);
  int error = entry.error;
  if (error == 0 && qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR) error = EINVAL;
  const std::uint64_t before = qp->posted;
  for (; error == 0 && list != nullptr; list = list->next) {
    error = post_one(*qp, *list);
    if (error != 0) break;
  }
  if (error != 0) *bad = list;
  if (qp->posted != before) {
    ++qp->process->counters.doorbells;
    start_locked(*qp->process->core, *qp);
  }
  return error;
}

}  // namespace

void fill_queue_calls(VerbsApi& table) {
  table.create_srq = create_srq;
  table.destroy_srq = destroy_srq;
  table.post_srq_recv = post_srq_recv;
  table.create_qp = create_qp;
  table.modify_qp = modify_qp;
  table.destroy_qp = destroy_qp;
  table.post_send = post_send;
}

}  // namespace cenote::transport::verbs::test::detail
