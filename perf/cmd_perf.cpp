#include "perf/cmd_perf.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "perf/flags.h"
#include "perf/local_end.h"
#include "perf/tools/ends.h"
#include "pool/cli/cli.h"
#include "pool/cli/interrupt.h"
#include "runtime/log.h"

namespace cenote::perf {
namespace {

using pool::cli::Cli;
using pool::cli::Interrupt;

constexpr auto call_patience = std::chrono::seconds(10);

void tell(const Cli& cli, const std::string& text) {
  const auto line = fmt::format("cenote {}: {}\n", cli.command, text);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

Result<void> print_nothing(std::string_view /*text*/) { return {}; }

Result<Request> request_of(const Cli& cli, const Tool& tool, const Flags& flags) {
  Request request;
  request.setup.tool = &tool;
  CENOTE_ASSIGN(const auto settings, cli.settings());
  request.setup.fabric = transport::fabric_options(settings);
  if (!flags.receives.empty())
    request.setup.fabric.verbs.receives = static_cast<std::uint32_t>(std::stoul(flags.receives));
  CENOTE_ASSIGN(const auto host, settings.entry("tcp.host"));
  request.setup.host_given = host.source != "default";
  request.setup.memory = flags.use_cuda >= 0 ? fmt::format("cuda:{}", flags.use_cuda) : flags.memory;
  request.setup.silence =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(flags.timeout));
  CENOTE_ASSIGN(request.work, work_of(tool, flags));
  request.show = show_of(flags);
  return request;
}

/// Everything that is wrong with what was typed, before anything is done.
Result<void> check_usage(const Tool& tool, const Flags& flags, const Request& request) {
  if (flags.local && !flags.host.empty())
    return fail(Error{ErrorCode::invalid_argument, "read command line",
                      fmt::format("--local: it starts both ends here, and {} is named too", flags.host)}
                    .fix("leave one of them out"));
  return check(tool, request.work, request.show);
}

/// Where a file cannot be written is said before anything is measured. And a device that is not there, not
/// only when somebody calls; who calls learns it then.
Result<void> check_machine(const Flags& flags, const Request& request) {
  if (flags.host.empty()) CENOTE_TRY(transport::Fabric::create(request.setup.fabric));
  for (const auto& path : {request.show.json_file, request.show.plot_file}) {
    if (!path.empty()) CENOTE_TRY(can_write(path));
  }
  return {};
}

Result<void> as_local(const Cli& cli, const Flags& flags, const Request& request,
                      const Interrupt& interrupt) {
  std::vector<std::string> words{"--memory", request.setup.memory, "--timeout",
                                 fmt::format("{}", flags.timeout)};
  if (!flags.receives.empty()) words.insert(words.end(), {"--rx-depth", flags.receives});
  CENOTE_ASSIGN(auto end, LocalEnd::start(cli.globals, std::string(request.setup.tool->name), words));
  auto ran = run_client(request, end.take_socket(), end.name(), interrupt.flag(), pool::cli::print);
  if (!ran) return fail(end.lost(std::move(ran).error()));
  return request.work.forever ? Result<void>() : end.finish();
}

Result<void> as_client(const Flags& flags, const Request& request, const Interrupt& interrupt) {
  const SocketAddress server{flags.host, flags.port};
  CENOTE_ASSIGN(auto socket, call(server, Deadline::in(call_patience), interrupt.flag()));
  return run_client(request, std::move(socket), server.text(), interrupt.flag(), pool::cli::print);
}

/// One test, with the first that calls and is one of us: the port is open to everybody.
Result<void> as_server(const Cli& cli, const Flags& flags, const Request& request,
                       const Interrupt& interrupt) {
  CENOTE_ASSIGN(const auto listener, Listener::open({flags.bind, flags.port}));
  tell(cli, fmt::format("waiting for the client on {}", listener.address().text()));
  while (true) {
    std::string peer;
    CENOTE_ASSIGN(auto socket, listener.accept(peer, interrupt.flag()));
    auto ran = run_server(request, std::move(socket), peer, interrupt.flag(), pool::cli::print);
    const bool stranger = !ran && ran.error().stage == greeting_stage && !interrupt.flag().raised() &&
                          ran.error().code != ErrorCode::invalid_argument &&
                          ran.error().code != ErrorCode::not_supported;
    if (!stranger) return ran;
    tell(cli, ran.error().message() + "; still waiting");
  }
}

Result<void> run_end(const Cli& cli, const Flags& flags, Request request, const Interrupt& interrupt) {
  if (flags.control_fd >= 0) {
    request.show = Show{.quiet = true};
    return run_server(request, UniqueFd(flags.control_fd), "the client here", interrupt.flag(),
                      print_nothing);
  }
  CENOTE_TRY(check_machine(flags, request));
  for (const auto& note : flags.without_effect) tell(cli, note);
  if (flags.local) return as_local(cli, flags, request, interrupt);
  return flags.host.empty() ? as_server(cli, flags, request, interrupt)
                            : as_client(flags, request, interrupt);
}

Result<int> perf(const Cli& cli, const Tool& tool, const Flags& flags) {
  CENOTE_ASSIGN(auto request, request_of(cli, tool, flags));
  if (auto right = check_usage(tool, flags, request); !right) {
    auto error = std::move(right).error();
    if (error.remedy.empty()) error.remedy = fmt::format("see: cenote {} --help", cli.command);
    pool::cli::print_error(cli.command, error);
    return pool::cli::exit_usage;
  }
  CENOTE_ASSIGN(const auto settings, cli.settings());
  CENOTE_ASSIGN(const auto log, pool::cli::make_logger(settings, cli.command));
  request.setup.fabric.verbs.log = log.get();  // what was chosen for each rail, at level debug
  CENOTE_ASSIGN(const auto interrupt, Interrupt::create());
  const auto ran = run_end(cli, flags, request, *interrupt);
  if (!ran && interrupt->signal() != 0) return pool::cli::interrupted(cli.command, *interrupt);
  if (!ran) return fail(ran.error());
  return pool::cli::exit_ok;
}

void add_tool(CLI::App& parent, Cli& cli, const Tool& tool) {
  auto* command = parent.add_subcommand(std::string(tool.name), std::string(tool.about));
  auto flags = std::make_shared<Flags>();
  add_flags(*command, tool, *flags);
  command->footer(
      fmt::format("On the one host, then on the other:\n"
                  "  cenote perf {0}\n"
                  "  cenote perf {0} HOST\n"
                  "On one host: cenote perf {0} --local\n"
                  "Letters are those of perftest; -t is its depth, so the transport has only a long name. "
                  "Flags that have\n"
                  "no meaning here are named when they are used. docs/perf.md says how each figure is made.",
                  tool.name));
  command->callback([&cli, &tool, flags] {
    cli.command = fmt::format("perf {}", tool.name);
    auto overrides = overrides_of(*flags);
    for (const auto& setting : overrides ? *overrides : std::vector<std::string>())
      cli.globals.overrides.push_back(setting);
    cli.run = [&cli, &tool, flags,
               wrong = overrides ? std::optional<Error>() : overrides.error()]() -> Result<int> {
      if (!wrong) return perf(cli, tool, *flags);
      pool::cli::print_error(cli.command, *wrong);
      return pool::cli::exit_usage;
    };
  });
}

}  // namespace

void add_perf(CLI::App& app, Cli& cli) {
  auto* command =
      app.add_subcommand("perf", "Measure bandwidth and latency between two hosts, or on this one");
  command->require_subcommand(1);
  command->footer("Example:\n  cenote perf write_bw --local --all --plot write_bw.svg");
  for (const Tool* tool : all_tools()) add_tool(*command, cli, *tool);
}

}  // namespace cenote::perf
