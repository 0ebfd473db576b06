#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>

#include "pool/dropin/session.h"
#include "pool/dropin/session_wire.h"

namespace cenote::pool::dropin {
namespace {

bool same_user(int connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

}  // namespace

Result<std::unique_ptr<SessionServer>> SessionServer::start(const std::string& path, OpenWorkers open) {
  CENOTE_ASSIGN(const auto address, socket_address(path));
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  if (!listener || !stop) return fail(system_error("make the session socket", errno));
  if (::bind(listener.get(), address.get(), address.size) != 0) {
    if (errno == EADDRINUSE)
      return fail(ErrorCode::already_exists, "bind the session socket", path + " is in use");
    return fail(system_error("bind the session socket " + path, errno));
  }
  if (::listen(listener.get(), 16) != 0) return fail(system_error("listen at " + path, errno));
  std::unique_ptr<SessionServer> server(
      new SessionServer(path, std::move(listener), std::move(stop), std::move(open)));
  server->thread_ = std::thread([raw = server.get()] { raw->serve(); });
  return server;
}

SessionServer::SessionServer(std::string path, UniqueFd listener, UniqueFd stop, OpenWorkers open)
    : path_(std::move(path)),
      listener_(std::move(listener)),
      stop_(std::move(stop)),
      open_(std::move(open)) {}

SessionServer::~SessionServer() {
  {
    const std::lock_guard lock(mutex_);
    ended_.raise();
    if (current_ >= 0) ::shutdown(current_, SHUT_RDWR);
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
  if (path_.front() != '@') ::unlink(path_.c_str());
}

void SessionServer::serve() {
  while (true) {
    pollfd entries[2] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(entries, 2, -1) < 0 && errno != EINTR) return;
    if (entries[1].revents != 0) return;
    if (entries[0].revents == 0) continue;
    const UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection || !same_user(connection.get())) continue;
    if (set_current(connection.get())) answer(connection.get());
    set_current(-1);
  }
}

// False: the server is being destroyed, and would not know of the connection.
bool SessionServer::set_current(int connection) {
  const std::lock_guard lock(mutex_);
  current_ = connection;
  return !ended_.raised();
}

void SessionServer::answer(int connection) {
  const auto request = receive_frame(connection, Deadline::in(std::chrono::seconds(1)));
  if (!request) return;  // it closed, dawdled or lied: nobody is waiting for an answer
  const auto workers = open_(*request, ended_);
  const auto reply = workers ? encode_workers(*workers) : encode_error(workers.error());
  static_cast<void>(send_frame(connection, reply, Deadline::in(std::chrono::seconds(1))));
}

}  // namespace cenote::pool::dropin
