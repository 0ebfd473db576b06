// Logger: lines of text for people, or one JSON object a line for machines. Owned by a context; no registry,
// no default logger.
//
// Levels by volume: error and warn are about this run; info, a handful of lines for each start, lease or
// communicator; debug, in proportion to objects (connections, regions); trace, to operations. Messages are
// lower case, fields are "name value" without '=', so that a double click selects the value.
//
// Each line of the JSON format is one valid object, whatever bytes a message holds.
// Thread-safe. A line that cannot be written (disk full) is dropped and counted, never reported by throwing.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/result.h"

namespace cenote {

enum class LogLevel : std::uint8_t { error, warn, info, debug, trace };
enum class LogFormat : std::uint8_t { text, json };

std::string_view to_string(LogLevel level);
Result<LogLevel> parse_log_level(std::string_view text);

struct LogField {
  std::string_view name;
  std::string value;
};

struct LogOptions {
  LogLevel level = LogLevel::info;
  LogFormat format = LogFormat::text;
  std::string file{};       ///< appended to; empty = standard error
  std::string component{};  ///< "broker", "agent a": in every line
  std::function<void(std::string_view line)>
      sink{};  ///< takes the lines instead of `file`; one call at a time
};

class Logger {
 public:
  /// Errors: system_error (the file cannot be opened).
  static Result<std::unique_ptr<Logger>> create(const LogOptions& options);
  /// A logger that drops everything.
  static std::unique_ptr<Logger> silent();
  ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  [[nodiscard]] bool enabled(LogLevel level) const;
  void set_level(LogLevel level);
  /// Lines that could not be written.
  [[nodiscard]] std::uint64_t dropped() const;

  void write(LogLevel level, std::string_view message, std::span<const LogField> fields = {});
  void write(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
    write(level, message, std::span<const LogField>(fields.begin(), fields.size()));
  }
  /// An Error with its parts as fields: printed once, where it is first seen.
  void write(LogLevel level, const Error& error);

  /// `log.info("lease {} granted to {}", id, client)`; the arguments are not formatted when the level is off.
  template <class... Args>
  void error(fmt::format_string<Args...> text, Args&&... args) {
    formatted(LogLevel::error, text, args...);
  }
  template <class... Args>
  void warn(fmt::format_string<Args...> text, Args&&... args) {
    formatted(LogLevel::warn, text, args...);
  }
  template <class... Args>
  void info(fmt::format_string<Args...> text, Args&&... args) {
    formatted(LogLevel::info, text, args...);
  }
  template <class... Args>
  void debug(fmt::format_string<Args...> text, Args&&... args) {
    formatted(LogLevel::debug, text, args...);
  }
  template <class... Args>
  void trace(fmt::format_string<Args...> text, Args&&... args) {
    formatted(LogLevel::trace, text, args...);
  }

 private:
  struct Sink;
  explicit Logger(std::unique_ptr<Sink> sink);

  template <class... Args>
  void formatted(LogLevel level, fmt::string_view text, Args&... args) {
    if (enabled(level)) write_formatted(level, text, fmt::make_format_args(args...));
  }
  void write_formatted(LogLevel level, fmt::string_view text, fmt::format_args args);

  std::unique_ptr<Sink> sink_;
};

}  // namespace cenote
