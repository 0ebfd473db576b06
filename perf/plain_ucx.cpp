#include "perf/plain_ucx.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <vector>

#include "runtime/deadline.h"
#include "transports/ucx/frame.h"
#include "transports/ucx/ucp_api.h"
#include "transports/ucx/worker.h"

namespace cenote::perf {
namespace {

using transport::ucx::Frame;
using transport::ucx::UcpApi;

constexpr unsigned message_id = 3;
constexpr int window = 32;  // messages under way, as in our transport
constexpr auto patience = std::chrono::seconds(60);

/// One of the two processes.
class Node {
 public:
  explicit Node(std::size_t bytes) : memory_(bytes) {}
  ~Node() {
    if (worker_ != nullptr) api_->worker_destroy(worker_);
    if (context_ != nullptr) api_->cleanup(context_);
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  Result<void> open(const std::string& tls, PlainUcx settings) {
    CENOTE_ASSIGN(api_, UcpApi::load());
    ucp_config_t* config = nullptr;
    CENOTE_TRY(check(api_->config_read(nullptr, nullptr, &config)));
    if (settings == PlainUcx::with_our_settings) transport::ucx::configure(*api_, config, tls);
    auto status = api_->config_modify(config, "TLS", tls.c_str());
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM;
    if (status == UCS_OK)
      status = api_->init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
    api_->config_release(config);
    CENOTE_TRY(check(status));
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    CENOTE_TRY(check(api_->worker_create(context_, &worker, &worker_)));
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
    handler.id = message_id;
    handler.cb = &Node::came;
    handler.arg = this;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    return check(api_->worker_set_am_recv_handler(worker_, &handler));
  }

  Result<void> connect(int fd) {
    ucp_address_t* mine = nullptr;
    std::size_t size = 0, their_size = 0;
    CENOTE_TRY(check(api_->worker_get_address(worker_, &mine, &size)));
    bool good = ::send(fd, &size, sizeof size, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof size) &&
                ::send(fd, mine, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
    api_->worker_release_address(worker_, mine);
    good = good &&
           ::recv(fd, &their_size, sizeof their_size, MSG_WAITALL) == static_cast<ssize_t>(sizeof their_size);
    std::vector<std::byte> theirs(good ? their_size : 1);
    good = good && ::recv(fd, theirs.data(), their_size, MSG_WAITALL) == static_cast<ssize_t>(their_size);
    if (!good) return fail(ErrorCode::peer_failed, "measure bare UCX", "the other process ended");
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = static_cast<const ucp_address_t*>(static_cast<const void*>(theirs.data()));
    return check(api_->ep_create(worker_, &params, &endpoint_));
  }

  Result<void> send(std::span<const std::byte> data) {
    while (under_way_ >= window) (void)api_->worker_progress(worker_);
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = &Node::sent;
    param.user_data = this;
    auto* request =
        api_->am_send_nbx(endpoint_, message_id, &header_, sizeof header_, data.data(), data.size(), &param);
    if (UCS_PTR_IS_ERR(request)) return check(UCS_PTR_STATUS(request));
    if (request != nullptr) ++under_way_;
    return {};
  }
  /// Until so many messages have come in all.
  Result<void> wait(std::uint64_t count) {
    const Deadline deadline = Deadline::in(patience);
    for (std::uint64_t turns = 1; came_ < count; ++turns) {
      (void)api_->worker_progress(worker_);
      if (turns % 1'000'000 == 0 && deadline.passed())
        return fail(ErrorCode::deadline_exceeded, "measure bare UCX", "the other process sends nothing");
    }
    return {};
  }
  void drain() {
    while (under_way_ != 0) (void)api_->worker_progress(worker_);
  }
  /// For a peer that still needs this side's progress.
  void linger(const std::function<bool()>& done) {
    while (!done()) (void)api_->worker_progress(worker_);
  }

 private:
  Result<void> check(ucs_status_t status) const {
    if (status == UCS_OK) return {};
    return fail(api_->error(status, "measure bare UCX"));
  }
  static void sent(void* request, ucs_status_t /*status*/, void* self) {
    auto* node = static_cast<Node*>(self);
    --node->under_way_;
    node->api_->request_free(request);
  }
  static void fetched(void* request, ucs_status_t /*status*/, std::size_t /*length*/, void* self) {
    auto* node = static_cast<Node*>(self);
    ++node->came_;
    node->api_->request_free(request);
  }
  static ucs_status_t came(void* self, const void* header, std::size_t /*header_length*/, void* data,
                           std::size_t length, const ucp_am_recv_param_t* param) {
    auto* node = static_cast<Node*>(self);
    Frame frame;
    std::memcpy(&frame, header, sizeof frame);
    std::byte* to = node->memory_.data() + frame.offset;
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
      std::memcpy(to, data, length);
      ++node->came_;
      return UCS_OK;
    }
    ucp_request_param_t fetch{};
    fetch.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    fetch.cb.recv_am = &Node::fetched;
    fetch.user_data = node;
    if (node->api_->am_recv_data_nbx(node->worker_, data, to, length, &fetch) == nullptr) ++node->came_;
    return UCS_OK;
  }

  const UcpApi* api_ = nullptr;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  Bytes memory_;
  Frame header_;
  int under_way_ = 0;
  std::uint64_t came_ = 0;
};

Result<double> measure(const Processors& processors, const std::string& tls, PlainUcx settings,
                       std::size_t bytes, const std::function<Result<double>(bool, Node&)>& work) {
  return in_two_processes(processors, [&](bool first, int socket) -> Result<double> {
    Node node(bytes);
    CENOTE_TRY(node.open(tls, settings));
    CENOTE_TRY(node.connect(socket));
    auto result = work(first, node);
    if (!result) return result;
    char token = 0;
    (void)!::send(socket, &token, 1, MSG_NOSIGNAL);
    node.linger([&] { return ::recv(socket, &token, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN; });
    return result;
  });
}

}  // namespace

Result<double> plain_ucx_latency(const Processors& processors, const std::string& tls, PlainUcx settings,
                                 int iterations) {
  return measure(processors, tls, settings, 8, [&](bool first, Node& node) -> Result<double> {
    auto start = Clock::now();
    std::uint64_t round = 0;
    for (int i = -iterations / 10; i < iterations; ++i) {
      if (i == 0) start = Clock::now();
      ++round;
      if (!first) CENOTE_TRY(node.wait(round));
      CENOTE_TRY(node.send(std::as_bytes(std::span(&round, 1))));
      node.drain();
      if (first) CENOTE_TRY(node.wait(round));
    }
    return std::chrono::duration<double>(Clock::now() - start).count() / iterations / 2 * 1e6;
  });
}

Result<double> plain_ucx_bandwidth(const Processors& processors, const std::string& tls, PlainUcx settings,
                                   std::size_t bytes, int count) {
  return measure(processors, tls, settings, bytes, [&](bool first, Node& node) -> Result<double> {
    const Bytes data(bytes, std::byte{7});
    auto start = Clock::now();
    std::uint64_t expected = 0;
    for (const int now : {count / 10, count}) {
      start = Clock::now();
      if (first) {
        for (int i = 0; i < now; ++i) CENOTE_TRY(node.send(data));
        CENOTE_TRY(node.wait(++expected));
      } else {
        CENOTE_TRY(node.wait(expected += static_cast<std::uint64_t>(now)));
        CENOTE_TRY(node.send(std::span(data).first(8)));
        node.drain();
      }
    }
    return static_cast<double>(bytes) * count / std::chrono::duration<double>(Clock::now() - start).count() /
           1e9;
  });
}

}  // namespace cenote::perf
