#include <sys/socket.h>

#include <cerrno>

#include "pool/dropin/session.h"
#include "pool/dropin/session_wire.h"

namespace cenote::pool::dropin {
namespace {

Result<Bytes> ask(const std::string& path, std::span<const std::byte> request, Deadline deadline) {
  CENOTE_ASSIGN(const auto address, socket_address(path));
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return fail(system_error("make a session socket", errno));
  if (::connect(socket.get(), address.get(), address.size) != 0) {
    auto error = system_error("connect to the session at " + path, errno);
    error.code = ErrorCode::not_found;
    return fail(std::move(error).fix(
        "start the program with `cenote lease --gpus N -- PROGRAM`; the lease may have ended"));
  }
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
  CENOTE_ASSIGN(auto workers, decode_reply(reply));
  return remote::RemoteDriver::connect(std::move(fabric), std::move(workers), deadline, nullptr,
                                       worker_timeout);
}

}  // namespace cenote::pool::dropin
