#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>

#include "pool/cli/cli.h"
#include "runtime/unique_fd.h"

namespace cenote::pool::cli {

namespace {

constexpr int kPassedFd = 3;
constexpr auto kGrace = std::chrono::seconds(10);  // as much as `cenote lease` gives when the lease is lost

void ignore_signals() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, SIG_IGN);
}

// Reads descriptor 3 to its end: then whoever held the other end is gone, and so are its children (they die
// with it). The last of them may still be writing, hence the tries.
Result<int> guard(const std::string& folder) {
  ignore_signals();
  char byte = 0;
  for (;;) {
    const auto got = ::read(kPassedFd, &byte, 1);
    if (got == 0 || (got < 0 && errno != EINTR)) break;
  }
  std::error_code error;
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::filesystem::remove_all(folder, error);
    if (!error && !std::filesystem::exists(folder)) return exit_ok;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return fail(system_error("remove " + folder, error.value()));
}

/// True = the process behind `pidfd` has ended.
bool ended(int pidfd, Deadline deadline) {
  pollfd entry{pidfd, POLLIN, 0};
  while (::poll(&entry, 1, deadline.poll_ms()) <= 0) {
    if (deadline.passed()) return false;
  }
  return true;
}

// Descriptor 3 is a pidfd of a command that runs under a lease. When the holder of the lease is gone first,
// nobody renews the lease and nobody answers the command's drop-ins: it is told to end, then made to.
Result<int> guard_command(pid_t holder, const std::string& name) {
  ignore_signals();
  const UniqueFd command(kPassedFd);
  const UniqueFd held(static_cast<int>(::syscall(SYS_pidfd_open, holder, 0)));
  pollfd entries[2] = {{command.get(), POLLIN, 0}, {held.get(), POLLIN, 0}};
  if (held && ::getppid() == holder) {
    while (::poll(entries, 2, -1) < 0 && errno == EINTR) {
    }
  }
  if (ended(command.get(), Deadline::in(Clock::duration::zero()))) return exit_ok;
  Error gone{ErrorCode::peer_failed, "hold the lease of " + name,
             fmt::format("the process that held it (pid {}) was killed: {} is ended", holder, name)};
  print_error("lease", gone);
  ::syscall(SYS_pidfd_send_signal, command.get(), SIGTERM, nullptr, 0);
  if (!ended(command.get(), Deadline::in(kGrace)))
    ::syscall(SYS_pidfd_send_signal, command.get(), SIGKILL, nullptr, 0);
  return exit_ok;
}

}  // namespace

// Not for people: see process_set.h and cmd_lease.cpp.
void add_guard(CLI::App& app, Cli& cli) {
  auto* command = app.add_subcommand("guard", "Remove a folder when its owner is gone")->group("");
  auto folder = std::make_shared<std::string>();
  command->add_option("folder", *folder)->required();
  command->callback([&cli, folder] {
    cli.command = "guard";
    cli.run = [folder] { return guard(*folder); };
  });

  auto* other =
      app.add_subcommand("guard-command", "End a command when its lease's holder is gone")->group("");
  auto holder = std::make_shared<pid_t>(0);
  auto name = std::make_shared<std::string>();
  other->add_option("--holder", *holder, "process id of the holder")->required();
  other->add_option("name", *name, "of the command")->required();
  other->callback([&cli, holder, name] {
    cli.command = "guard-command";
    cli.run = [holder, name] { return guard_command(*holder, *name); };
  });
}

}  // namespace cenote::pool::cli
