#include "runtime/tcp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <memory>

namespace cenote {
namespace {

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Result<AddressList> look_up(const SocketAddress& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const auto port = std::to_string(address.port);
  const int error = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
  if (error == EAI_SYSTEM) return fail(system_error("look up " + address.host, errno));
  if (error != 0) return fail(ErrorCode::not_found, "look up " + address.host, ::gai_strerror(error));
  return AddressList(found, &::freeaddrinfo);
}

Result<UniqueFd> open_socket(const addrinfo& where, const std::string& stage) {
  UniqueFd fd(::socket(where.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fail(system_error(stage, errno));
  return fd;
}

/// Small frames leave at once; failure costs only time.
void send_at_once(int fd) {
  const int on = 1;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// An address as a number, without its port.
Result<std::string> number_of(const sockaddr* address, socklen_t size, const char* stage) {
  char host[NI_MAXHOST];
  const int error = ::getnameinfo(address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  if (error != 0) return fail(ErrorCode::internal, stage, ::gai_strerror(error));
  return std::string(host);
}

using NameCall = int (*)(int, sockaddr*, socklen_t*);

Result<SocketAddress> name_of(int fd, NameCall call, const char* stage) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  auto* generic = reinterpret_cast<sockaddr*>(&storage);
  if (call(fd, generic, &size) != 0) return fail(system_error(stage, errno));
  CENOTE_ASSIGN(auto host, number_of(generic, size, stage));
  const auto port = storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port
                                                  : reinterpret_cast<sockaddr_in*>(&storage)->sin_port;
  return SocketAddress{std::move(host), ntohs(port)};
}

}  // namespace

std::string SocketAddress::text() const {
  const bool brackets = host.find(':') != std::string::npos;
  return (brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<SocketAddress> SocketAddress::parse(std::string_view text) {
  auto bad = [text](const char* why) {
    return fail(ErrorCode::invalid_argument, "read address", "'" + std::string(text) + "' " + why);
  };
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad("has no port (host:port)");
  auto host = text.substr(0, colon);
  const auto digits = text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return bad("needs [brackets] around an IPv6 address");
  }
  if (host.empty()) return bad("has no host");
  if (host.size() > 253 || host.find_first_of(" \t\r\n/[]") != std::string_view::npos)
    return bad("has no valid host");
  SocketAddress address{std::string(host), 0};
  const auto* end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, address.port);
  if (digits.empty() || read.ec != std::errc{} || read.ptr != end)
    return bad("has no valid port (0 to 65535)");
  return address;
}

Result<UniqueFd> listen_on(const SocketAddress& address, int backlog) {
  const auto stage = "listen on " + address.text();
  CENOTE_ASSIGN(const auto where, look_up(address, AI_PASSIVE));
  CENOTE_ASSIGN(auto fd, open_socket(*where, stage));
  const int on = 1;  // a port in TIME_WAIT is free; one that somebody listens on is not
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0)
    return fail(system_error(stage, errno));
  if (::bind(fd.get(), where->ai_addr, where->ai_addrlen) != 0 || ::listen(fd.get(), backlog) != 0) {
    auto error = system_error(stage, errno);
    if (error.native == EADDRINUSE) error.code = ErrorCode::already_exists;
    return fail(std::move(error));
  }
  return fd;
}

Result<std::string> resolve(const std::string& host) {
  CENOTE_ASSIGN(const auto where, look_up({host, 0}, 0));
  return number_of(where->ai_addr, where->ai_addrlen, "look up a name");
}

Result<std::string> address_towards(const std::string& host) {
  const auto stage = "find the way to " + host;
  CENOTE_ASSIGN(const auto where, look_up({host, 9}, 0));  // a datagram socket only chooses its own address
  const UniqueFd fd(::socket(where->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), where->ai_addr, where->ai_addrlen) != 0)
    return fail(system_error(stage, errno));
  CENOTE_ASSIGN(auto mine, local_address(fd.get()));
  return std::move(mine.host);
}

bool is_loopback(std::string_view host) { return host.starts_with("127.") || host == "::1"; }

Result<UniqueFd> start_connecting(const SocketAddress& address) {
  const auto stage = "connect to " + address.text();
  CENOTE_ASSIGN(const auto where, look_up(address, 0));
  CENOTE_ASSIGN(auto fd, open_socket(*where, stage));
  send_at_once(fd.get());
  if (::connect(fd.get(), where->ai_addr, where->ai_addrlen) != 0 && errno != EINPROGRESS)
    return fail(system_error(stage, errno));
  return fd;
}

Result<void> connect_outcome(int fd, const SocketAddress& address) {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return fail(system_error("connect to " + address.text(), error));
  return {};
}

Result<UniqueFd> accept_from(int listener) {
  for (;;) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      send_at_once(fd.get());
      return fd;
    }
    switch (errno) {
      case EINTR:
      case ECONNABORTED:
        continue;  // that one left before it was taken
      case EAGAIN:
        return UniqueFd();
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM: {
        auto error = system_error("accept a connection", errno);
        error.code = ErrorCode::resource_exhausted;
        return fail(std::move(error));
      }
      default:
        return fail(system_error("accept a connection", errno));
    }
  }
}

Result<SocketAddress> local_address(int fd) {
  return name_of(fd, &::getsockname, "read a socket's own address");
}
Result<SocketAddress> peer_address(int fd) {
  return name_of(fd, &::getpeername, "read a socket's peer address");
}

}  // namespace cenote
