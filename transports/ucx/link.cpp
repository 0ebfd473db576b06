#include "transports/ucx/link.h"

#include <algorithm>
#include <utility>

namespace cenote::transport::ucx {
namespace {

/// UCX calls a frame sent that lies in its own buffer because the kernel did not take all of it. That is only
/// ever the last one, and only where as much as this is on its way and may fill a socket. Its flush would
/// tell, but over TCP it waits for the peer, and UCX 1.13 aborts the process when the peer dies meanwhile.
constexpr std::uint64_t surely_left = 16'384;
constexpr int close_turns = 10'000;

}  // namespace

Link::Link(Worker& worker) : worker_(worker), slots_(std::make_shared<Slots>()) {
  for (Slot& slot : *slots_) {
    slot.link = this;
    slot.api = &worker.api();
  }
}

Result<std::shared_ptr<Link>> Link::open(Worker& worker, std::span<const std::byte> peer_address) {
  if (worker.get() == nullptr)
    return fail(ErrorCode::system_error, "connect over UCX", "UCX could not be started again");
  std::shared_ptr<Link> link(new Link(worker));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = static_cast<const ucp_address_t*>(static_cast<const void*>(peer_address.data()));
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &Link::failed;
  params.err_handler.arg = link.get();
  const auto status = worker.api().ep_create(worker.get(), &params, &link->ep_);
  if (status != UCS_OK) {
    link->ep_ = nullptr;
    return fail(worker.api().error(status, "connect over UCX"));
  }
  return link;
}

void Link::sent(void* request, ucs_status_t status, void* slot) {
  auto* done = static_cast<Slot*>(slot);
  done->busy = done->referring = false;
  done->api->request_free(request);
  if (Link* link = done->link) {
    if (status != UCS_OK && !link->fault_) link->fault_ = status;
    link->release();
  }
}

void Link::failed(void* self, ucp_ep_h /*ep*/, ucs_status_t status) {
  auto* link = static_cast<Link*>(self);
  if (!link->fault_) link->fault_ = status;
}

void Link::release() {
  while (head_ != tail_ && !slot(head_).busy) ++head_;
}

std::uint64_t Link::post_short(const Frame& frame, std::span<const std::byte> data) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  const auto* result = worker_.api().am_send_nbx(ep_, Worker::message_id, &frame, sizeof frame, data.data(),
                                                 data.size(), &param);
  return result == nullptr ? ++posted_ : 0;
}

std::uint64_t Link::post(const Frame& frame, std::span<const std::byte> data, Payload payload) {
  if (ep_ == nullptr || fault_) return 0;
  if (head_ == tail_ && data.size() <= short_limit) {
    if (const auto number = post_short(frame, data); number != 0) {
      unconfirmed_ += sizeof frame + data.size();
      return number;
    }
  }
  if (tail_ - head_ == slot_count) return 0;
  Slot& used = slot(tail_);
  used.frame = frame;
  if (payload == Payload::copied && !data.empty()) {
    used.copy.assign(data.begin(), data.end());
    data = used.copy;
  }
  used.source = {data.data(), data.size()};
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &Link::sent;
  param.user_data = &used;
  param.datatype = worker_.source_type();
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  used.number = posted_ + 1;
  used.busy = true;
  used.referring = payload == Payload::referred;
  ++tail_;
  auto* result = worker_.api().am_send_nbx(ep_, Worker::message_id, &used.frame, sizeof used.frame,
                                           &used.source, 1, &param);
  if (UCS_PTR_IS_ERR(result)) {
    --tail_;
    used.busy = used.referring = false;
    fault_ = UCS_PTR_STATUS(result);
    return 0;
  }
  unconfirmed_ += sizeof frame + data.size();
  ++posted_;
  if (result == nullptr) {
    used.busy = used.referring = false;
    release();
  }
  return posted_;
}

std::uint64_t Link::left() const {
  const std::uint64_t done = accepted();
  if (done == confirmed_ || (done == posted_ && unconfirmed_ <= surely_left)) return done;
  return done == 0 ? 0 : done - 1;
}

bool Link::in_doubt() const {
  return head_ == tail_ && unconfirmed_ > surely_left && !fault_ && ep_ != nullptr;
}

void Link::confirm(std::uint64_t number) {
  confirmed_ = std::max(confirmed_, number);
  if (number == posted_) unconfirmed_ = 0;
}

void Link::take_back(std::uint64_t session) {
  for (Slot& slot : *slots_) {
    if (!slot.busy || !slot.referring || slot.frame.session != session) continue;
    slot.copy.assign(slot.source.at, slot.source.at + slot.source.size);
    slot.source.at = slot.copy.data();
    slot.referring = false;
  }
}

void Link::close() {
  if (ep_ == nullptr) return;
  const UcpApi& api = worker_.api();
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  auto* closing = api.ep_close_nbx(std::exchange(ep_, nullptr), &param);
  for (int i = 0;
       i < close_turns && UCS_PTR_IS_PTR(closing) && api.request_check_status(closing) == UCS_INPROGRESS; ++i)
    (void)worker_.progress();
  if (UCS_PTR_IS_PTR(closing)) api.request_free(closing);
  abandon();
}

void Link::abandon() {
  ep_ = nullptr;
  if (!fault_) fault_ = UCS_ERR_CANCELED;
  for (Slot& slot : *slots_) slot.link = nullptr;
  if (std::any_of(slots_->begin(), slots_->end(), [](const Slot& s) { return s.busy; })) worker_.keep(slots_);
}

}  // namespace cenote::transport::ucx
