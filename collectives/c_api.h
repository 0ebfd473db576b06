// What the sources of the C interface share: the handles behind its names, and how a Result becomes a status.
// Nothing gets out but values: what the standard library may throw (no memory) becomes a status too.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cenote/cenote.h"
#include "collectives/communicator.h"
#include "collectives/devices.h"
#include "runtime/bootstrap.h"
#include "runtime/fork_mark.h"

struct cenote_context {
  cenote::transport::FabricOptions fabric;
  std::shared_ptr<cenote::collectives::Devices> devices;
  std::mutex mutex;
  std::vector<std::unique_ptr<cenote::BootstrapRoot>> roots;
  std::shared_ptr<cenote::ForkMark> mark = std::make_shared<cenote::ForkMark>();
};

struct cenote_comm {
  std::shared_ptr<cenote::collectives::Devices> devices;
  std::unique_ptr<cenote::collectives::Communicator> communicator;
  std::shared_ptr<const cenote::ForkMark> mark;  ///< the context's
};

namespace cenote::c_api {

/// errno's way: the text belongs to the thread whose call failed.
std::string& last_error();
cenote_status status_of(ErrorCode code);

/// Runs the body of one function; its Result becomes the status, its error the thread's text.
template <class Body>
cenote_status guarded(Body body) noexcept {
  try {
    Result<void> result = body();
    if (result) return CENOTE_SUCCESS;
    last_error() = result.error().message();
    return status_of(result.error().code);
  } catch (const std::bad_alloc&) {
    last_error() = "out of memory";  // fits the string without an allocation
    return CENOTE_RESOURCE_EXHAUSTED;
  } catch (const std::exception& error) {
    last_error() = error.what();
    return CENOTE_INTERNAL;
  }
}

inline tl::unexpected<Error> bad(std::string stage, std::string cause) {
  return fail(ErrorCode::invalid_argument, std::move(stage), std::move(cause));
}

/// A child of fork() shares its parent's sockets and rings, but not its threads: it leaves them alone.
/// `made`: a context or a communicator.
template <class Handle>
Result<void> in_its_process(const Handle& made, const char* stage) {
  if (!made.mark->forked()) [[likely]]
    return {};
  return bad(stage, "it was made by the parent of this child of fork()");
}

/// As much of the caller's struct as it has, the rest zero.
template <class T>
Result<T> known_part(const T* given, const char* stage) {
  T known{};
  if (given == nullptr) return known;
  if (given->size < sizeof(std::size_t)) return bad(stage, "the struct's size is not set");
  std::memcpy(&known, given, std::min(given->size, sizeof known));
  return known;
}

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
