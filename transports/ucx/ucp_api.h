// UcpApi: the functions of libucp.so.0 that the transport calls, found at run time. Everything of UCX that is
// a process's own affair stays off: its signal handlers are taken back, and no function of the C library is
// patched.
#pragma once

#include <ucp/api/ucp.h>

#include <string>

#include "runtime/result.h"

namespace cenote::transport::ucx {

struct UcpApi {
  decltype(&::ucp_config_read) config_read = nullptr;
  decltype(&::ucp_config_modify) config_modify = nullptr;
  decltype(&::ucp_config_release) config_release = nullptr;
  decltype(&::ucp_init_version) init_version = nullptr;
  decltype(&::ucp_cleanup) cleanup = nullptr;
  decltype(&::ucp_worker_create) worker_create = nullptr;
  decltype(&::ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&::ucp_worker_get_address) worker_get_address = nullptr;
  decltype(&::ucp_worker_release_address) worker_release_address = nullptr;
  decltype(&::ucp_worker_get_efd) worker_get_efd = nullptr;
  decltype(&::ucp_worker_arm) worker_arm = nullptr;
  decltype(&::ucp_worker_progress) worker_progress = nullptr;
  decltype(&::ucp_worker_set_am_recv_handler) worker_set_am_recv_handler = nullptr;
  decltype(&::ucp_ep_create) ep_create = nullptr;
  decltype(&::ucp_ep_close_nbx) ep_close_nbx = nullptr;
  decltype(&::ucp_ep_flush_nbx) ep_flush_nbx = nullptr;
  decltype(&::ucp_am_send_nbx) am_send_nbx = nullptr;
  decltype(&::ucp_am_recv_data_nbx) am_recv_data_nbx = nullptr;
  decltype(&::ucp_dt_create_generic) dt_create_generic = nullptr;
  decltype(&::ucp_dt_destroy) dt_destroy = nullptr;
  decltype(&::ucp_request_check_status) request_check_status = nullptr;
  decltype(&::ucp_request_free) request_free = nullptr;
  decltype(&::ucs_status_string) status_string = nullptr;

  /// The library, opened once for the process and never closed. Errors: not_supported (with the Debian
  /// package that brings it).
  static Result<const UcpApi*> load();
  /// Opens that file instead; what load() does, for tests.
  static Result<UcpApi> open(const char* file);

  [[nodiscard]] Error error(ucs_status_t status, std::string stage) const;
};

}  // namespace cenote::transport::ucx
