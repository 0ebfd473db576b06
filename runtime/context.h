// Context: what a library or a program owns instead of global state: settings, log, metrics and the ledger.
// Two contexts in one process do not see each other. Thread-safe (its parts are); outlives whatever was made
// from it.
#pragma once

#include <memory>
#include <string>

#include "runtime/ledger.h"
#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/result.h"
#include "runtime/settings.h"

namespace cenote {

class Context {
 public:
  /// `component` names the program in its log ("broker", "agent a"). Errors: system_error (the log cannot be
  /// opened).
  static Result<std::unique_ptr<Context>> create(Settings settings, std::string component);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] const Settings& settings() const { return settings_; }
  [[nodiscard]] Logger& log() { return *log_; }
  [[nodiscard]] Metrics& metrics() { return metrics_; }
  [[nodiscard]] Ledger& ledger() { return ledger_; }

 private:
  Context(Settings settings, std::unique_ptr<Logger> log);
  Settings settings_;
  std::unique_ptr<Logger> log_;
  Metrics metrics_;
  Ledger ledger_;
};

/// What the settings say about the log.
Result<LogOptions> log_options(const Settings& settings, std::string component);

}  // namespace cenote
