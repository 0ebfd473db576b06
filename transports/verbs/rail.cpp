#include "transports/verbs/rail.h"

#include <algorithm>
#include <cstring>

#include "runtime/process.h"
#include "transports/endpoint_base.h"
#include "transports/verbs/choices.h"

namespace cenote::transport::verbs {
namespace {

constexpr std::uint8_t receiver_not_ready_timer = 12;  // 0.64 ms
constexpr std::uint8_t retry_for_ever = 7;
constexpr std::uint8_t hop_limit = 64;
constexpr std::uint32_t psn_mask = 0xffffff;

}  // namespace

Result<std::unique_ptr<Rail>> Rail::create(VerbsEndpoint& owner, Nic& nic, std::size_t nic_index,
                                           std::uint32_t id, const VerbsOptions& options) {
  std::unique_ptr<Rail> rail(new Rail(owner, nic, nic_index, id));
  CENOTE_TRY(rail->make_queue_pair(options));
  nic.add(rail->queue_pair(), rail.get());
  return rail;
}

Rail::~Rail() {
  nic_.send_room += static_cast<std::uint32_t>(sent_.size());
  if (qp_) nic_.remove(queue_pair());
}

Result<void> Rail::make_queue_pair(const VerbsOptions& options) {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = nic_.cq.get();
  init.srq = nic_.srq.get();
  init.qp_type = IBV_QPT_RC;
  init.cap.max_send_wr = nic_.max_depth;
  init.cap.max_send_sge = 1;
  int number = 0;
  // A card refuses more inline data than it has; how much that is it says nowhere.
  for (const std::uint32_t inline_data : {220U, 92U, 28U, 0U}) {
    init.cap.max_inline_data = inline_data;
    qp_ = {nic_.api.create_qp(nic_.pd.get(), &init), nic_.api.destroy_qp};
    if (qp_) break;
    number = errno;
    if (number != EINVAL) break;
  }
  if (!qp_) {
    Error error = cenote::system_error("make a queue pair", number).on(nic_.port.name);
    if (number == ENOMEM) error.code = ErrorCode::resource_exhausted;
    return fail(std::move(error));
  }
  most_ = nic_.max_depth - std::min(2U, nic_.max_depth - 1);
  sent_.reserve(nic_.max_depth);
  max_inline_ = init.cap.max_inline_data;
  CENOTE_TRY(random_bytes(std::as_writable_bytes(std::span(&packet_sequence_, 1))));
  packet_sequence_ &= psn_mask;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = options.pkey_index;
  attributes.port_num = nic_.port_number;
  attributes.qp_access_flags =
      IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | (nic_.port.atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0);
  return modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
}

Result<void> Rail::modify(ibv_qp_attr& attributes, int mask, const char* step) const {
  if (const int number = nic_.api.modify_qp(qp_.get(), &attributes, mask); number != 0)
    return fail(
        cenote::system_error(std::string("bring the queue pair to ") + step, number).on(nic_.port.name));
  return {};
}

Result<void> Rail::connect(const RailOffer& offer, const Port& theirs, const GidPair& gids,
                           const VerbsOptions& options) {
  gids_ = nic_.port.name + " " + gids.mine.text() + " > " + theirs.name + " " + gids.theirs.text();
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(path_mtu(nic_.port, theirs, options));
  attributes.dest_qp_num = offer.queue_pair;
  attributes.rq_psn = offer.packet_sequence & psn_mask;
  attributes.max_dest_rd_atomic = std::min(nic_.port.reads_served, theirs.reads_issued);
  attributes.min_rnr_timer = receiver_not_ready_timer;
  attributes.ah_attr.dlid = theirs.lid;
  // Each end checks that the other sends from the LID that it was told. A router's LID has no paths of ours.
  if (one_subnet(gids.mine, gids.theirs)) attributes.ah_attr.dlid += offer.path_bits & theirs.path_mask();
  attributes.ah_attr.src_path_bits = path_bits;
  attributes.ah_attr.sl = options.service_level;
  attributes.ah_attr.port_num = nic_.port_number;
  attributes.ah_attr.is_global = 1;
  std::memcpy(attributes.ah_attr.grh.dgid.raw, gids.theirs.raw.data(), gids.theirs.raw.size());
  attributes.ah_attr.grh.sgid_index = gids.mine.index;
  attributes.ah_attr.grh.hop_limit = hop_limit;
  attributes.ah_attr.grh.traffic_class = options.traffic_class;
  // Rails, and connections, take different UDP source ports, so that a fabric spreads them over its paths.
  attributes.ah_attr.grh.flow_label = (queue_pair() ^ (offer.queue_pair * 2654435761U)) & 0xfffff;
  CENOTE_TRY(modify(attributes,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                    "RTR"));
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = options.timeout;
  attributes.retry_cnt = options.retries;
  attributes.rnr_retry = retry_for_ever;
  attributes.sq_psn = packet_sequence_;
  attributes.max_rd_atomic = std::min(nic_.port.reads_issued, theirs.reads_served);
  return modify(attributes,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                    IBV_QP_MAX_QP_RD_ATOMIC,
                "RTS");
}

Result<void> Rail::queue(const Work& work, const Piece& piece, bool signaled) {
  ibv_sge& part = list_parts_[queued_];
  part.addr = reinterpret_cast<std::uintptr_t>(work.local);
  part.length = work.length;
  part.lkey = work.lkey;
  ibv_send_wr& request = list_[queued_];
  const std::uint32_t number = posted_ + 1;
  request.wr_id = mark_ | number;
  request.next = nullptr;
  request.sg_list = &part;
  request.num_sge = work.length != 0 ? 1 : 0;
  request.opcode = work.opcode;
  request.send_flags =
      (signaled ? unsigned{IBV_SEND_SIGNALED} : 0U) | (work.inlined ? unsigned{IBV_SEND_INLINE} : 0U);
  request.imm_data = htobe32(work.immediate);
  if (work.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    request.wr.atomic.remote_addr = work.remote;
    request.wr.atomic.compare_add = work.add;
    request.wr.atomic.swap = 0;
    request.wr.atomic.rkey = work.rkey;
  } else {
    request.wr.rdma.remote_addr = work.remote;
    request.wr.rdma.rkey = work.rkey;
  }
  if (queued_ != 0) list_[queued_ - 1].next = &request;
  if (signaled) ask(number);
  posted_ = number;
  --nic_.send_room;
  sent_.push(piece);
  if (++queued_ == list_.size()) return ring();
  return done();
}

Result<void> Rail::ring() {
  if (queued_ == 0) return done();
  const std::size_t count = std::exchange(queued_, 0);
  ibv_send_wr* bad = nullptr;
  const int failed = nic_.api.post_send(qp_.get(), list_.data(), &bad);
  if (failed == 0) [[likely]]
    return done();
  // From `bad` on nothing was posted.
  const std::size_t posted = bad == nullptr ? 0 : static_cast<std::size_t>(bad - list_.data());
  for (std::size_t i = posted; i < count; ++i) refused_pieces_.push_back(sent_[sent_.size() - (count - i)]);
  for (std::size_t i = posted; i < count; ++i) forget_latest();
  return fail(cenote::system_error("post to the card", failed).on(nic_.port.name));
}

Result<void> Rail::poke() {
  if (!needs_poke()) return done();
  CENOTE_TRY(queue(Work{}, Piece{}, true));
  return ring();
}

std::string Rail::text() const { return gids_.empty() ? nic_.port.name : gids_; }

}  // namespace cenote::transport::verbs
