#include "transports/peer_process.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <string>

#include "runtime/process.h"

namespace cenote::transport {
namespace {

using namespace std::chrono_literals;

constexpr auto between_looks = 100ms;
constexpr auto a_while = 300ms;

/// Field 22 of /proc/PROCESS/stat, which stands behind a name that may have any characters, in brackets.
Result<std::uint64_t> start_of(const std::string& process) {
  const auto path = "/proc/" + process + "/stat";
  CENOTE_ASSIGN(const auto stat, read_file(path, 65536));
  auto at = stat.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  std::uint64_t started = 0;
  if (at == std::string::npos ||
      std::from_chars(stat.data() + at + 1, stat.data() + stat.size(), started).ec != std::errc{})
    return fail(ErrorCode::system_error, "read " + path, "it does not say when the process started");
  return started;
}

}  // namespace

Result<ProcessMark> ProcessMark::own() {
  CENOTE_ASSIGN(const auto started, start_of("self"));
  return ProcessMark{::getpid(), started};
}

PeerProcess::PeerProcess(const HostIdentity& here, const HostIdentity& there, const ProcessMark& mark) {
  const bool visible =
      here.boot_id == there.boot_id && here.pid_space == there.pid_space && here.pid_space != 0;
  if (!visible || mark.number <= 0 || mark.number == ::getpid()) return;
  UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, mark.number, 0)));
  // Asked after the handle was there: it is the handle of whoever started then.
  const auto started = start_of(std::to_string(mark.number));
  if (handle && started && *started == mark.started) handle_ = std::move(handle);
}

bool PeerProcess::ended_long_ago() {
  if (!handle_) return false;
  const auto now = Clock::now();
  if (now < next_look_) return false;
  next_look_ = now + between_looks;
  pollfd ended{handle_.get(), POLLIN, 0};
  if (::poll(&ended, 1, 0) <= 0) return false;
  if (seen_ended_ == Clock::time_point{}) seen_ended_ = now;
  if (now - seen_ended_ < a_while) return false;
  handle_.reset();
  return true;
}

}  // namespace cenote::transport
