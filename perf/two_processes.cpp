#include "perf/two_processes.h"

#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "runtime/unique_fd.h"

namespace cenote::perf {
namespace {

using transport::Transport;

/// Sends bytes and takes as many back; both sides do it with the same size.
Result<void> exchange(int fd, std::span<const std::byte> mine, std::span<std::byte> theirs) {
  if (::send(fd, mine.data(), mine.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(mine.size()))
    return fail(system_error("hand over the address", errno));
  if (::recv(fd, theirs.data(), theirs.size(), MSG_WAITALL) != static_cast<ssize_t>(theirs.size()))
    return fail(ErrorCode::peer_failed, "take over the address", "the other process ended");
  return {};
}

struct Introduction {
  std::array<std::byte, 256> address{};
  std::size_t address_size = 0;
  transport::RemoteKey key;
};

Result<double> one_side(bool first, int fd, const std::function<Result<std::unique_ptr<Transport>>()>& make,
                        std::size_t bytes, const std::function<Result<double>(Side&)>& work) {
  CENOTE_ASSIGN(auto transport, make());
  CENOTE_ASSIGN(auto memory, transport->allocate(bytes));
  Introduction mine, theirs;
  mine.address_size = transport->address().size();
  std::memcpy(mine.address.data(), transport->address().data(), mine.address_size);
  mine.key = memory->key();
  CENOTE_TRY(exchange(fd, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(&theirs, 1))));
  CENOTE_ASSIGN(auto endpoint, transport->connect(std::span(theirs.address).first(theirs.address_size),
                                                  first ? "second process" : "first process", 0,
                                                  Deadline::in(std::chrono::seconds(20))));
  Side side{first, *transport, *endpoint, *memory, theirs.key};
  auto result = work(side);
  if (!result) return result;  // the other one sees the endpoint fail
  // Nobody goes before both are done.
  std::array<std::byte, 1> token{};
  CENOTE_TRY(exchange(fd, token, token));
  return result;
}

}  // namespace

Result<Processors> Processors::choose() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0)
    return fail(system_error("read the processor set", errno));
  int found[2], count = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE && count < 2; ++cpu) {
    if (CPU_ISSET(cpu, &set)) found[count++] = cpu;
  }
  if (count < 2)
    return fail(ErrorCode::not_supported, "choose two processors", "this process may use only one");
  return Processors{found[0], found[1]};
}

Result<void> pin_to(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0)
    return fail(system_error("pin to processor " + std::to_string(processor), errno));
  return {};
}

Result<double> in_two_processes(const Processors& processors,
                                const std::function<Result<double>(bool first, int socket)>& work) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    return fail(system_error("join two processes", errno));
  UniqueFd here(pair[0]), there(pair[1]);
  cpu_set_t before;
  CPU_ZERO(&before);
  if (::sched_getaffinity(0, sizeof before, &before) != 0)
    return fail(system_error("read the processor set", errno));
  const auto side = [&](bool first, int socket) -> Result<double> {
    CENOTE_TRY(pin_to(first ? processors.first : processors.second));
    return work(first, socket);
  };
  const pid_t child = ::fork();
  if (child < 0) return fail(system_error("start the second process", errno));
  if (child == 0) {
    here.reset();
    const auto result = side(false, there.get());
    if (!result) ::dprintf(STDERR_FILENO, "second process: %s\n", result.error().message().c_str());
    ::_exit(result ? 0 : 1);
  }
  there.reset();
  auto result = side(true, here.get());
  here.reset();
  (void)::sched_setaffinity(0, sizeof before, &before);
  if (!result) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (result && status != 0)
    return fail(ErrorCode::peer_failed, "measure with two processes", "the second one ended badly");
  return result;
}

Result<double> in_two_processes(const Processors& processors,
                                const std::function<Result<std::unique_ptr<Transport>>()>& make,
                                std::size_t bytes, const std::function<Result<double>(Side&)>& work) {
  return in_two_processes(processors,
                          [&](bool first, int socket) { return one_side(first, socket, make, bytes, work); });
}

}  // namespace cenote::perf
