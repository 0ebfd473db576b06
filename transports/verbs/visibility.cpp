#include "transports/verbs/visibility.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transports/verbs/verbs_core.h"

namespace cenote::transport::verbs {
namespace {

constexpr std::uint32_t reads_under_way = 16;
constexpr std::uint8_t hop_limit = 1;

tl::unexpected<Error> refused(const Nic& nic, std::string stage, int number) {
  return fail(cenote::system_error(std::move(stage), number).on(nic.port.name));
}

}  // namespace

// With what is under way on them; they are made anew when they are needed.
void Visibility::drop_loops() {
  for (const Loop& loop : loops_) {
    loop.nic->send_room += loop.posted - loop.finished;
    core_.give_rail_id(loop.id);
  }
  loops_.clear();
  reads_ = 0;
}

void Visibility::abandon() {
  drop_loops();
  wanted_ = false;
  done_ = begun_;
}

Result<void> Visibility::add(const Registered& region, const MemoryDescription& memory) {
  if (!memory.flush_before_read) return {};
  if (!memory.device->flush) CENOTE_TRY(make_loops());
  auto device = std::find_if(devices_.begin(), devices_.end(),
                             [&](const Device& known) { return known.access == memory.device; });
  if (device == devices_.end()) device = devices_.insert(device, {memory.device, memory.home, {}});
  device->regions.push_back(&region);
  return {};
}

void Visibility::remove(const Registered& region) {
  if (reads_ != 0) lost_ = begun_;
  for (Device& device : devices_) std::erase(device.regions, &region);
  std::erase_if(devices_, [](const Device& device) { return device.regions.empty(); });
}

Result<void> Visibility::proceed() {
  if (!wanted_ || begun_ != done_) return {};
  wanted_ = false;
  ++begun_;
  for (const Device& device : devices_)
    CENOTE_TRY(device.access->flush ? device.access->flush() : read_back(device));
  if (reads_ == 0) done_ = begun_;
  return {};
}

Result<void> Visibility::returned(const ibv_wc& completion) {
  const auto loop = std::find_if(loops_.begin(), loops_.end(), [&](const Loop& known) {
    return known.id == static_cast<std::uint32_t>(completion.wr_id >> 32);
  });
  if (loop == loops_.end()) return {};
  const std::uint32_t more = static_cast<std::uint32_t>(completion.wr_id) - loop->finished;
  loop->nic->send_room += more;
  loop->finished += more;
  if (completion.status != IBV_WC_SUCCESS && lost_ == begun_) {
    drop_loops();
    wanted_ = true;
    begun_ = done_;  // the round begins anew, without that region
    return {};
  }
  if (completion.status != IBV_WC_SUCCESS)
    return fail(
        Error{ErrorCode::system_error, "read back what was written to GPU memory", explain(completion.status)}
            .on(loop->nic->port.name));
  reads_ -= more;
  if (reads_ == 0) done_ = begun_;
  return {};
}

Result<void> Visibility::read_back(const Device& device) {
  CENOTE_TRY(make_loops());
  const Registered& region = *device.regions.front();
  for (std::size_t i = 0; i < loops_.size(); ++i) {
    Loop& loop = loops_[i];
    ibv_sge part{reinterpret_cast<std::uintptr_t>(&word_), 1, word_memory_->regions[i]->lkey};
    ibv_send_wr read{};
    read.wr_id = (std::uint64_t{loop.id} << 32) | (loop.posted + 1);
    read.sg_list = &part;
    read.num_sge = 1;
    read.opcode = IBV_WR_RDMA_READ;
    read.send_flags = IBV_SEND_SIGNALED;
    read.wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(region.data);
    read.wr.rdma.rkey = region.regions[i]->rkey;
    ibv_send_wr* bad = nullptr;
    if (const int number = loop.nic->api.post_send(loop.queue_pair.get(), &read, &bad); number != 0)
      return refused(*loop.nic, "read back what was written to GPU memory", number);
    --loop.nic->send_room;
    ++loop.posted;
    ++reads_;
  }
  return {};
}

Result<void> Visibility::make_loops() {
  if (!loops_.empty()) return {};
  std::vector<Loop> made;
  CENOTE_ASSIGN(word_memory_, core_.registrations->make(&word_, sizeof word_, IBV_ACCESS_LOCAL_WRITE));
  for (const auto& nic : core_.nics) {
    Loop loop;
    loop.nic = nic.get();
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = nic->cq.get();
    init.srq = nic->srq.get();
    init.qp_type = IBV_QPT_RC;
    init.cap.max_send_wr = reads_under_way;
    init.cap.max_send_sge = 1;
    loop.queue_pair = {nic->api.create_qp(nic->pd.get(), &init), nic->api.destroy_qp};
    if (!loop.queue_pair) return refused(*nic, "make a queue pair to read back by", errno);
    CENOTE_TRY(connect(loop));
    made.push_back(std::move(loop));
  }
  for (Loop& loop : made) {
    CENOTE_ASSIGN(loop.id, core_.take_rail_id());
  }
  loops_ = std::move(made);
  return {};
}

Result<void> Visibility::connect(const Loop& loop) const {
  const Nic& nic = *loop.nic;
  const auto gids = gid_candidates(nic.port, nic.port);
  if (gids.empty()) return refused(nic, "connect a queue pair to its own port", EADDRNOTAVAIL);
  const auto step = [&](ibv_qp_attr& attributes, int mask) -> Result<void> {
    if (const int number = nic.api.modify_qp(loop.queue_pair.get(), &attributes, mask); number != 0)
      return refused(nic, "connect a queue pair to its own port", number);
    return {};
  };
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = core_.options.pkey_index;
  attributes.port_num = nic.port_number;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_READ;
  CENOTE_TRY(step(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(nic.port.mtu);
  attributes.dest_qp_num = loop.queue_pair->qp_num;
  attributes.max_dest_rd_atomic = std::min(nic.port.reads_served, nic.port.reads_issued);
  attributes.ah_attr.dlid = nic.port.lid;
  attributes.ah_attr.sl = core_.options.service_level;
  attributes.ah_attr.port_num = nic.port_number;
  attributes.ah_attr.is_global = 1;
  std::memcpy(attributes.ah_attr.grh.dgid.raw, gids.front().theirs.raw.data(),
              gids.front().theirs.raw.size());
  attributes.ah_attr.grh.sgid_index = gids.front().mine.index;
  attributes.ah_attr.grh.hop_limit = hop_limit;
  CENOTE_TRY(step(attributes, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = core_.options.timeout;
  attributes.retry_cnt = core_.options.retries;
  attributes.max_rd_atomic = attributes.max_dest_rd_atomic;
  return step(attributes, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

}  // namespace cenote::transport::verbs
