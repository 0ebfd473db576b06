#include "pool/agent/device_lock.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace cenote::pool::agent {

Result<DeviceLocks> DeviceLocks::take(const std::vector<std::string>& uuids) {
  DeviceLocks locks;
  for (const auto& uuid : uuids) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd) return fail(system_error("make the lock of device " + uuid, errno));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    // A leading NUL makes the name abstract: it belongs to the socket, and no file is left behind.
    const auto name = "cenote-gpu-" + uuid;
    if (name.size() + 1 > sizeof address.sun_path) {
      return fail(ErrorCode::invalid_argument, "lock device " + uuid, "its uuid is too long");
    }
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
      if (errno != EADDRINUSE) return fail(system_error("lock device " + uuid, errno));
      return fail(
          Error{ErrorCode::already_exists, "lock device " + uuid, "another agent on this machine serves it"}
              .on(uuid)
              .fix("stop the other agent, or give this one other devices (setting agent.devices)"));
    }
    locks.held_.push_back(std::move(fd));
  }
  return locks;
}

}  // namespace cenote::pool::agent
