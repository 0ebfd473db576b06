#include "transports/ucx/worker.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

namespace cenote::transport::ucx {
namespace {

/// What of UCX's configuration the transport depends on. Everything else is left to UCX's own environment.
/// Without its memory hooks UCX cannot know when memory is unmapped, so it may cache no registration. Nor
/// does it send from anybody's memory but its own: UCX 1.13 aborts the process when a TCP connection is lost
/// with such a message under way.
constexpr std::array<std::pair<const char*, const char*>, 4> settings{{
    {"ZCOPY_THRESH", "inf"},
    {"RCACHE_ENABLE", "n"},
    {"MEMTYPE_CACHE", "n"},
    {"MAX_EAGER_RAILS", "1"},
}};

/// Frames are as large as what UCX takes in one piece: it puts together what it had to cut by copying it once
/// more. Its own 8 KiB cost over shared memory a fetch from the other core too often, over TCP a system call.
/// UCX 1.13 gives the length of a piece of shared memory 16 bits.
constexpr const char *shared_memory_segment = "65472", *tcp_segment = "256K";
constexpr std::size_t shared_memory_chunk = 65'408, tcp_chunk = max_chunk, other_chunk = 60'000;
constexpr std::size_t around_a_chunk = sizeof(Frame) + 8;  // UCX's own header is 8
static_assert(shared_memory_chunk + around_a_chunk == 65'472 && tcp_chunk + around_a_chunk < 262'144);

/// What of UCX's transports a setting names, as far as this one treats them differently.
struct Named {
  bool shared_memory = false, tcp = false, others = false;
};

Named named(std::string_view tls) {
  Named found;
  while (!tls.empty()) {
    const auto end = std::min(tls.find(','), tls.size());
    const std::string_view name = tls.substr(0, end);
    tls.remove_prefix(std::min(end + 1, tls.size()));
    const std::string_view network = name.substr(0, 2);
    if (name == "posix" || name == "sysv" || name == "sm" || name == "shm" || name == "xpmem") {
      found.shared_memory = true;
    } else if (name == "tcp") {
      found.tcp = true;
    } else if (network == "rc" || network == "ud" || network == "dc" || network == "ib") {
      found.others = true;
    } else if (name != "self") {
      return {true, true, true};
    }
  }
  return found;
}

/// How UCX reads a Source.
constexpr ucp_generic_dt_ops_t source_calls{
    .start_pack = [](void*, const void* source, std::size_t) { return const_cast<void*>(source); },
    .start_unpack = [](void*, void*, std::size_t) -> void* { return nullptr; },
    .packed_size = [](void* source) { return static_cast<Source*>(source)->size; },
    .pack =
        [](void* source, std::size_t offset, void* to, std::size_t room) {
          const Source& from = *static_cast<Source*>(source);
          const std::size_t count = std::min(room, from.size - offset);
          std::memcpy(to, from.at + offset, count);
          return count;
        },
    .unpack = [](void*, std::size_t, const void*, std::size_t) { return UCS_ERR_UNSUPPORTED; },
    .finish = [](void*) {},
};

}  // namespace

void configure(const UcpApi& api, ucp_config_t* config, const std::string& tls) {
  // A UCX that does not know one of these has nothing that it would switch off.
  for (const auto& [name, value] : settings) (void)api.config_modify(config, name, value);
  // UCX complains of a setting of what is not used. Its shared memory fails an endpoint only when told to.
  const Named uses = named(tls);
  if (uses.shared_memory) {
    (void)api.config_modify(config, "MM_ERROR_HANDLING", "y");
    (void)api.config_modify(config, "MM_SEG_SIZE", shared_memory_segment);
    (void)api.config_modify(config, "MM_RX_BUFS_GROW", "80");  // its queue has 64
  }
  if (uses.tcp) {
    (void)api.config_modify(config, "TX_SEG_SIZE", tcp_segment);
    (void)api.config_modify(config, "RX_SEG_SIZE", tcp_segment);
  }
}

void Worker::close() {
  if (worker_ != nullptr) api_->worker_destroy(std::exchange(worker_, nullptr));
  if (context_ != nullptr) api_->cleanup(std::exchange(context_, nullptr));
  if (source_type_ != 0) api_->dt_destroy(std::exchange(source_type_, 0));
  kept_.clear();
}

Result<void> Worker::make_context(const std::string& tls) {
  const std::string stage = "start UCX over " + tls;
  ucp_config_t* config = nullptr;
  if (const auto status = api_->config_read(nullptr, nullptr, &config); status != UCS_OK)
    return fail(api_->error(status, stage));
  const std::unique_ptr<ucp_config_t, decltype(api_->config_release)> owned(config, api_->config_release);
  configure(*api_, config, tls);
  const Named uses = named(tls);
  chunk_ = uses.others || uses.tcp == uses.shared_memory ? other_chunk
           : uses.tcp                                    ? tcp_chunk
                                                         : shared_memory_chunk;
  if (const auto status = api_->config_modify(config, "TLS", tls.c_str()); status != UCS_OK)
    return fail(api_->error(status, stage));
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  const auto status = api_->init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  if (status == UCS_OK) return {};
  Error error = api_->error(status, stage);
  if (status == UCS_ERR_NO_DEVICE || status == UCS_ERR_UNSUPPORTED) error.code = ErrorCode::not_supported;
  error.remedy = "set ucx.tls to transports that `ucx_info -d` lists here, or to all";
  return fail(std::move(error));
}

Result<void> Worker::open(const std::string& tls, Handler handler, void* owner) {
  CENOTE_ASSIGN(api_, UcpApi::load());
  handler_ = handler;
  owner_ = owner;
  CENOTE_TRY(make_context(tls));
  const std::string stage = "start a UCX worker";
  if (const auto status = api_->dt_create_generic(&source_calls, nullptr, &source_type_); status != UCS_OK)
    return fail(api_->error(status, stage));
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // one thread at a time, but not for ever the same
  if (const auto status = api_->worker_create(context_, &params, &worker_); status != UCS_OK)
    return fail(api_->error(status, stage));
  ucp_am_handler_param_t messages{};
  messages.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                        UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  messages.id = message_id;
  messages.cb = &Worker::receive;
  messages.arg = this;
  messages.flags = UCP_AM_FLAG_WHOLE_MSG;
  if (const auto status = api_->worker_set_am_recv_handler(worker_, &messages); status != UCS_OK)
    return fail(api_->error(status, stage));
  if (const auto status = api_->worker_get_efd(worker_, &sleep_fd_); status != UCS_OK)
    return fail(api_->error(status, stage));
  ucp_address_t* packed = nullptr;
  std::size_t length = 0;
  if (const auto status = api_->worker_get_address(worker_, &packed, &length); status != UCS_OK)
    return fail(api_->error(status, stage));
  address_.resize(length);
  std::memcpy(address_.data(), packed, length);
  api_->worker_release_address(worker_, packed);
  return {};
}

// A rendezvous is refused: its sender waits for a read that only this side would start, and no honest peer
// offers one.
ucs_status_t Worker::receive(void* self, const void* header, std::size_t header_length, void* data,
                             std::size_t length, const ucp_am_recv_param_t* param) {
  const auto* worker = static_cast<Worker*>(self);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;
  worker->handler_(worker->owner_, {static_cast<const std::byte*>(header), header_length},
                   {static_cast<const std::byte*>(data), length});
  return UCS_OK;
}

}  // namespace cenote::transport::ucx
