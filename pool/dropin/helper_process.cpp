#include "pool/dropin/helper_process.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "pool/dropin/helper_wire.h"
#include "runtime/spawn.h"

namespace cenote::pool::dropin {
namespace {

namespace fs = std::filesystem;

static_assert(helper_fd == spawn_passed_fd);

constexpr const char* kStage = "start the pool's helper process";

// Above the descriptors that the child gets: the moves into their places then cannot meet each other. Also
// in a program that closed its standard input, ours is not taken for it.
Result<UniqueFd> above_standard(UniqueFd fd) {
  UniqueFd high(::fcntl(fd.get(), F_DUPFD_CLOEXEC, helper_fd + 1));
  if (!high) return fail(system_error(kStage, errno));
  return high;
}

Result<std::pair<UniqueFd, UniqueFd>> socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return fail(system_error(kStage, errno));
  UniqueFd first(ends[0]), second(ends[1]);
  CENOTE_ASSIGN(auto ours, above_standard(std::move(first)));
  CENOTE_ASSIGN(auto theirs, above_standard(std::move(second)));
  return std::pair(std::move(ours), std::move(theirs));
}

// Neither end waits: a helper that says more than fits loses the rest, not its life.
Result<std::pair<UniqueFd, UniqueFd>> word_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return fail(system_error(kStage, errno));
  UniqueFd first(ends[0]), second(ends[1]);
  CENOTE_ASSIGN(auto read, above_standard(std::move(first)));
  CENOTE_ASSIGN(auto write, above_standard(std::move(second)));
  return std::pair(std::move(read), std::move(write));
}

// All of it but our own settings: the helper has those of the program from the program.
std::vector<std::string> environment() {
  auto kept = own_environment();
  std::erase_if(kept, [](const std::string& variable) { return variable.starts_with("CENOTE_"); });
  return kept;
}

// For lib/, and for lib/x86_64-linux-gnu/ as Debian has it. None where the library's file is gone.
std::vector<fs::path> beside_the_library() {
  Dl_info library{};
  if (::dladdr(reinterpret_cast<const void*>(&find_helper), &library) == 0) return {};
  std::error_code error;
  const auto file = fs::canonical(library.dli_fname, error);
  if (error) return {};
  const auto above = file.parent_path().parent_path();
  return {above / "bin" / "cenote", above.parent_path() / "bin" / "cenote"};
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return fmt::format("it was killed by signal {}", WTERMSIG(status));
  return fmt::format("it ended with code {}", WEXITSTATUS(status));
}

}  // namespace

Result<std::string> find_helper(const std::string& named) {
  const auto candidates = named.empty() ? beside_the_library() : std::vector<fs::path>{named};
  for (const auto& candidate : candidates) {
    if (::access(candidate.c_str(), X_OK) == 0) return candidate.string();
  }
  std::string looked;
  for (const auto& candidate : candidates) looked += (looked.empty() ? "" : " or ") + candidate.string();
  return fail(Error{
      ErrorCode::not_found, kStage,
      looked.empty() ? "the library's own file is not there any more" : "there is no program at " + looked}
                  .fix("install the cenote command with the library, or name it: setting session.helper "
                       "(CENOTE_SESSION_HELPER), or cenote_pool_options.helper"));
}

Result<StartedHelper> StartedHelper::start(const std::string& program) {
  StartedHelper helper;
  helper.program_ = program;
  CENOTE_ASSIGN(auto sockets, socket_pair());
  CENOTE_ASSIGN(auto words, word_pipe());
  auto started = spawn({.program = program,
                        .words = {"cenote", "session", "--for", std::to_string(::getpid())},
                        .environment = environment(),
                        .output = spawn_null,
                        .error = words.second.get(),
                        .pass = sockets.second.get()});
  if (!started) {
    started.error().stage = fmt::format("{} {}", kStage, program);
    return fail(std::move(started).error());
  }
  helper.pid_ = *started;
  helper.pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, helper.pid_, 0)));
  if (!helper.pidfd_ && errno != ESRCH) {  // that: it has ended, and the program wants no child reaped
    const int cause = errno;
    ::kill(helper.pid_, SIGKILL);
    return fail(system_error(kStage, cause));
  }
  helper.socket_ = std::move(sockets.first);
  helper.words_ = std::move(words.first);
  return helper;
}

StartedHelper::StartedHelper(StartedHelper&& other) noexcept
    : program_(std::move(other.program_)),
      socket_(std::move(other.socket_)),
      words_(std::move(other.words_)),
      pidfd_(std::move(other.pidfd_)),
      pid_(std::exchange(other.pid_, -1)) {}

StartedHelper::~StartedHelper() {
  if (pid_ <= 0) return;
  // By the descriptor: the program may have reaped it, and its number be somebody else's.
  if (pidfd_) ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<void> StartedHelper::finish(Deadline deadline) {
  int status = 0;
  while (true) {
    const auto reaped = ::waitpid(pid_, &status, WNOHANG);
    if (reaped == pid_) break;
    if (reaped < 0 && errno != EINTR) {
      status = 0;  // the program reaps all its children, or wants none reaped: the socket will tell
      break;
    }
    if (deadline.passed())
      return fail(ErrorCode::deadline_exceeded, fmt::format("{} {}", kStage, program_),
                  "it did not start in time");
    pollfd ended{pidfd_.get(), POLLIN, 0};
    ::poll(&ended, pidfd_ ? 1 : 0, pidfd_ ? deadline.poll_ms() : 1);
  }
  pid_ = -1;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  auto cause = how_it_ended(status);
  if (const auto words = last_words(words_.get()); !words.empty()) cause += ": " + words;
  return fail(ErrorCode::peer_failed, fmt::format("{} {}", kStage, program_), std::move(cause));
}

std::string last_words(int fd) {
  constexpr std::size_t most = 500;
  std::string text(most, '\0');
  const auto got = fd < 0 ? 0 : ::read(fd, text.data(), text.size());
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::ranges::replace(text, '\n', ' ');
  return text;
}

}  // namespace cenote::pool::dropin
