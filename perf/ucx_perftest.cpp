#include "perf/ucx_perftest.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "runtime/deadline.h"
#include "runtime/unique_fd.h"

namespace cenote::perf {
namespace {

constexpr const char* program = "/usr/bin/ucx_perftest";

Result<int> free_port() {
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

/// A child with its standard output in a pipe; killed and reaped by the destructor.
class Child {
 public:
  static Result<Child> start(const std::vector<std::string>& arguments, const std::string& transports) {
    int pipe_fds[2];
    if (::pipe2(pipe_fds, O_CLOEXEC) != 0) return fail(system_error("start " + arguments[0], errno));
    UniqueFd read_end(pipe_fds[0]), write_end(pipe_fds[1]);
    std::vector<char*> raw;
    raw.reserve(arguments.size() + 1);
    for (const auto& argument : arguments) raw.push_back(const_cast<char*>(argument.c_str()));
    raw.push_back(nullptr);
    const std::string setting = "UCX_TLS=" + transports;
    char* environment[] = {const_cast<char*>(setting.c_str()), const_cast<char*>("PATH=/usr/bin:/bin"),
                           nullptr};
    const pid_t pid = ::fork();
    if (pid < 0) return fail(system_error("start " + arguments[0], errno));
    if (pid == 0) {
      ::dup2(write_end.get(), STDOUT_FILENO);
      const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
      ::dup2(null, STDERR_FILENO);
      ::execve(raw[0], raw.data(), environment);
      ::_exit(127);
    }
    return Child(pid, std::move(read_end));
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)), output_(std::move(other.output_)) {}
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  /// All it prints until it ends.
  std::string read_all() const {
    std::string all;
    char buffer[4096];
    while (true) {
      const auto count = ::read(output_.get(), buffer, sizeof buffer);
      if (count > 0) all.append(buffer, static_cast<std::size_t>(count));
      if (count == 0 || (count < 0 && errno != EINTR)) return all;
    }
  }

 private:
  Child(pid_t pid, UniqueFd output) : pid_(pid), output_(std::move(output)) {}
  pid_t pid_;
  UniqueFd output_;
};

/// Whether somebody listens there, without connecting: the server would take that for its client.
bool listens(int port) {
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

Result<UcxResult> run_ucx(const UcxRun& run, const Processors& processors) {
  if (!std::filesystem::exists(program))
    return fail(Error{ErrorCode::not_found, "run ucx_perftest", std::string(program) + " is not there"}.fix(
        "apt-get install ucx-utils"));
  CENOTE_ASSIGN(const int port, free_port());
  const auto start = [&](int processor, const std::vector<std::string>& more) {
    std::vector<std::string> all{"/usr/bin/taskset",  "-c", std::to_string(processor), program, "-p",
                                 std::to_string(port)};
    all.insert(all.end(), more.begin(), more.end());
    return Child::start(all, run.transports);
  };
  CENOTE_ASSIGN(const Child server, start(processors.second, {}));
  const Deadline deadline = Deadline::in(std::chrono::seconds(20));
  while (!listens(port)) {
    if (deadline.passed())
      return fail(ErrorCode::peer_failed, "run ucx_perftest", "its server does not listen");
    ::usleep(2000);
  }
  CENOTE_ASSIGN(
      const Child client,
      start(processors.first, {"127.0.0.1", "-t", run.test, "-s", std::to_string(run.bytes), "-n",
                               std::to_string(run.iterations), "-w", std::to_string(run.warmup), "-f"}));
  const std::string text = client.read_all();
  // The last line of numbers: iterations, then latency typical, average, overall, bandwidth average, overall.
  std::istringstream lines(text);
  UcxResult result;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    double iterations = 0, typical = 0, average = 0, latency = 0, bandwidth_average = 0, bandwidth = 0;
    if (!(in >> iterations >> typical >> average >> latency >> bandwidth_average >> bandwidth)) continue;
    result.latency_us = latency;
    result.bandwidth_gbps = bandwidth * 1024 * 1024 / 1e9;
  }
  if (result.latency_us <= 0)
    return fail(ErrorCode::peer_failed, "run ucx_perftest -t " + run.test, "it printed no result: " + text);
  return result;
}

}  // namespace cenote::perf
