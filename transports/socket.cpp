#include "transports/socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace cenote::transport {

Result<SocketAddress> SocketAddress::parse(const std::string& host, std::uint16_t port) {
  SocketAddress out;
  sockaddr_in four{};
  sockaddr_in6 six{};
  if (::inet_pton(AF_INET, host.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    std::memcpy(&out.storage, &four, out.length = sizeof four);
  } else if (::inet_pton(AF_INET6, host.c_str(), &six.sin6_addr) == 1) {
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(port);
    std::memcpy(&out.storage, &six, out.length = sizeof six);
  } else {
    return fail(ErrorCode::invalid_argument, "read network address",
                "'" + host + "' is no numeric IPv4 or IPv6 address");
  }
  return out;
}

Result<UniqueFd> listen_on(const std::string& host, std::uint16_t& port) {
  CENOTE_ASSIGN(SocketAddress at, SocketAddress::parse(host, 0));
  UniqueFd fd(::socket(at.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd || ::bind(fd.get(), at.get(), at.length) != 0 || ::listen(fd.get(), 4096) != 0 ||
      ::getsockname(fd.get(), at.get(), &at.length) != 0)
    return fail(system_error("listen for peers on " + host, errno));
  sockaddr_in four{};
  std::memcpy(&four, &at.storage, sizeof four);  // the port lies at the same place in both families
  port = ntohs(four.sin_port);
  return fd;
}

Result<void> tune_socket(int fd, std::chrono::milliseconds silence) {
  const auto set = [fd](int level, int name, int value) {
    return ::setsockopt(fd, level, name, &value, sizeof value);
  };
  const int limit = static_cast<int>(silence.count());
  const int probe = std::max(1, limit / 1000 / 6);
  if (set(IPPROTO_TCP, TCP_NODELAY, 1) != 0 || set(SOL_SOCKET, SO_KEEPALIVE, 1) != 0 ||
      set(IPPROTO_TCP, TCP_KEEPIDLE, probe) != 0 || set(IPPROTO_TCP, TCP_KEEPINTVL, probe) != 0 ||
      set(IPPROTO_TCP, TCP_KEEPCNT, 5) != 0 || set(IPPROTO_TCP, TCP_USER_TIMEOUT, limit) != 0)
    return fail(system_error("set up a socket", errno));
  return {};
}

}  // namespace cenote::transport
