#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <vector>

#include "transports/transport.h"

namespace cenote::transport {
namespace {

constexpr int poll_limit_ms = 50;  // the flag and connection deadlines are looked at this often
constexpr std::size_t many = 16;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool progress_all(std::span<Transport* const> transports) {
  bool any = false;
  for (Transport* transport : transports) any = transport->progress() || any;
  return any;
}

Result<void> look_at_end(Deadline deadline, const CancelFlag* cancel, std::string_view what) {
  if (cancel != nullptr && cancel->raised())
    return fail(ErrorCode::cancelled, std::string(what), "cancelled while waiting");
  if (deadline.passed())
    return fail(ErrorCode::deadline_exceeded, std::string(what), "nothing came before the deadline");
  return {};
}

/// True when something happened. Short at first, then the core is offered to others between two looks: with
/// more waiting threads than cores one of them is the one being waited for.
bool spin_for(std::span<Transport* const> transports, Clock::duration spin) {
  constexpr int looks_before_yield = 64, looks_at_once = 8;
  const auto end = Clock::now() + spin;
  for (int looks = 0;; ++looks) {
    if (progress_all(transports)) return true;
    if (looks % looks_at_once != looks_at_once - 1) {
      relax();
      continue;
    }
    if (Clock::now() >= end) return false;
    if (looks > looks_before_yield) ::sched_yield();
  }
}

/// Sleeps until a descriptor is readable, a deadline or the flag is due to be looked at.
Result<void> sleep_on(std::span<Transport* const> transports, Deadline deadline, std::string_view what) {
  std::array<pollfd, many> few;
  std::vector<pollfd> lots;
  std::size_t count = 0;
  for (const Transport* transport : transports) count += transport->wait_fds().size();
  std::span<pollfd> fds(few);
  if (count > many) {
    lots.resize(count);
    fds = lots;
  }
  count = 0;
  for (const Transport* transport : transports) {
    for (const int fd : transport->wait_fds()) fds[count++] = pollfd{fd, POLLIN, 0};
  }
  const auto left = std::min<Clock::duration>(deadline.left(), std::chrono::milliseconds(poll_limit_ms));
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
  const timespec until{ns / 1'000'000'000, ns % 1'000'000'000};
  if (::ppoll(fds.data(), count, &until, nullptr) < 0 && errno != EINTR)
    return fail(system_error(std::string(what), errno));
  return {};
}

}  // namespace

Result<void> wait(std::span<Transport* const> transports, Deadline deadline, const CancelFlag* cancel,
                  std::string_view what, Clock::duration spin) {
  if (spin_for(transports, std::min(spin, deadline.left()))) return {};
  while (true) {
    std::size_t armed = 0;
    while (armed < transports.size() && transports[armed]->arm()) ++armed;
    Result<void> slept;
    if (armed == transports.size()) slept = sleep_on(transports, deadline, what);
    for (std::size_t i = 0; i < armed; ++i) transports[i]->disarm();
    if (progress_all(transports)) return {};
    CENOTE_TRY(std::move(slept));
    CENOTE_TRY(look_at_end(deadline, cancel, what));
  }
}

}  // namespace cenote::transport
