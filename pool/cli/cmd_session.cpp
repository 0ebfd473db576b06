#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>

#include "pool/cli/cli.h"
#include "pool/client/pool_client.h"
#include "pool/dropin/helper_server.h"
#include "pool/dropin/helper_wire.h"

namespace cenote::pool::cli {

namespace {

// The program's settings and nothing else: its library has read file and environment as the program wants.
Result<std::unique_ptr<PoolClient>> client_for(const std::vector<std::string>& settings) {
  SettingSources sources;
  sources.environment.emplace();
  sources.overrides = settings;
  CENOTE_ASSIGN(const auto loaded, Settings::load(sources));
  return make_client(loaded);
}

Result<UniqueFd> programs_socket(pid_t program) {
  constexpr const char* kStage = "serve a program's leases";
  int type = 0;
  socklen_t size = sizeof type;
  if (::getppid() != program || ::getsockopt(dropin::helper_fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 ||
      type != SOCK_STREAM) {
    return fail(Error{ErrorCode::invalid_argument, kStage, "it was not started by that program"}.fix(
        "libcenote-pool starts it by itself; for a lease by hand: cenote lease --gpus N"));
  }
  return UniqueFd(dropin::helper_fd);
}

// The program reaps its child at once and has no other: the helper that stays is a child of the system.
Result<bool> stay_behind() {
  const auto child = ::fork();  // no thread has been started yet
  if (child < 0) return fail(system_error("leave the helper process behind", errno));
  if (child > 0) return false;
  ::setsid();
  return true;
}

Result<int> session(pid_t program) {
  CENOTE_ASSIGN(auto socket, programs_socket(program));
  UniqueFd watched(static_cast<int>(::syscall(SYS_pidfd_open, program, 0)));
  if (!watched) return fail(system_error("watch the program", errno));
  CENOTE_ASSIGN(const bool stays, stay_behind());
  if (!stays) return exit_ok;
  // It lives as long as its program does, which may have good reasons to outlive these.
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, SIG_IGN);
  if (::chdir("/") != 0) return fail(system_error("leave the program's folder", errno));
  CENOTE_TRY(dropin::serve_program(std::move(socket), std::move(watched), client_for));
  return exit_ok;
}

}  // namespace

void add_session(CLI::App& app, Cli& cli) {
  auto* command =
      app.add_subcommand("session", "Keep the leases of one program (libcenote-pool starts it by itself)");
  auto program = std::make_shared<pid_t>(0);
  command->add_option("--for", *program, "process id of the program, which started this process")->required();
  command->footer(
      "It talks to the program over descriptor 3, renews its leases, and gives them back when the program "
      "is\n"
      "gone, however it ended. Certificates, keys and gRPC stay in this process.");
  command->callback([&cli, program] {
    cli.command = "session";
    cli.run = [program] { return session(*program); };
  });
}

}  // namespace cenote::pool::cli
