#include "pool/cli/cli.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "pool/client/identity.h"
#include "pool/client/pool_client.h"
#include "runtime/log.h"
#include "runtime/tcp_socket.h"

namespace cenote::pool::cli {

Result<Settings> Cli::settings() const {
  SettingSources sources;
  sources.file = globals.config_file;
  sources.overrides = globals.overrides;
  if (!globals.log_level.empty()) sources.overrides.push_back("log.level=" + globals.log_level);
  return Settings::load(sources);
}

Result<LogOptions> log_options(const Settings& settings) {
  LogOptions options;
  CENOTE_ASSIGN(options.level, parse_log_level(settings.text("log.level")));
  options.format = settings.text("log.format") == "json" ? LogFormat::json : LogFormat::text;
  options.file = settings.text("log.file");
  return options;
}

Result<std::unique_ptr<Logger>> make_logger(const Settings& settings, std::string component) {
  CENOTE_ASSIGN(auto options, log_options(settings));
  options.component = std::move(component);
  return Logger::create(options);
}

Result<void> check_listen(const Settings& settings, std::string_view name) {
  CENOTE_ASSIGN(const auto entry, settings.entry(name));
  const auto address = SocketAddress::parse(entry.value);
  if (address) return {};
  return fail(Error{ErrorCode::invalid_argument, "read settings",
                    fmt::format("{}: {}: {}", entry.source, name, address.error().cause)}
                  .fix("write host:port, as in 127.0.0.1:4700; port 0 is any free one"));
}

Result<std::unique_ptr<PoolClient>> make_client(const Settings& settings) {
  ClientOptions options;
  options.broker = settings.text("broker.address");
  CENOTE_ASSIGN(options.credentials,
                load_credentials(settings, tls::Role::client, settings.text("client.name")));
  options.fabric = transport::fabric_options(settings);
  options.worker_timeout = settings.duration("worker.timeout");
  return PoolClient::connect(std::move(options));
}

void print_error(const std::string& command, const Error& error) {
  const auto text = fmt::format("cenote{}{}: {}\n", command.empty() ? "" : " ", command, error.message());
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

Result<void> print(std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail(system_error("write to standard output", errno));
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

}  // namespace cenote::pool::cli
