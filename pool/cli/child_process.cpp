#include "pool/cli/child_process.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "runtime/spawn.h"

namespace cenote::pool::cli {

namespace {

// Our own with the options' variables in place of what had the same names, and their folders in front of
// paths.
std::vector<std::string> merged_environment(const ChildOptions& options) {
  auto more = options.environment;
  for (const auto& [name, folder] : options.path_front) more[name] = folder;
  std::vector<std::string> merged;
  for (const auto& text : own_environment()) {
    const auto name = text.substr(0, text.find('='));
    if (!options.without.empty() && name.starts_with(options.without)) continue;
    if (options.path_front.contains(name) && text.size() > name.size() + 1) {
      more[name] += ":" + text.substr(name.size() + 1);
    } else if (!more.contains(name)) {
      merged.push_back(text);
    }
  }
  for (const auto& [name, value] : more) merged.push_back(fmt::format("{}={}", name, value));
  return merged;
}

struct Stat {
  char state = 0;
  pid_t parent = 0;
};

// nullopt = there is no such process.
std::optional<Stat> stat_of(pid_t pid) {
  if (pid <= 0) return std::nullopt;
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // "pid (name) state parent ...": the name may hold anything, so count from its end.
  std::istringstream rest(line.substr(line.rfind(')') + 1));
  Stat stat;
  rest >> stat.state >> stat.parent;
  return stat;
}

}  // namespace

Result<ChildProcess> ChildProcess::start(const ChildOptions& options) {
  ChildProcess child;
  auto started = spawn({.program = options.command.front(),
                        .in_path = true,
                        .words = options.command,
                        .environment = merged_environment(options),
                        .output = options.output,
                        .error = options.error,
                        .pass = options.pass,
                        .own_group = options.own_group});
  if (!started) {
    auto failure = std::move(started).error();
    if (failure.native == ENOENT) failure.code = ErrorCode::not_found;
    return fail(std::move(failure));
  }
  child.pid_ = *started;
  child.pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, child.pid_, 0)));
  if (!child.pidfd_) return fail(system_error("watch " + options.command.front(), errno));
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), pidfd_(std::move(other.pidfd_)), status_(other.status_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    end(Clock::duration::zero());
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::move(other.pidfd_);
    status_ = other.status_;
  }
  return *this;
}

ChildProcess::~ChildProcess() { end(Clock::duration::zero()); }

bool ChildProcess::running() { return pid_ > 0 && !wait(Deadline::in(Clock::duration::zero())); }

void ChildProcess::signal(int number) const {
  // Not yet reaped, so the number is still this child's.
  if (pid_ > 0 && !status_) ::kill(pid_, number);
}

std::optional<int> ChildProcess::wait(Deadline deadline) {
  while (pid_ > 0 && !status_) {
    int status = 0;
    const auto reaped = ::waitpid(pid_, &status, WNOHANG);
    if (reaped == pid_) {
      status_ = status;
    } else if (reaped < 0 && errno != EINTR) {
      status_ = 0;  // somebody else reaped it; nothing more can be known
    } else if (deadline.passed()) {
      break;
    } else {
      pollfd ended{pidfd_.get(), POLLIN, 0};
      ::poll(&ended, pidfd_ ? 1 : 0, pidfd_ ? deadline.poll_ms() : 1);
    }
  }
  return status_;
}

void ChildProcess::end(Clock::duration grace) {
  if (pid_ <= 0 || status_) return;
  if (grace > Clock::duration::zero()) {
    signal(SIGTERM);
    if (wait(Deadline::in(grace))) return;
  }
  signal(SIGKILL);
  wait(Deadline::never());  // the kernel ends it: no peer is waited for
}

int ChildProcess::exit_code(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  std::error_code error;
  auto entry = std::filesystem::directory_iterator("/proc", error);
  for (; parent > 0 && !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const auto pid = std::atoi(entry->path().filename().c_str());
    const auto stat = stat_of(pid);
    if (stat && stat->parent == parent && stat->state != 'Z') children.push_back(pid);
  }
  return children;
}

bool is_running(pid_t pid) {
  const auto stat = stat_of(pid);
  return stat && stat->state != 'Z' && stat->state != 'X';
}

}  // namespace cenote::pool::cli
