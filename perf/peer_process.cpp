#include "perf/peer_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "perf/two_processes.h"

namespace cenote::perf {
namespace {

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> out;
  out.reserve(words.size() + 1);
  for (auto& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

/// The end of what was written to a file of memory.
std::string end_of(const UniqueFd& fd) {
  constexpr off_t most = 600;
  const off_t size = ::lseek(fd.get(), 0, SEEK_END), from = std::max<off_t>(0, size - most);
  std::string out(static_cast<std::size_t>(size - from), '\0');
  const auto count = ::pread(fd.get(), out.data(), out.size(), from);
  out.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool somebody_listens(std::uint16_t port) {
  const std::string wanted = fmt::format(":{:04X} ", port);
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream table(file);
    for (std::string line; std::getline(table, line);) {
      const auto at = line.find(wanted);
      if (at != std::string::npos && at < 50 && line.find(" 0A ") != std::string::npos) return true;
    }
  }
  return false;
}

}  // namespace

Result<PeerProcess> PeerProcess::start(const Options& options) {
  PeerProcess made;
  made.name_ = options.command.front();
  const std::string stage = "start " + made.name_;
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) return fail(system_error(stage, errno));
  made.output_.reset(pipe_fds[0]);
  const UniqueFd write_end(pipe_fds[1]);
  made.error_.reset(::memfd_create("error", MFD_CLOEXEC));
  auto command = options.command, environment = options.environment;
  environment.emplace_back("PATH=/usr/sbin:/usr/bin:/sbin:/bin");
  const auto words = pointers_to(command), variables = pointers_to(environment);
  made.pid_ = ::fork();
  if (made.pid_ < 0) return fail(system_error(stage, errno));
  if (made.pid_ > 0) return made;
  if (options.processor >= 0) (void)pin_to(options.processor);
  ::dup2(write_end.get(), STDOUT_FILENO);
  ::dup2(made.error_.get(), STDERR_FILENO);
  ::execve(words[0], words.data(), variables.data());
  ::_exit(127);
}

PeerProcess::PeerProcess(PeerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      name_(std::move(other.name_)),
      output_(std::move(other.output_)),
      error_(std::move(other.error_)) {}

PeerProcess::~PeerProcess() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

bool PeerProcess::ended() const {
  siginfo_t info{};
  return pid_ < 0 || (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
                      info.si_pid != 0);
}

Result<std::string> PeerProcess::finish(Deadline deadline) {
  const std::string stage = "run " + name_;
  std::string all;
  std::array<char, 4096> buffer{};
  while (true) {
    pollfd fd{output_.get(), POLLIN, 0};
    if (::poll(&fd, 1, deadline.poll_ms(1000)) <= 0) {
      if (deadline.passed())
        return fail(ErrorCode::deadline_exceeded, stage, "it does not end; it said: " + end_of(error_));
      continue;
    }
    const auto count = ::read(output_.get(), buffer.data(), buffer.size());
    if (count > 0) all.append(buffer.data(), static_cast<std::size_t>(count));
    if (count == 0 || (count < 0 && errno != EINTR)) break;
  }
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return all;
  const auto how = WIFSIGNALED(status)
                       ? fmt::format("it was ended by SIG{}", ::sigabbrev_np(WTERMSIG(status)))
                       : fmt::format("it ended with exit code {}", WEXITSTATUS(status));
  return fail(ErrorCode::peer_failed, stage, how + "; it said: " + end_of(error_));
}

Result<std::uint16_t> free_port() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  auto* generic = static_cast<sockaddr*>(static_cast<void*>(&at));
  if (!fd || ::bind(fd.get(), generic, length) != 0 || ::getsockname(fd.get(), generic, &length) != 0)
    return fail(system_error("find a free port", errno));
  return ntohs(at.sin_port);
}

Result<void> await_listener(std::uint16_t port, const PeerProcess& server, Deadline deadline) {
  const std::string stage = fmt::format("await the server at port {}", port);
  while (!somebody_listens(port)) {
    if (server.ended()) return fail(ErrorCode::peer_failed, stage, "it ended");
    if (deadline.passed()) return fail(ErrorCode::deadline_exceeded, stage, "it does not listen");
    ::usleep(2000);
  }
  return {};
}

}  // namespace cenote::perf
