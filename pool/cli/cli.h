// What every command shares: settings, errors, the process's ends. One command a file, cmd_<name>.cpp, each
// with one function that adds itself to the command line.
//
// Exit codes: 0 done, 1 failed at work (one line on stderr, a remedy below it), 2 wrong usage (an option, its
// value or a setting; nothing was done), 128 + signal when one ended it; `cenote lease -- CMD` ends with
// CMD's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/deadline.h"
#include "runtime/result.h"
#include "runtime/settings.h"

namespace CLI {
class App;
}
namespace cenote {
class Logger;
struct LogOptions;
namespace pool::client {
class PoolClient;
}
}  // namespace cenote

namespace cenote::pool::cli {

using namespace client;  // most of what commands speak of: leases, devices, the pool's state

inline constexpr int exit_ok = 0;
inline constexpr int exit_failed = 1;
inline constexpr int exit_usage = 2;

/// The options that stand before the command.
struct Globals {
  std::string config_file;
  std::vector<std::string> overrides;  ///< name=value
  std::string log_level;
};

/// One run of `cenote`. Commands read `globals` after parsing and leave their work in `run`.
struct Cli {
  Globals globals;
  std::string command;  ///< "lease": for errors
  std::function<Result<int>()> run;
  /// What a command demands of its settings beyond what the table does; may be empty. A setting that fails is
  /// wrong usage.
  std::function<Result<void>(const Settings&)> check;

  [[nodiscard]] Result<Settings> settings() const;
};

Result<LogOptions> log_options(const Settings& settings);
Result<std::unique_ptr<Logger>> make_logger(const Settings& settings, std::string component);

/// Whether a setting is an address to listen on, host:port. Errors: invalid_argument, with the setting's
/// name.
Result<void> check_listen(const Settings& settings, std::string_view name);

/// A client of the broker that the settings name.
Result<std::unique_ptr<PoolClient>> make_client(const Settings& settings);

/// "cenote lease: stage failed: cause", and the remedy on a second line.
void print_error(const std::string& command, const Error& error);

/// Writes all of `text` to standard output. Errors: system_error (a full disk is no success).
Result<void> print(std::string_view text);

void add_broker(CLI::App& app, Cli& cli);
void add_agent(CLI::App& app, Cli& cli);
void add_lease(CLI::App& app, Cli& cli);
void add_release(CLI::App& app, Cli& cli);
void add_leases(CLI::App& app, Cli& cli);
void add_top(CLI::App& app, Cli& cli);
void add_who_is_stuck(CLI::App& app, Cli& cli);
void add_doctor(CLI::App& app, Cli& cli);
void add_config(CLI::App& app, Cli& cli);
void add_demo(CLI::App& app, Cli& cli);
void add_demo_client(CLI::App& app, Cli& cli);
void add_version(CLI::App& app, Cli& cli);
void add_completion(CLI::App& app, Cli& cli);
void add_worker(CLI::App& app, Cli& cli);
void add_guard(CLI::App& app, Cli& cli);
void add_session(CLI::App& app, Cli& cli);

}  // namespace cenote::pool::cli
