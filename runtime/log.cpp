#include "runtime/log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <mutex>

namespace cenote {
namespace {

/// Hands each finished line to a function.
class FunctionSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FunctionSink(std::function<void(std::string_view)> function) : function_(std::move(function)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    function_({message.payload.data(), message.payload.size()});
  }
  void flush_() override {}
  std::function<void(std::string_view)> function_;
};

std::string now_text() {
  const auto now = std::chrono::system_clock::now();
  const auto seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, ms);
}

/// Bytes of the well-formed UTF-8 sequence that `text` begins with (RFC 3629); 0: there is none.
std::size_t utf8_sequence(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool surrogate = first == 0xed && byte(1) >= 0xa0;
  const bool beyond = first == 0xf4 && byte(1) >= 0x90;
  return overlong || surrogate || beyond ? 0 : length;
}

/// JSON is UTF-8 throughout: a byte that belongs to no character becomes U+FFFD.
void append_json(std::string& out, std::string_view text) {
  out += '"';
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (static_cast<unsigned char>(c) >= 0x80) {
      const auto length = utf8_sequence(text.substr(i));
      out += length == 0 ? std::string_view("\\ufffd") : text.substr(i, length);
      i += length == 0 ? 0 : length - 1;
      continue;
    }
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

/// Later lines of a text message are indented, so that every line that starts at the margin is a new message.
void append_text(std::string& out, std::string_view text) {
  for (const char c : text) {
    if (c == '\n') {
      out += "\n    ";
    } else if (static_cast<unsigned char>(c) < 0x20 && c != '\t') {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
}

std::string text_line(LogLevel level, std::string_view component, std::string_view message,
                      std::span<const LogField> fields) {
  auto line = fmt::format("{} {:<5} ", now_text(), to_string(level));
  if (!component.empty()) line += fmt::format("[{}] ", component);
  append_text(line, message);
  for (const auto& field : fields) {
    line += fmt::format(" {} ", field.name);
    append_text(line, field.value);
  }
  return line;
}

std::string json_line(LogLevel level, std::string_view component, std::string_view message,
                      std::span<const LogField> fields) {
  auto line = fmt::format(R"({{"time":"{}","level":"{}")", now_text(), to_string(level));
  auto add = [&line](std::string_view name, std::string_view value) {
    line += ',';
    append_json(line, name);
    line += ':';
    append_json(line, value);
  };
  if (!component.empty()) add("component", component);
  add("message", message);
  for (const auto& field : fields) add(field.name, field.value);
  return line + '}';
}

}  // namespace

struct Logger::Sink {
  std::atomic<LogLevel> level{LogLevel::info};
  std::atomic<std::uint64_t> dropped{0};
  LogFormat format = LogFormat::text;
  std::string component;
  std::unique_ptr<spdlog::logger> out;  ///< null = silent
};

Logger::Logger(std::unique_ptr<Sink> sink) : sink_(std::move(sink)) {}
Logger::~Logger() = default;

Result<std::unique_ptr<Logger>> Logger::create(const LogOptions& options) {
  auto sink = std::make_unique<Sink>();
  sink->level = options.level;
  sink->format = options.format;
  sink->component = options.component;
  try {
    spdlog::sink_ptr target;
    if (options.sink) {
      target = std::make_shared<FunctionSink>(options.sink);
    } else if (options.file.empty()) {
      target = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    } else {
      target = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file);
    }
    sink->out = std::make_unique<spdlog::logger>(options.component, std::move(target));
  } catch (const spdlog::spdlog_ex& error) {
    return fail(ErrorCode::system_error, "open log file " + options.file, error.what());
  }
  sink->out->set_formatter(std::make_unique<spdlog::pattern_formatter>("%v"));
  sink->out->set_level(spdlog::level::trace);  // the level is ours; spdlog only carries the lines
  sink->out->flush_on(spdlog::level::trace);
  sink->out->set_error_handler([counter = &sink->dropped](const std::string&) { ++*counter; });
  return std::unique_ptr<Logger>(new Logger(std::move(sink)));
}

std::unique_ptr<Logger> Logger::silent() {
  return std::unique_ptr<Logger>(new Logger(std::make_unique<Sink>()));
}

bool Logger::enabled(LogLevel level) const {
  return sink_->out != nullptr && level <= sink_->level.load(std::memory_order_relaxed);
}
void Logger::set_level(LogLevel level) { sink_->level.store(level, std::memory_order_relaxed); }
std::uint64_t Logger::dropped() const { return sink_->dropped.load(std::memory_order_relaxed); }

void Logger::write(LogLevel level, std::string_view message, std::span<const LogField> fields) {
  if (!enabled(level)) return;
  const auto line = sink_->format == LogFormat::json ? json_line(level, sink_->component, message, fields)
                                                     : text_line(level, sink_->component, message, fields);
  sink_->out->log(spdlog::level::info, spdlog::string_view_t(line));
}

void Logger::write(LogLevel level, const Error& error) {
  if (!enabled(level)) return;
  if (sink_->format == LogFormat::text) return write(level, error.message(), {});
  write(level, error.message(),
        {{"code", std::string(to_string(error.code))},
         {"stage", error.stage},
         {"cause", error.cause},
         {"device", error.device},
         {"peer", error.peer},
         {"remedy", error.remedy},
         {"native", std::to_string(error.native)}});
}

void Logger::write_formatted(LogLevel level, fmt::string_view text, fmt::format_args args) {
  try {
    write(level, fmt::vformat(text, args));
  } catch (const std::exception&) {  // a formatter of an argument threw
    ++sink_->dropped;
  }
}

std::string_view to_string(LogLevel level) {
  switch (level) {
    case LogLevel::error:
      return "error";
    case LogLevel::warn:
      return "warn";
    case LogLevel::info:
      return "info";
    case LogLevel::debug:
      return "debug";
    case LogLevel::trace:
      return "trace";
  }
  return "unknown";
}

Result<LogLevel> parse_log_level(std::string_view text) {
  for (const auto level : {LogLevel::error, LogLevel::warn, LogLevel::info, LogLevel::debug, LogLevel::trace})
    if (text == to_string(level)) return level;
  return fail(ErrorCode::invalid_argument, "read log level",
              "'" + std::string(text) + "' is not one of error, warn, info, debug, trace");
}

}  // namespace cenote
