#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>

#include "pool/agent/agent.h"
#include "pool/agent/local_driver.h"
#include "pool/cli/cli.h"
#include "pool/cli/interrupt.h"
#include "pool/cli/ready.h"
#include "pool/client/identity.h"
#include "runtime/log.h"

namespace cenote::pool::cli {

namespace {

struct Options {
  std::string name;
  int ready_fd = -1;
};

// The name that the certificate proves is the only one clients would accept.
Result<agent::AgentOptions> read_options(const Settings& settings, std::string name) {
  if (name.empty()) name = settings.text("agent.name");
  agent::AgentOptions options;
  CENOTE_ASSIGN(options.credentials, load_credentials(settings, tls::Role::agent, name));
  options.name = options.credentials.identity.name;
  options.listen = settings.text("agent.listen");
  options.advertise = settings.text("agent.advertise");
  options.broker = settings.text("broker.address");
  options.metrics = settings.text("agent.metrics");
  options.devices = settings.list("agent.devices");
  options.fabric = transport::fabric_options(settings);
  options.collectives = {settings.text("collective.algorithm"), settings.duration("collective.timeout")};
  CENOTE_ASSIGN(options.log, log_options(settings));
  options.cage = agent::cage_options(settings);
  options.worker_timeout = settings.duration("worker.timeout");
  options.emulator_seed = settings.uinteger("emulator.seed");
  options.emulator_adversarial = settings.boolean("emulator.adversarial");
  options.clock_drift_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(settings.duration("broker.clock_drift")).count();
  return options;
}

Result<void> check_settings(const Settings& settings) {
  CENOTE_TRY(check_listen(settings, "agent.listen"));
  return agent::parse_devices(settings.list("agent.devices"), {}).map([](const auto&) {});
}

Result<int> agent_command(const Cli& cli, const Options& options) {
  CENOTE_ASSIGN(const auto interrupt, Interrupt::create());
  CENOTE_ASSIGN(const auto settings, cli.settings());
  CENOTE_ASSIGN(auto agent_options, read_options(settings, options.name));
  CENOTE_ASSIGN(const auto log, make_logger(settings, "agent " + agent_options.name));
  CENOTE_ASSIGN(const auto agent, agent::Agent::start(std::move(agent_options), *log));
  log->info("listening on {} with {} devices", agent->endpoint(), agent->devices().size());
  if (const auto metrics = agent->metrics_address(); !metrics.empty())
    log->info("metrics at http://{}/metrics", metrics);
  CENOTE_TRY(tell_ready(options.ready_fd, agent->endpoint()));
  static_cast<void>(interrupt->wait(Deadline::never()));
  log->info("signal {}: ending workers", interrupt->signal());
  agent->stop(Deadline::in(std::chrono::seconds(5)));
  return exit_ok;
}

}  // namespace

void add_agent(CLI::App& app, Cli& cli) {
  auto* command = app.add_subcommand("agent", "Offer this machine's GPUs to the pool");
  auto options = std::make_shared<Options>();
  command->add_option("--name", options->name,
                      "which agent of tls.dir this is (default: setting agent.name)");
  command
      ->add_option("--ready-fd", options->ready_fd, "write the endpoint to this descriptor once it listens")
      ->group("");
  command->footer(
      "Examples:\n"
      "  cenote --set broker.address=head:4700 --set tls.dir=/etc/cenote agent\n"
      "  cenote --set agent.devices=emulated:H200:1GiB,emulated:A100:512MiB --set tls.dir=tls agent --name "
      "a\n"
      "See `cenote config --explain` for the settings agent.*, tls.dir, broker.address and transports.");
  command->callback([&cli, options] {
    cli.command = "agent";
    cli.check = check_settings;
    cli.run = [&cli, options] { return agent_command(cli, *options); };
  });
}

}  // namespace cenote::pool::cli
