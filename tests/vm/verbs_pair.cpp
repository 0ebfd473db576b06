#include "tests/vm/verbs_pair.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace cenote::test::vm {
namespace {

constexpr int gid_index = 1;  // IPv4; index 0 is the link-local IPv6 address
constexpr std::uint8_t port = 1;

template <typename T>
T* made(T* object, const char* call) {
  if (object == nullptr) throw std::runtime_error(std::string(call) + ": " + std::strerror(errno));
  return object;
}

void done(int error, const char* call) {
  if (error != 0) throw std::runtime_error(std::string(call) + ": " + std::strerror(error));
}

}  // namespace

Device open_device(const std::string& name) {
  int count = 0;
  const std::unique_ptr<ibv_device*[], Destroyer<ibv_free_device_list>> list(
      made(::ibv_get_device_list(&count), "ibv_get_device_list"));
  for (int i = 0; i < count; ++i)
    if (name == ::ibv_get_device_name(list[static_cast<std::size_t>(i)]))
      return Device(made(::ibv_open_device(list[static_cast<std::size_t>(i)]), "ibv_open_device"));
  throw std::runtime_error("no RDMA device " + name);
}

End::End(const std::string& device, std::size_t size) : memory(size), device_(open_device(device)) {
  domain_.reset(made(::ibv_alloc_pd(device_.get()), "ibv_alloc_pd"));
  completions_.reset(made(::ibv_create_cq(device_.get(), 256, nullptr, nullptr, 0), "ibv_create_cq"));
  const int everything =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  region_.reset(made(::ibv_reg_mr(domain_.get(), memory.data(), memory.size(), everything), "ibv_reg_mr"));
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = completions_.get();
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {128, 16, 1, 1, 0};
  connection_.reset(made(::ibv_create_qp(domain_.get(), &wanted), "ibv_create_qp"));
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = port;
  init.qp_access_flags = static_cast<unsigned>(everything);
  done(::ibv_modify_qp(connection_.get(), &init,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
       "ibv_modify_qp to INIT");
  const int flags = ::fcntl(device_->async_fd, F_GETFL);
  ::fcntl(device_->async_fd, F_SETFL, flags | O_NONBLOCK);
}

Card End::card() const {
  Card card;
  card.queue_pair = connection_->qp_num;
  card.key = region_->rkey;
  card.address = reinterpret_cast<std::uintptr_t>(memory.data());
  done(::ibv_query_gid(device_.get(), port, gid_index, &card.gid), "ibv_query_gid");
  return card;
}

void End::connect(const Card& peer, Patience patience) {
  ibv_recv_wr receive{};
  ibv_recv_wr* refused = nullptr;
  done(::ibv_post_recv(connection_.get(), &receive, &refused), "ibv_post_recv");

  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = IBV_MTU_1024;
  to.dest_qp_num = peer.queue_pair;
  to.max_dest_rd_atomic = 1;
  to.min_rnr_timer = 12;
  to.ah_attr.is_global = 1;
  to.ah_attr.port_num = port;
  to.ah_attr.grh.dgid = peer.gid;
  to.ah_attr.grh.sgid_index = gid_index;
  to.ah_attr.grh.hop_limit = 64;
  done(::ibv_modify_qp(connection_.get(), &to,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
       "ibv_modify_qp to RTR");
  to.qp_state = IBV_QPS_RTS;
  to.timeout = patience.timeout;
  to.retry_cnt = patience.retries;
  to.rnr_retry = 7;
  to.max_rd_atomic = 1;
  done(::ibv_modify_qp(connection_.get(), &to,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC),
       "ibv_modify_qp to RTS");
}

void End::post(ibv_wr_opcode opcode, const Card& peer, std::size_t length, std::uint32_t key) {
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(memory.data()), static_cast<std::uint32_t>(length),
                region_->lkey};
  ibv_send_wr work{};
  work.opcode = opcode;
  work.send_flags = IBV_SEND_SIGNALED;
  work.sg_list = &piece;
  work.num_sge = 1;
  work.imm_data = 0x1234;
  if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    work.wr.atomic.remote_addr = peer.address;
    work.wr.atomic.rkey = key;
    work.wr.atomic.compare_add = 5;
  } else {
    work.wr.rdma.remote_addr = peer.address;
    work.wr.rdma.rkey = key;
  }
  ibv_send_wr* refused = nullptr;
  done(::ibv_post_send(connection_.get(), &work, &refused), "ibv_post_send");
}

ibv_wc End::completion(Deadline deadline) {
  ibv_wc found{};
  for (;;) {
    const int n = ::ibv_poll_cq(completions_.get(), 1, &found);
    if (n == 1) return found;
    if (n < 0) throw std::runtime_error("ibv_poll_cq failed");
    if (deadline.passed()) throw std::runtime_error("no completion in time");
    ::sched_yield();
  }
}

ibv_event_type End::event(Deadline deadline) {
  pollfd watched{device_->async_fd, POLLIN, 0};
  if (::poll(&watched, 1, deadline.poll_ms()) != 1) throw std::runtime_error("no event in time");
  ibv_async_event found{};
  done(::ibv_get_async_event(device_.get(), &found) == 0 ? 0 : errno, "ibv_get_async_event");
  ::ibv_ack_async_event(&found);
  return found.event_type;
}

ibv_port_state End::port_state() const {
  ibv_port_attr attributes{};
  done(ibv_query_port(device_.get(), port, &attributes), "ibv_query_port");
  return attributes.state;
}

ibv_qp_state End::state() const {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  done(::ibv_query_qp(connection_.get(), &attributes, IBV_QP_STATE, &initial), "ibv_query_qp");
  return attributes.qp_state;
}

std::uint64_t End::counter(const std::string& name) const {
  std::ifstream file(std::string(device_->device->ibdev_path) + "/ports/1/hw_counters/" + name);
  std::uint64_t value = 0;
  if (!(file >> value)) throw std::runtime_error("no counter " + name);
  return value;
}

Pair::Pair(const std::string& left_device, const std::string& right_device, std::size_t size,
           Patience patience)
    : left(left_device, size), right(right_device, size) {
  left.connect(right.card(), patience);
  right.connect(left.card(), patience);
}

}  // namespace cenote::test::vm
