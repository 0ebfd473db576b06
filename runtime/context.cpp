#include "runtime/context.h"

namespace cenote {

Result<LogOptions> log_options(const Settings& settings, std::string component) {
  LogOptions options;
  CENOTE_ASSIGN(options.level, parse_log_level(settings.text("log.level")));
  options.format = settings.text("log.format") == "json" ? LogFormat::json : LogFormat::text;
  options.file = settings.text("log.file");
  options.component = std::move(component);
  return options;
}

Context::Context(Settings settings, std::unique_ptr<Logger> log)
    : settings_(std::move(settings)),
      log_(std::move(log)),
      ledger_(static_cast<std::uint32_t>(settings_.uinteger("ledger.slots"))) {}

Result<std::unique_ptr<Context>> Context::create(Settings settings, std::string component) {
  CENOTE_ASSIGN(const auto options, log_options(settings, std::move(component)));
  CENOTE_ASSIGN(auto log, Logger::create(options));
  return std::unique_ptr<Context>(new Context(std::move(settings), std::move(log)));
}

}  // namespace cenote
