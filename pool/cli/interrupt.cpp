#include "pool/cli/interrupt.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <utility>

namespace cenote::pool::cli {

namespace {

void set(const UniqueFd& event) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event.get(), &one, sizeof one);
}

}  // namespace

Result<std::unique_ptr<Interrupt>> Interrupt::create() {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&mask, signal);
  // Who ignores it was started so, by nohup: its terminal may go.
  struct sigaction hangup {};
  if (::sigaction(SIGHUP, nullptr, &hangup) != 0 || hangup.sa_handler != SIG_IGN) sigaddset(&mask, SIGHUP);
  if (const int error = ::pthread_sigmask(SIG_BLOCK, &mask, nullptr); error != 0) {
    return fail(system_error("block signals", error));
  }
  UniqueFd signals(::signalfd(-1, &mask, SFD_CLOEXEC));
  UniqueFd happened(::eventfd(0, EFD_CLOEXEC)), stop(::eventfd(0, EFD_CLOEXEC));
  if (!signals || !happened || !stop) return fail(system_error("listen for signals", errno));
  return std::unique_ptr<Interrupt>(new Interrupt(std::move(signals), std::move(happened), std::move(stop)));
}

Interrupt::Interrupt(UniqueFd signals, UniqueFd happened, UniqueFd stop)
    : signals_(std::move(signals)), happened_(std::move(happened)), stop_(std::move(stop)), thread_([this] {
        for (;;) {
          pollfd fds[2] = {{signals_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
          if (::poll(fds, 2, -1) < 0) continue;
          if (fds[1].revents != 0) return;
          signalfd_siginfo info{};
          if (::read(signals_.get(), &info, sizeof info) != sizeof info) continue;
          signal_ = static_cast<int>(info.ssi_signo);
          raise();
        }
      }) {}

Interrupt::~Interrupt() {
  set(stop_);
  thread_.join();
}

void Interrupt::raise() {
  flag_.raise();
  set(happened_);
}

bool Interrupt::wait(Deadline deadline) const {
  pollfd fd{happened_.get(), POLLIN, 0};
  while (!deadline.passed()) {
    if (::poll(&fd, 1, deadline.poll_ms()) > 0) return true;
  }
  return flag_.raised();
}

int interrupted(const std::string& command, const Interrupt& interrupt) {
  const auto* name = ::sigabbrev_np(interrupt.signal());
  const auto text = "cenote " + command + ": interrupted by SIG" + (name != nullptr ? name : "?") + "\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  return 128 + interrupt.signal();
}

}  // namespace cenote::pool::cli
