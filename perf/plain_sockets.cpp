#include "perf/plain_sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "runtime/unique_fd.h"

namespace cenote::perf {
namespace {

bool move_all(ssize_t (*step)(int, std::byte*, std::size_t), int fd, std::byte* data, std::size_t bytes) {
  while (bytes != 0) {
    const auto moved = step(fd, data, bytes);
    if (moved <= 0) return false;
    data += moved;
    bytes -= static_cast<std::size_t>(moved);
  }
  return true;
}
ssize_t send_step(int fd, std::byte* data, std::size_t bytes) {
  return ::send(fd, data, bytes, MSG_NOSIGNAL);
}
ssize_t receive_step(int fd, std::byte* data, std::size_t bytes) { return ::recv(fd, data, bytes, 0); }

int reader(int listener, int processor, std::size_t bytes, int count) {
  if (!pin_to(processor)) return 1;
  const UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  std::vector<std::byte> buffer(bytes);
  for (int i = 0; i < count; ++i) {
    if (!move_all(receive_step, fd.get(), buffer.data(), bytes)) return 1;
  }
  return move_all(send_step, fd.get(), buffer.data(), 1) ? 0 : 1;
}

}  // namespace

Result<double> plain_socket_bandwidth(const Processors& processors, std::size_t bytes, int count) {
  const char* stage = "measure plain sockets";
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = static_cast<sockaddr*>(static_cast<void*>(&at));
  socklen_t length = sizeof at;
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener || ::bind(listener.get(), generic, length) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), generic, &length) != 0)
    return fail(system_error(stage, errno));
  cpu_set_t before;
  if (::sched_getaffinity(0, sizeof before, &before) != 0) return fail(system_error(stage, errno));
  const pid_t child = ::fork();
  if (child < 0) return fail(system_error(stage, errno));
  if (child == 0) ::_exit(reader(listener.get(), processors.second, bytes, count));
  CENOTE_TRY(pin_to(processors.first));
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  std::vector<std::byte> buffer(bytes, std::byte{7});
  bool good = ::connect(fd.get(), generic, length) == 0;
  const auto start = Clock::now();
  for (int i = 0; good && i < count; ++i) good = move_all(send_step, fd.get(), buffer.data(), bytes);
  good = good && move_all(receive_step, fd.get(), buffer.data(), 1);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  fd.reset();
  (void)::sched_setaffinity(0, sizeof before, &before);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!good || status != 0) return fail(ErrorCode::peer_failed, stage, "the connection ended early");
  return static_cast<double>(bytes) * count / seconds / 1e9;
}

}  // namespace cenote::perf
