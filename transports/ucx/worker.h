// Worker: one UCP context with its one worker: what a transport progresses and sleeps on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/bytes.h"
#include "transports/ucx/frame.h"
#include "transports/ucx/ucp_api.h"

namespace cenote::transport::ucx {

/// Where the bytes of a message lie. UCX asks here each time it copies some of them into a buffer of its own,
/// so they may move to another place while it has the message.
struct Source {
  const std::byte* at = nullptr;
  std::size_t size = 0;
};

/// What of UCX's configuration the transport depends on, but for the transports `tls` themselves.
void configure(const UcpApi& api, ucp_config_t* config, const std::string& tls);

class Worker {
 public:
  /// Called for every active message, within progress().
  using Handler = void (*)(void* owner, std::span<const std::byte> header, std::span<const std::byte> data);
  static constexpr unsigned message_id = 7;

  Worker() = default;
  ~Worker() { close(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  /// `tls`: UCX_TLS. Errors: not_supported, system_error.
  Result<void> open(const std::string& tls, Handler handler, void* owner);

  /// Everything that came from it is gone by then.
  void close();

  [[nodiscard]] const UcpApi& api() const { return *api_; }
  [[nodiscard]] ucp_worker_h get() const { return worker_; }
  /// Where a peer's Link reaches this worker; packed by UCX, some hundred bytes.
  [[nodiscard]] const Bytes& address() const { return address_; }
  /// Bytes of one message that UCX takes in one piece.
  [[nodiscard]] std::size_t chunk() const { return chunk_; }
  /// The datatype of a buffer that is a Source.
  [[nodiscard]] ucp_datatype_t source_type() const { return source_type_; }
  [[nodiscard]] int sleep_fd() const { return sleep_fd_; }
  /// True when anything happened.
  bool progress() { return worker_ != nullptr && api_->worker_progress(worker_) != 0; }
  /// False: progress instead of sleeping.
  bool arm() { return worker_ == nullptr || api_->worker_arm(worker_) == UCS_OK; }
  /// Keeps what UCX may still read until the worker is gone.
  void keep(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }

 private:
  Result<void> make_context(const std::string& tls);
  static ucs_status_t receive(void* self, const void* header, std::size_t header_length, void* data,
                              std::size_t length, const ucp_am_recv_param_t* param);

  const UcpApi* api_ = nullptr;
  ucp_datatype_t source_type_ = 0;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  Bytes address_;
  int sleep_fd_ = -1;
  std::size_t chunk_ = 0;
  Handler handler_ = nullptr;
  void* owner_ = nullptr;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace cenote::transport::ucx
