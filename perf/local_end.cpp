#include "perf/local_end.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace cenote::perf {
namespace {

constexpr auto patience = std::chrono::seconds(30);  // it has nothing left to do, on a busy machine

std::string ending(int status) {
  if (WIFSIGNALED(status)) return fmt::format("it was ended by SIG{}", ::sigabbrev_np(WTERMSIG(status)));
  return fmt::format("it ended with exit code {}", WEXITSTATUS(status));
}

}  // namespace

Result<LocalEnd> LocalEnd::start(const pool::cli::Globals& globals, const std::string& tool,
                                 const std::vector<std::string>& words) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
    return fail(system_error("join the two ends", errno));
  LocalEnd end;
  end.socket_.reset(pair[0]);
  const UniqueFd theirs(pair[1]), nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (!nowhere) return fail(system_error("open /dev/null", errno));
  pool::cli::ChildOptions options;
  auto& command = options.command;
  command = {"/proc/self/exe", "--die-with", std::to_string(::getpid())};
  if (!globals.config_file.empty()) command.insert(command.end(), {"--config", globals.config_file});
  if (!globals.log_level.empty()) command.insert(command.end(), {"--log-level", globals.log_level});
  for (const auto& setting : globals.overrides) command.insert(command.end(), {"--set", setting});
  command.insert(command.end(), {"perf", tool, "--control-fd", "3"});
  command.insert(command.end(), words.begin(), words.end());
  options.output = nowhere.get();
  options.error = nowhere.get();
  options.pass = theirs.get();
  CENOTE_ASSIGN(end.child_, pool::cli::ChildProcess::start(options));
  return end;
}

std::string LocalEnd::name() const { return fmt::format("the other end here (process {})", child_.pid()); }

Result<void> LocalEnd::finish() {
  const auto status = child_.wait(Deadline::in(patience));
  if (status && *status == 0) return {};
  return fail(
      Error{ErrorCode::peer_failed, "end the other end", status ? ending(*status) : "it does not end"}.with(
          name()));
}

Error LocalEnd::lost(Error error) {
  // A moment to end by itself: it has been told.
  const auto status = child_.wait(Deadline::in(std::chrono::seconds(1)));
  child_.end(std::chrono::seconds(1));
  if (error.code == ErrorCode::peer_failed && status && WIFSIGNALED(*status))
    error.cause += "; " + ending(*status);
  return error;
}

}  // namespace cenote::perf
