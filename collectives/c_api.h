// What the sources of the C interface share: the handles behind its names, and how its operations start.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cenote/cenote.h"
#include "collectives/communicator.h"
#include "collectives/devices.h"
#include "runtime/bootstrap.h"
#include "runtime/c_boundary.h"
#include "runtime/fork_mark.h"
#include "runtime/pmix.h"

struct cenote_context {
  cenote::transport::FabricOptions fabric;
  bool host_given = false;  ///< fabric.tcp_host is the caller's
  std::shared_ptr<cenote::collectives::Devices> devices;
  std::mutex mutex;
  std::vector<std::unique_ptr<cenote::BootstrapRoot>> roots;
  std::mutex launcher;                           ///< for what follows
  std::unique_ptr<cenote::launcher::Pmix> pmix;  ///< once the launcher was asked, and it is PMIx
  std::shared_ptr<cenote::ForkMark> mark = std::make_shared<cenote::ForkMark>();
};

struct cenote_comm {
  std::shared_ptr<cenote::collectives::Devices> devices;
  std::unique_ptr<cenote::collectives::Communicator> communicator;
  std::shared_ptr<const cenote::ForkMark> mark;  ///< the context's
};

namespace cenote::c_api {

using c_boundary::bad;
using c_boundary::guarded;
using c_boundary::known_part;

/// A child of fork() shares its parent's sockets and rings, but not its threads: it leaves them alone.
/// `made`: a context or a communicator.
template <class Handle>
Result<void> in_its_process(const Handle& made, const char* stage) {
  if (!made.mark->forked()) [[likely]]
    return {};
  return bad(stage, "it was made by the parent of this child of fork()");
}

/// Makes a communicator in the context's name.
Result<std::unique_ptr<cenote_comm>> create_comm(const cenote_context& context,
                                                 const collectives::CommunicatorOptions& options);

/// Starts an operation: `begin` returns a Result<Request>.
template <class Begin>
cenote_status started(const char* stage, cenote_comm* comm, cenote_request* request, Begin begin) noexcept {
  return guarded([&]() -> Result<void> {
    if (comm == nullptr || request == nullptr) return bad(stage, "the communicator or the request is NULL");
    request->sequence = 0;
    CENOTE_TRY(in_its_process(*comm, stage));
    CENOTE_ASSIGN(const collectives::Request made, begin(*comm->communicator));
    request->sequence = made.sequence;
    return {};
  });
}

/// 0 = until the operation's own deadline.
inline Deadline deadline_of(std::uint32_t timeout_ms) {
  return timeout_ms == 0 ? Deadline::never() : Deadline::in(std::chrono::milliseconds(timeout_ms));
}

}  // namespace cenote::c_api
