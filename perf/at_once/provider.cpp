// A stand-in for libibverbs under which every work request is done when the call that posts it returns, and
// nothing is moved anywhere: what a program executes besides is its own. It makes no allocation, lock or
// system call between post and poll. The program under measurement is real: perftest has it preloaded,
// Cenote's loader opens it as libibverbs.so.1. One device, "at_once0", with one RoCE port; requests are only
// of RC queue pairs and never fail. Not thread-safe.
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr std::uint32_t most_inline = 256;
constexpr std::size_t ring_size = std::size_t{1} << 16;

std::uint32_t next_number() {
  static std::uint32_t number = 0;
  return ++number;
}

struct Queue {
  ibv_cq cq{};  // first, as in the others: what the caller holds is a pointer to it
  std::vector<ibv_wc> ring{ring_size};
  std::size_t head = 0, tail = 0;

  static Queue* of(ibv_cq* cq) { return reinterpret_cast<Queue*>(cq); }
  void push(std::uint64_t id, std::uint32_t queue_pair, ibv_wc_opcode opcode) {
    ibv_wc& entry = ring[tail++ % ring_size];
    entry.wr_id = id;
    entry.status = IBV_WC_SUCCESS;
    entry.opcode = opcode;
    entry.qp_num = queue_pair;
  }
};

ibv_wc_opcode done_as(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    case IBV_WR_SEND:
      return IBV_WC_SEND;
    default:
      return IBV_WC_RDMA_WRITE;
  }
}

int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** /*bad*/) {
  for (; list != nullptr; list = list->next) {
    if ((list->send_flags & IBV_SEND_SIGNALED) != 0)
      Queue::of(qp->send_cq)->push(list->wr_id, qp->qp_num, done_as(list->opcode));
  }
  return 0;
}
int post_recv(ibv_qp* /*qp*/, ibv_recv_wr* /*list*/, ibv_recv_wr** /*bad*/) { return 0; }
int post_srq_recv(ibv_srq* /*srq*/, ibv_recv_wr* /*list*/, ibv_recv_wr** /*bad*/) { return 0; }
int req_notify_cq(ibv_cq* /*cq*/, int /*solicited_only*/) { return 0; }
int poll_cq(ibv_cq* cq, int count, ibv_wc* out) {
  Queue* queue = Queue::of(cq);
  int taken = 0;
  for (; taken < count && queue->head != queue->tail; ++taken)
    out[taken] = queue->ring[queue->head++ % ring_size];
  return taken;
}

// The newer way to post: a request is begun, described call by call, and finished.
void wr_start(ibv_qp_ex* /*qp*/) {}
int wr_complete(ibv_qp_ex* /*qp*/) { return 0; }
void wr_abort(ibv_qp_ex* /*qp*/) {}
void wr_rdma_write(ibv_qp_ex* qp, std::uint32_t /*key*/, std::uint64_t /*address*/) {
  if ((qp->wr_flags & IBV_SEND_SIGNALED) != 0)
    Queue::of(qp->qp_base.send_cq)->push(qp->wr_id, qp->qp_base.qp_num, IBV_WC_RDMA_WRITE);
}
void wr_set_sge(ibv_qp_ex* /*qp*/, std::uint32_t /*key*/, std::uint64_t /*address*/,
                std::uint32_t /*length*/) {}
void wr_set_inline_data(ibv_qp_ex* /*qp*/, void* /*data*/, std::size_t /*length*/) {}

ibv_qp* make_queue_pair(ibv_context* context, ibv_pd* pd, ibv_cq* send, ibv_cq* receive, ibv_qp_type type) {
  auto* made = new ibv_qp_ex{};
  made->qp_base.context = context;
  made->qp_base.pd = pd;
  made->qp_base.send_cq = send;
  made->qp_base.recv_cq = receive;
  made->qp_base.qp_type = type;
  made->qp_base.qp_num = next_number();
  made->wr_start = wr_start;
  made->wr_complete = wr_complete;
  made->wr_abort = wr_abort;
  made->wr_rdma_write = wr_rdma_write;
  made->wr_set_sge = wr_set_sge;
  made->wr_set_inline_data = wr_set_inline_data;
  return &made->qp_base;
}
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* init) {
  init->cap.max_inline_data = most_inline;
  return make_queue_pair(context, init->pd, init->send_cq, init->recv_cq, init->qp_type);
}

void fill_gid(ibv_gid& gid) {  // ::ffff:127.0.0.1
  gid = {};
  gid.raw[10] = gid.raw[11] = 0xff;
  gid.raw[12] = 127;
  gid.raw[15] = 1;
}
void fill_gid(ibv_gid_entry& entry) {
  fill_gid(entry.gid);
  entry.gid_index = 0;
  entry.port_num = 1;
  entry.gid_type = IBV_GID_TYPE_ROCE_V2;
  entry.ndev_ifindex = 0;
}

}  // namespace

// What the programs call, by the names that they look for.
#undef ibv_query_port
#undef ibv_reg_mr
#define EXPORT __attribute__((visibility("default")))
extern "C" {

EXPORT ibv_device** ibv_get_device_list(int* count) {
  static ibv_device device{};
  std::strcpy(device.name, "at_once0");
  device.node_type = IBV_NODE_CA;
  device.transport_type = IBV_TRANSPORT_IB;
  if (count != nullptr) *count = 1;
  auto** list = new ibv_device* [2] {};
  list[0] = &device;
  return list;
}
EXPORT void ibv_free_device_list(ibv_device** list) { delete[] list; }
EXPORT const char* ibv_get_device_name(ibv_device* device) { return device->name; }
EXPORT ibv_context* ibv_open_device(ibv_device* device) {
  auto* made = new verbs_context{};
  made->sz = sizeof *made;
  made->create_qp_ex = create_qp_ex;
  made->context.device = device;
  made->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  made->context.num_comp_vectors = 1;
  made->context.async_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  made->context.ops.poll_cq = poll_cq;
  made->context.ops.post_send = post_send;
  made->context.ops.post_recv = post_recv;
  made->context.ops.post_srq_recv = post_srq_recv;
  made->context.ops.req_notify_cq = req_notify_cq;
  return &made->context;
}
EXPORT int ibv_close_device(ibv_context* context) {
  ::close(context->async_fd);
  delete reinterpret_cast<verbs_context*>(reinterpret_cast<char*>(context) -
                                          offsetof(verbs_context, context));
  return 0;
}
EXPORT int ibv_query_device(ibv_context* /*context*/, ibv_device_attr* out) {
  *out = {};
  out->max_mr_size = ~std::uint64_t{0};
  out->max_qp = out->max_mr = out->max_pd = out->max_cq = out->max_srq = 65536;
  out->max_qp_wr = out->max_srq_wr = 16384;
  out->max_cqe = static_cast<int>(ring_size) - 1;
  out->max_sge = out->max_srq_sge = 16;
  out->max_qp_rd_atom = out->max_qp_init_rd_atom = 16;
  out->atomic_cap = IBV_ATOMIC_HCA;
  out->phys_port_cnt = 1;
  return 0;
}
EXPORT int ibv_query_port(ibv_context* /*context*/, std::uint8_t /*port*/, _compat_ibv_port_attr* out) {
  auto* port = reinterpret_cast<ibv_port_attr*>(out);
  std::memset(port, 0, offsetof(ibv_port_attr, port_cap_flags2));
  port->state = IBV_PORT_ACTIVE;
  port->max_mtu = port->active_mtu = IBV_MTU_4096;
  port->gid_tbl_len = port->pkey_tbl_len = 1;
  port->max_msg_sz = 1U << 30;
  port->link_layer = IBV_LINK_LAYER_ETHERNET;
  port->active_width = 2;
  port->active_speed = 64;
  return 0;
}
EXPORT int ibv_query_gid(ibv_context* /*context*/, std::uint8_t /*port*/, int /*index*/, ibv_gid* out) {
  fill_gid(*out);
  return 0;
}
EXPORT int _ibv_query_gid_ex(ibv_context* /*context*/, std::uint32_t /*port*/, std::uint32_t /*index*/,
                             ibv_gid_entry* out, std::uint32_t /*flags*/, std::size_t /*size*/) {
  fill_gid(*out);
  return 0;
}
EXPORT ssize_t _ibv_query_gid_table(ibv_context* /*context*/, ibv_gid_entry* out, std::size_t room,
                                    std::uint32_t /*flags*/, std::size_t /*size*/) {
  if (room == 0) return -EINVAL;
  fill_gid(*out);
  return 1;
}
EXPORT int ibv_query_pkey(ibv_context* /*context*/, std::uint8_t /*port*/, int /*index*/, __be16* out) {
  *out = 0xffff;
  return 0;
}
EXPORT int ibv_get_async_event(ibv_context* /*context*/, ibv_async_event* /*out*/) {
  errno = EAGAIN;
  return -1;
}
EXPORT void ibv_ack_async_event(ibv_async_event* /*event*/) {}
EXPORT ibv_pd* ibv_alloc_pd(ibv_context* context) {
  auto* pd = new ibv_pd{};
  pd->context = context;
  return pd;
}
EXPORT int ibv_dealloc_pd(ibv_pd* pd) {
  delete pd;
  return 0;
}
EXPORT ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, std::size_t length, int /*access*/) {
  auto* mr = new ibv_mr{};
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = address;
  mr->length = length;
  mr->lkey = mr->rkey = next_number();
  return mr;
}
EXPORT ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, std::size_t length, std::uint64_t /*iova*/,
                                unsigned /*access*/) {
  return ibv_reg_mr(pd, address, length, 0);
}
EXPORT int ibv_dereg_mr(ibv_mr* mr) {
  delete mr;
  return 0;
}
EXPORT ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  auto* channel = new ibv_comp_channel{};
  channel->context = context;
  channel->fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return channel;
}
EXPORT int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  ::close(channel->fd);
  delete channel;
  return 0;
}
EXPORT int ibv_get_cq_event(ibv_comp_channel* /*channel*/, ibv_cq** /*cq*/, void** /*user*/) {
  errno = EAGAIN;
  return -1;
}
EXPORT void ibv_ack_cq_events(ibv_cq* /*cq*/, unsigned /*count*/) {}
EXPORT ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* user, ibv_comp_channel* channel,
                             int /*vector*/) {
  auto* queue = new Queue;
  queue->cq.context = context;
  queue->cq.channel = channel;
  queue->cq.cq_context = user;
  queue->cq.cqe = entries;
  return &queue->cq;
}
EXPORT int ibv_destroy_cq(ibv_cq* cq) {
  delete Queue::of(cq);
  return 0;
}
EXPORT ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* /*attributes*/) {
  auto* srq = new ibv_srq{};
  srq->context = pd->context;
  srq->pd = pd;
  return srq;
}
EXPORT int ibv_destroy_srq(ibv_srq* srq) {
  delete srq;
  return 0;
}
EXPORT ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  init->cap.max_inline_data = most_inline;
  return make_queue_pair(pd->context, pd, init->send_cq, init->recv_cq, init->qp_type);
}
EXPORT ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) { return reinterpret_cast<ibv_qp_ex*>(qp); }
EXPORT int ibv_modify_qp(ibv_qp* /*qp*/, ibv_qp_attr* /*attributes*/, int /*mask*/) { return 0; }
EXPORT int ibv_query_qp(ibv_qp* /*qp*/, ibv_qp_attr* /*attributes*/, int /*mask*/, ibv_qp_init_attr* init) {
  init->cap.max_inline_data = most_inline;
  return 0;
}
EXPORT int ibv_destroy_qp(ibv_qp* qp) {
  delete reinterpret_cast<ibv_qp_ex*>(qp);
  return 0;
}
}
