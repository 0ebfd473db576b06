#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <thread>

#include "pool/cli/agent_watch.h"
#include "pool/cli/checks.h"
#include "pool/cli/child_process.h"
#include "pool/cli/cli.h"
#include "pool/cli/interrupt.h"
#include "pool/cli/output.h"
#include "pool/client/lease_file.h"
#include "pool/client/pool_client.h"
#include "pool/dropin/session.h"
#include "runtime/process.h"

namespace cenote::pool::cli {

namespace {

constexpr std::uint32_t kMostGpus = 16'384;  // of one lease: kMaxSharesPerLease of the broker's state

struct Options {
  std::uint32_t gpus = 1;
  std::string model, memory, ttl, note;
  double timeout = 10.0;
  bool detach = false, json = false, wait = false;
  std::vector<std::string> command;
  [[nodiscard]] Clock::duration patience() const {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout));
  }
};

Result<LeaseSpec> read_spec(const Options& options) {
  LeaseSpec spec;
  spec.gpus = options.gpus;
  spec.model = options.model;
  spec.note = options.note;
  if (options.wait) spec.wait = options.patience();
  if (!options.memory.empty()) {
    CENOTE_ASSIGN(spec.memory_bytes, parse_size(options.memory));
  }
  if (!options.ttl.empty()) {
    CENOTE_ASSIGN(spec.ttl, parse_duration(options.ttl));
  }
  return spec;
}

// The lease file in memory, for CMD and its children: nothing is left behind, and only this user can open it.
Result<UniqueFd> lease_in_memory(const LeaseFile& file) {
  UniqueFd fd(::memfd_create("cenote-lease", MFD_CLOEXEC));
  if (!fd) return fail(system_error("make the lease file for the command", errno));
  const auto text = encode_lease_file(file);
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return fail(system_error("write the lease file for the command", errno));
  }
  return fd;
}

// Where the drop-in libraries stand beside this program; empty = they were not installed with it.
std::string dropin_folder() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const auto lib = program.parent_path().parent_path() / "lib";
  for (const auto& folder : {lib / "dropin", lib / "cenote"}) {
    if (std::filesystem::exists(folder / "libcuda.so.1", error)) return folder.string();
  }
  return {};
}

// What a CUDA program inside the command finds: libcuda.so.1 and libcudart.so.13 that ask the session for
// GPUs.
void offer_dropins(ChildOptions& options, const std::string& session) {
  options.environment[Settings::environment_name("session.socket")] = session;
  if (const auto folder = dropin_folder(); !folder.empty()) options.path_front["LD_LIBRARY_PATH"] = folder;
}

// A process that ends the command should this one be killed: SIGKILL leaves no time to do it here.
Result<ChildProcess> guard_command(const ChildProcess& child, const std::string& name) {
  // Whoever reads the command's output waits for the command's end, not for the guard's.
  const UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (!nowhere) return fail(system_error("open /dev/null", errno));
  ChildOptions options;
  options.command = {"/proc/self/exe", "guard-command", "--holder", std::to_string(::getpid()), "--", name};
  options.output = nowhere.get();
  options.pass = child.fd();
  return ChildProcess::start(options);
}

void tell(const std::string& line) {
  const auto text = "cenote lease: " + line + "\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

// Until the command ends; a signal to us is passed on to it, and the loss of the lease ends it.
Result<int> run_command(PoolClient& client, Lease& lease, Interrupt& interrupt,
                        const std::vector<std::string>& command) {
  CENOTE_ASSIGN(const auto file, lease_in_memory(lease.file()));
  ChildOptions options;
  options.command = command;
  options.own_group = false;
  options.environment[Settings::environment_name("client.lease_file")] =
      fmt::format("/proc/{}/fd/{}", ::getpid(), file.get());
  std::array<std::uint8_t, 16> random{};
  CENOTE_TRY(random_bytes(random));
  const auto address = "@cenote-session-" + to_hex(random);
  CENOTE_ASSIGN(const auto session,
                dropin::SessionServer::start(address, [&](auto fabric, const CancelFlag& ended) {
                  return lease.open_workers(fabric, Deadline::in(std::chrono::seconds(10)), &ended);
                }));
  offer_dropins(options, address);
  CENOTE_ASSIGN(auto child, ChildProcess::start(options));
  CENOTE_ASSIGN(const auto guard, guard_command(child, command.front()));
  const AgentWatch watch(client, lease.info(), tell);
  pollfd fds[2] = {{child.fd(), POLLIN, 0}, {interrupt.fd(), POLLIN, 0}};
  while (::poll(fds, 2, -1) < 0 && errno == EINTR) {
  }
  if (child.running()) {
    child.signal(lease.lost() ? SIGTERM : interrupt.signal());
    if (!child.wait(Deadline::in(std::chrono::seconds(10)))) child.end(std::chrono::seconds(1));
  }
  if (const auto lost = lease.lost()) return fail(*lost);
  return ChildProcess::exit_code(child.wait(Deadline::never()).value_or(0));
}

Result<int> hold(Lease& lease, Interrupt& interrupt) {
  static_cast<void>(interrupt.wait(Deadline::never()));
  if (const auto lost = lease.lost()) return fail(*lost);
  return exit_ok;
}

Result<void> announce(const Lease& lease, const Options& options, Clock::duration took) {
  const auto info = lease.info();
  if (options.json) return print(lease_json(info));
  const auto ms = std::chrono::duration<double, std::milli>(took).count();
  return print(fmt::format("lease {}: {}, granted in {:.1f} ms{}{}\n{}", info.id,
                           count_text(info.devices.size(), "GPU"), ms, lease.reason().empty() ? "" : ": ",
                           lease.reason(), device_table(info)));
}

Result<int> lease_command(const Cli& cli, const Options& options) {
  CENOTE_ASSIGN(const auto interrupt, Interrupt::create());
  CENOTE_ASSIGN(const auto spec, read_spec(options));
  CENOTE_ASSIGN(const auto settings, cli.settings());
  CENOTE_ASSIGN(const auto client, make_client(settings));
  const auto begun = Clock::now();
  auto granted = client->lease(spec, Deadline::in(options.patience()), &interrupt->flag());
  if (!granted && interrupt->signal() != 0) return interrupted("lease", *interrupt);
  CENOTE_ASSIGN(const auto lease, std::move(granted));
  const auto took = Clock::now() - begun;
  if (options.detach) {
    // Nobody renews it from here on: it lives for its ttl, or until `cenote release`.
    CENOTE_TRY(print(encode_lease_file(lease->file())));
    return exit_ok;
  }
  lease->on_loss([&](const Error&) { interrupt->raise(); });
  Result<int> result = exit_ok;
  if (options.command.empty()) {
    const auto announced = announce(*lease, options, took);
    result = announced ? hold(*lease, *interrupt) : Result<int>(fail(announced.error()));
  } else {
    result = run_command(*client, *lease, *interrupt, options.command);
  }
  if (!lease->lost()) {
    const auto released = lease->release(Deadline::in(std::chrono::seconds(5)));
    // The command did its work all the same: its exit code stands, and the lease ends with its ttl.
    if (!released && !options.command.empty()) print_error("lease", released.error());
    if (!released && options.command.empty() && result) return fail(released.error());
  }
  return result;
}

}  // namespace

void add_lease(CLI::App& app, Cli& cli) {
  auto* command =
      app.add_subcommand("lease", "Lease GPUs, and hold them until Ctrl-C or while a command runs");
  auto options = std::make_shared<Options>();
  command->add_option("--gpus", options->gpus, "how many")
      ->capture_default_str()
      ->check(CLI::Range(1U, kMostGpus));
  command->add_option("--model", options->model, "only this model (default: any)");
  command->add_option("--mem", options->memory, "memory of each, as in 40GiB (default: whole devices)")
      ->check(is_size());
  command
      ->add_option("--ttl", options->ttl,
                   "how long it lives without renewal, as in 30s (default: the broker's)")
      ->check(is_duration(std::chrono::seconds(1)));
  command->add_option("--note", options->note, "shown in listings");
  command
      ->add_option("--timeout", options->timeout, "seconds to wait for the broker, and with --wait for GPUs")
      ->capture_default_str()
      ->check(is_wait());
  command->add_flag("--wait", options->wait, "while all are taken, ask again until --timeout");
  command->add_flag("--detach", options->detach, "print a lease file and end; the lease lives for its ttl");
  command->add_flag("--json", options->json, "print the lease as JSON");
  command->add_option("command", options->command,
                      "after --: hold the lease while this runs, end with its exit code");
  command->footer(
      "A CUDA program (driver API, or built with nvcc -cudart shared) finds the leased GPUs as its own.\n"
      "Other commands find their lease file by the setting client.lease_file (CENOTE_CLIENT_LEASE_FILE).\n"
      "Examples:\n"
      "  cenote lease --gpus 4 --model H200 --mem 40GiB\n"
      "  cenote lease --gpus 2 --note 'night run' -- python3 train.py --epochs 9\n"
      "  umask 077; cenote lease --gpus 1 --ttl 8h --detach > lease.json");
  command->callback([&cli, options] {
    cli.command = "lease";
    cli.run = [&cli, options] { return lease_command(cli, *options); };
  });
}

}  // namespace cenote::pool::cli
