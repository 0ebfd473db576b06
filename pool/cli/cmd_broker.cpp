#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "pool/broker/server.h"
#include "pool/cli/cli.h"
#include "pool/cli/interrupt.h"
#include "pool/cli/ready.h"
#include "pool/client/identity.h"
#include "pool/tls/certificates.h"
#include "runtime/log.h"

namespace cenote::pool::cli {

namespace {

namespace fs = std::filesystem;

struct Options {
  bool init_tls = false;
  std::vector<std::string> agents, clients;
  std::string name = "main";
  int ready_fd = -1;
};

std::string user_name() {
  passwd entry{}, *found = nullptr;
  char buffer[4096];
  if (::getpwuid_r(::getuid(), &entry, buffer, sizeof buffer, &found) == 0 && found != nullptr)
    return entry.pw_name;
  return "user";
}

std::int64_t ms(Clock::duration span) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(span).count();
}

constexpr auto kAbsence = std::chrono::seconds(3);  // longer than a busy machine keeps a thread waiting

BrokerPolicy read_policy(const Settings& settings) {
  BrokerPolicy policy;
  policy.heartbeat_ms = ms(settings.duration("broker.heartbeat"));
  policy.agent_timeout_ms = ms(settings.duration("broker.agent_timeout"));
  policy.agent_dead_ms = ms(settings.duration("broker.agent_dead"));
  policy.grace_ms = ms(settings.duration("broker.grace"));
  policy.absence_ms = ms(kAbsence);
  policy.drift_ms = ms(settings.duration("broker.clock_drift"));
  policy.default_ttl_ms = ms(settings.duration("broker.lease_ttl"));
  policy.max_ttl_ms = ms(settings.duration("broker.max_ttl"));
  return policy;
}

// Issues the certificates asked for and says which machine needs which files. An authority that is there is
// used again: agents can be added one by one.
Result<int> init_tls(const Settings& settings, const Options& options) {
  const fs::path dir(settings.text("tls.dir"));
  if (dir.empty()) {
    return fail(Error{ErrorCode::invalid_argument, "make certificates", "setting tls.dir is empty"}.fix(
        "say where: cenote --set tls.dir=DIR broker --init-tls"));
  }
  std::error_code ignored;
  const bool fresh = !fs::exists(dir / "ca.pem", ignored);
  if (fresh) {
    CENOTE_TRY(tls::create_authority(dir));
  }
  std::string out = fmt::format("{} authority {}\n", fresh ? "made" : "used", (dir / "ca.pem").string());
  const auto issue = [&](const std::string& name, tls::Role role, std::string_view where) -> Result<void> {
    CENOTE_ASSIGN(const auto files, tls::issue(dir, name, role));
    out += fmt::format("  {:<6} {:<16} {} {} {}  -> tls.dir {}\n", tls::to_string(role), name,
                       files.authority.string(), files.certificate.string(), files.key.string(), where);
    return {};
  };
  if (!fs::exists(tls::files_of(dir, options.name, tls::Role::broker).certificate, ignored)) {
    CENOTE_TRY(issue(options.name, tls::Role::broker, "of the broker's machine"));
  }
  for (const auto& name : options.agents) {
    CENOTE_TRY(issue(name, tls::Role::agent, "of that agent's machine"));
  }
  auto clients = options.clients;
  if (fresh && clients.empty()) clients.push_back(user_name());
  for (const auto& name : clients) {
    CENOTE_TRY(issue(name, tls::Role::client, "of that user"));
  }
  out += fmt::format("keep {} here: whoever has it can join the pool\n", (dir / "ca.key").string());
  CENOTE_TRY(print(out));
  return exit_ok;
}

Result<int> broker(const Cli& cli, const Options& options) {
  CENOTE_ASSIGN(const auto interrupt, Interrupt::create());
  CENOTE_ASSIGN(const auto settings, cli.settings());
  if (options.init_tls) return init_tls(settings, options);
  BrokerServerOptions server;
  server.listen = settings.text("broker.listen");
  server.state_dir = settings.text("broker.state_dir");
  if (server.state_dir.empty()) {
    return fail(Error{ErrorCode::invalid_argument, "start broker", "setting broker.state_dir is empty"}.fix(
        "say where the log of leases shall live: --set broker.state_dir=DIR"));
  }
  CENOTE_ASSIGN(server.certificate, find_certificate(settings, tls::Role::broker, {}));
  server.policy = read_policy(settings);
  server.metrics = settings.text("broker.metrics");
  CENOTE_ASSIGN(const auto log, make_logger(settings, "broker"));
  // A start that fails is one clear line: the lines of a start come when it has succeeded.
  CENOTE_ASSIGN(const auto level, parse_log_level(settings.text("log.level")));
  log->set_level(std::min(level, LogLevel::warn));
  CENOTE_ASSIGN(const auto running, BrokerServer::start(server, *log));
  log->set_level(level);
  log->info("listening on {}", running->endpoint());
  if (const auto metrics = running->metrics_address(); !metrics.empty())
    log->info("metrics at http://{}/metrics", metrics);
  CENOTE_TRY(tell_ready(options.ready_fd, running->endpoint()));
  static_cast<void>(interrupt->wait(Deadline::never()));
  log->info("signal {}: stopping; leases in force go on", interrupt->signal());
  running->stop();
  return exit_ok;
}

}  // namespace

void add_broker(CLI::App& app, Cli& cli) {
  auto* command = app.add_subcommand("broker", "Run the broker, or make the pool's certificates");
  auto options = std::make_shared<Options>();
  command->add_flag("--init-tls", options->init_tls, "make authority and certificates in tls.dir, and end");
  command->add_option("--agent", options->agents, "with --init-tls: a certificate for this agent")
      ->allow_extra_args(false);
  command
      ->add_option("--client", options->clients,
                   "with --init-tls: a certificate for this client (default: you)")
      ->allow_extra_args(false);
  command->add_option("--name", options->name, "with --init-tls: name of the broker")->capture_default_str();
  command
      ->add_option("--ready-fd", options->ready_fd, "write the endpoint to this descriptor once it listens")
      ->group("");
  command->footer(
      "Examples:\n"
      "  cenote --set tls.dir=/etc/cenote/tls broker --init-tls --agent node1 --agent node2 --client alice\n"
      "  cenote --set tls.dir=/etc/cenote/tls --set broker.state_dir=/var/lib/cenote \\\n"
      "         --set broker.listen=0.0.0.0:4700 broker\n"
      "See `cenote config --explain` for the settings broker.*.");
  command->callback([&cli, options] {
    cli.command = "broker";
    cli.check = [](const Settings& settings) { return check_listen(settings, "broker.listen"); };
    cli.run = [&cli, options] { return broker(cli, *options); };
  });
}

}  // namespace cenote::pool::cli
