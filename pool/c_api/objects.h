// What the handles of cenote/pool.h point at. Not API.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cenote/pool.h"
#include "pool/dropin/helper_client.h"
#include "runtime/c_boundary.h"
#include "runtime/fork_mark.h"
#include "runtime/settings.h"

struct cenote_pool {
  cenote::Settings settings;
  std::unique_ptr<cenote::pool::dropin::HelperPool> helper;
};

struct cenote_lease {
  std::unique_ptr<cenote::pool::dropin::HelperLease> lease;
};

struct cenote_gpus;

struct cenote_module {
  cenote_gpus* gpus;
  std::uint32_t device;
  cenote::cuda::Module module;
};

struct cenote_kernel {
  cenote_module* module;
  cenote::cuda::Function function;
  std::size_t parameters;
};

struct cenote_gpus {
  cenote::ForkMark process;  ///< that opened it; a child leaves all below alone
  std::unique_ptr<cenote::pool::remote::RemoteDriver> driver;
  std::vector<cenote::cuda::Context> contexts;                             ///< by device
  std::mutex mutex;                                                        ///< guards what follows
  std::unique_ptr<cenote::pool::remote::RemoteCommunicator> communicator;  ///< made by the first collective
  std::vector<std::unique_ptr<cenote_module>> modules;
  std::vector<std::unique_ptr<cenote_kernel>> kernels;
};

namespace cenote::pool::c_api {

using c_boundary::bad;
using c_boundary::guarded;
using c_boundary::known_part;
using c_boundary::last_error;

inline std::string text(const char* given) { return given == nullptr ? std::string() : std::string(given); }

inline Deadline within(std::uint32_t timeout_ms, Clock::duration otherwise) {
  return Deadline::in(timeout_ms == 0 ? otherwise : std::chrono::milliseconds(timeout_ms));
}

}  // namespace cenote::pool::c_api
