#include "transports/ucx/ucp_api.h"

#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace cenote::transport::ucx {
namespace {

constexpr const char* library = "libucp.so.0";

/// Puts the handlers of these signals back to what they were. libucs installs handlers of its own as it is
/// loaded (UCX_HANDLE_ERRORS, UCX_DEBUG_SIGNO): a library that prints and waits at a crash of its host, and
/// swallows SIGHUP.
class KeptSignals {
 public:
  KeptSignals() {
    for (std::size_t i = 0; i < numbers.size(); ++i) (void)::sigaction(numbers.at(i), nullptr, &kept_.at(i));
  }
  ~KeptSignals() {
    for (std::size_t i = 0; i < numbers.size(); ++i) (void)::sigaction(numbers.at(i), &kept_.at(i), nullptr);
  }
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;

 private:
  static constexpr std::array numbers{SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGHUP, SIGALRM};
  std::array<struct sigaction, numbers.size()> kept_{};
};

Error missing(std::string cause) {
  return Error{ErrorCode::not_supported, "open UCX", std::move(cause)}.fix(
      "apt-get install libucx0, or leave ucx out of the setting transports");
}

template <class F>
bool find(void* handle, const char* name, F& out) {
  out = reinterpret_cast<F>(::dlsym(handle, name));
  return out != nullptr;
}

Result<void> find_all(void* handle, UcpApi& api) {
  const char* absent = nullptr;
  const auto need = [&](const char* name, auto& out) {
    if (!find(handle, name, out) && absent == nullptr) absent = name;
  };
  need("ucp_config_read", api.config_read);
  need("ucp_config_modify", api.config_modify);
  need("ucp_config_release", api.config_release);
  need("ucp_init_version", api.init_version);
  need("ucp_cleanup", api.cleanup);
  need("ucp_worker_create", api.worker_create);
  need("ucp_worker_destroy", api.worker_destroy);
  need("ucp_worker_get_address", api.worker_get_address);
  need("ucp_worker_release_address", api.worker_release_address);
  need("ucp_worker_get_efd", api.worker_get_efd);
  need("ucp_worker_arm", api.worker_arm);
  need("ucp_worker_progress", api.worker_progress);
  need("ucp_worker_set_am_recv_handler", api.worker_set_am_recv_handler);
  need("ucp_ep_create", api.ep_create);
  need("ucp_ep_close_nbx", api.ep_close_nbx);
  need("ucp_ep_flush_nbx", api.ep_flush_nbx);
  need("ucp_am_send_nbx", api.am_send_nbx);
  need("ucp_am_recv_data_nbx", api.am_recv_data_nbx);
  need("ucp_dt_create_generic", api.dt_create_generic);
  need("ucp_dt_destroy", api.dt_destroy);
  need("ucp_request_check_status", api.request_check_status);
  need("ucp_request_free", api.request_free);
  need("ucs_status_string", api.status_string);
  if (absent == nullptr) return {};
  return fail(missing(std::string("this UCX has no function ") + absent));
}

/// UCX patches munmap and its like in the running process, to learn what a registration cache needs to know.
/// This transport has no such cache, and the process is not its own. That is done while libucs is loaded,
/// before any of its functions can be called, and only its environment can forbid it. So for the time of the
/// loading this process has another environment: its own, untouched, and behind it what its user has not set.
class MemoryHooksOff {
 public:
  MemoryHooksOff() : before_(environ) {
    for (char** entry = before_; entry != nullptr && *entry != nullptr; ++entry) entries_.push_back(*entry);
    for (std::string& setting : settings_) {
      const std::string name = setting.substr(0, setting.find('=') + 1);
      const bool set = std::any_of(entries_.begin(), entries_.end(), [&](const char* entry) {
        return std::string_view(entry).starts_with(name);
      });
      if (!set) entries_.push_back(setting.data());
    }
    entries_.push_back(nullptr);
    environ = entries_.data();
  }
  ~MemoryHooksOff() {
    if (environ == entries_.data()) environ = before_;
  }
  MemoryHooksOff(const MemoryHooksOff&) = delete;
  MemoryHooksOff& operator=(const MemoryHooksOff&) = delete;

 private:
  char** before_;
  std::array<std::string, 2> settings_{"UCX_MEM_EVENTS=n", "UCX_MEM_MMAP_HOOK_MODE=none"};
  std::vector<char*> entries_;
};

}  // namespace

Result<UcpApi> UcpApi::open(const char* file) {
  const KeptSignals kept;
  const MemoryHooksOff off;
  void* handle = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    return fail(missing(why == nullptr ? std::string(file) + " cannot be loaded" : why));
  }
  UcpApi api;
  if (auto found = find_all(handle, api); !found) {
    ::dlclose(handle);
    return fail(std::move(found).error());
  }
  return api;
}

Result<const UcpApi*> UcpApi::load() {
  static const Result<UcpApi> opened = open(library);
  if (!opened) return fail(opened.error());
  return &*opened;
}

Error UcpApi::error(ucs_status_t status, std::string stage) const {
  const bool gone = status == UCS_ERR_CONNECTION_RESET || status == UCS_ERR_ENDPOINT_TIMEOUT ||
                    status == UCS_ERR_NOT_CONNECTED || status == UCS_ERR_CANCELED ||
                    status == UCS_ERR_UNREACHABLE || status == UCS_ERR_TIMED_OUT;
  return {gone ? ErrorCode::peer_failed : ErrorCode::system_error, std::move(stage),
          std::string("UCX: ") + status_string(status)};
}

}  // namespace cenote::transport::ucx
