#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>

#include "pool/dropin/session.h"
#include "pool/dropin/session_wire.h"

namespace cenote::pool::dropin {
namespace {

// A server that is stopped, or has many waiting, takes no more: connect() itself waits, so it gets an end.
Result<UniqueFd> connect(const std::string& path, Deadline deadline) {
  CENOTE_ASSIGN(const auto address, socket_address(path));
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto ms = std::max(deadline.poll_ms(), 1);
  const timeval patience{ms / 1000, static_cast<suseconds_t>(ms % 1000) * 1000};
  if (!socket || ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) != 0)
    return fail(system_error("make a session socket", errno));
  int result = 0;
  do {
    result = ::connect(socket.get(), address.get(), address.size);
  } while (result != 0 && errno == EINTR && !deadline.passed());
  if (result == 0) return socket;
  const int cause = errno;
  auto error = system_error("connect to the session at " + path, cause);
  if (cause == EAGAIN || cause == EINTR) {
    error.code = ErrorCode::deadline_exceeded;
    error.cause = "it takes no connection";
    return fail(std::move(error).fix("is the process that holds the lease (cenote lease) stopped?"));
  }
  error.code = ErrorCode::not_found;
  return fail(std::move(error).fix(
      "start the program with `cenote lease --gpus N -- PROGRAM`; the lease may have ended"));
}

Result<Bytes> ask(const std::string& path, std::span<const std::byte> request, Deadline deadline) {
  CENOTE_ASSIGN(const auto socket, connect(path, deadline));
  CENOTE_TRY(send_frame(socket.get(), request, deadline));
  return receive_frame(socket.get(), deadline);
}

}  // namespace

Result<std::unique_ptr<remote::RemoteDriver>> open_session(const std::string& path,
                                                           const transport::FabricOptions& options,
                                                           Deadline deadline,
                                                           Clock::duration worker_timeout) {
  CENOTE_ASSIGN(auto fabric, transport::Fabric::create(options));
  CENOTE_ASSIGN(const auto reply, ask(path, fabric->address(), deadline));
  CENOTE_ASSIGN(const auto workers, decode_reply(reply));
  return remote::RemoteDriver::connect(std::move(fabric), workers, deadline, nullptr, worker_timeout);
}

}  // namespace cenote::pool::dropin
