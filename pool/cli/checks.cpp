#include "pool/cli/checks.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <utility>

#include "runtime/settings.h"

namespace cenote::pool::cli {

namespace {

constexpr double kLongestWait = 30.0 * 24 * 3600;

std::string text_of(Clock::duration span) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(span).count();
  return ms % 1000 == 0 ? fmt::format("{}s", ms / 1000) : fmt::format("{}ms", ms);
}

}  // namespace

CLI::Validator is_size() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        const auto size = parse_size(text);
        if (!size) return size.error().cause;
        return *size == 0 ? "it must be more than 0" : "";
      },
      "SIZE");
}

CLI::Validator is_duration(Clock::duration least) {
  return CLI::Validator(
      [least](const std::string& text) -> std::string {
        const auto span = parse_duration(text);
        if (!span) return span.error().cause;
        return *span < least ? fmt::format("{} is too short, the shortest is {}", text, text_of(least)) : "";
      },
      "TIME");
}

CLI::Validator is_wait() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        double seconds = 0;
        if (!CLI::detail::lexical_cast(text, seconds) || std::isnan(seconds))
          return fmt::format("{} is not a number of seconds", text);
        return seconds > 0 && seconds <= kLongestWait
                   ? ""
                   : fmt::format("{} is out of range: more than 0 and at most {} seconds", text,
                                 kLongestWait);
      },
      "SECONDS");
}

CLI::Validator is_setting(std::string name) {
  return CLI::Validator(
      [name = std::move(name)](const std::string& text) -> std::string {
        Settings settings;
        const auto set = settings.set(name, text, "the command line");
        return set ? "" : set.error().cause;
      },
      "LIST");
}

}  // namespace cenote::pool::cli
