// How the text of a setting becomes its value: each type's form and range.
#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "runtime/settings.h"

namespace cenote {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t scale;
};
constexpr Unit duration_units[] = {{"ns", 1},
                                   {"us", 1'000},
                                   {"ms", 1'000'000},
                                   {"s", 1'000'000'000},
                                   {"m", 60'000'000'000},
                                   {"h", 3'600'000'000'000},
                                   {"d", 86'400'000'000'000}};
constexpr Unit size_units[] = {
    {"", 1}, {"B", 1}, {"KiB", 1ULL << 10}, {"MiB", 1ULL << 20}, {"GiB", 1ULL << 30}, {"TiB", 1ULL << 40}};
constexpr std::string_view duration_form = "a number with ns, us, ms, s, m, h or d, like 30s";
constexpr std::string_view size_form = "bytes, plain or with KiB, MiB, GiB or TiB, like 40GiB";

auto bad(std::string cause) { return fail(ErrorCode::invalid_argument, "read value", std::move(cause)); }

std::string quoted(std::string_view text) { return fmt::format("'{}'", text); }

/// Digits with an optional fraction, then a unit; the product must fit in 63 bits.
Result<std::uint64_t> parse_scaled(std::string_view text, std::span<const Unit> units,
                                   std::string_view form) {
  const auto digits = text.find_first_not_of("0123456789.");
  const auto number = text.substr(0, digits);
  const auto name = digits == std::string_view::npos ? std::string_view{} : text.substr(digits);
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  for (const auto& unit : units) {
    if (unit.name != name) continue;
    std::uint64_t whole = 0;
    const auto* end = number.data() + number.size();
    const auto integer = std::from_chars(number.data(), end, whole);
    if (integer.ec == std::errc{} && integer.ptr == end) {
      if (whole > most / unit.scale) return bad(quoted(text) + " is too large");
      return whole * unit.scale;
    }
    double value = 0;
    const auto real = std::from_chars(number.data(), end, value, std::chars_format::fixed);
    if (number.empty() || real.ec != std::errc{} || real.ptr != end) break;
    const double scaled = std::round(value * static_cast<double>(unit.scale));
    if (!(scaled < 9.2e18)) return bad(quoted(text) + " is too large");
    return static_cast<std::uint64_t>(scaled);
  }
  return bad(quoted(text) + " is not " + std::string(form));
}

template <class T>
Result<T> parse_number(std::string_view text, std::string_view form) {
  T value{};
  const auto* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  if (read.ec == std::errc::result_out_of_range) return bad(quoted(text) + " does not fit in 64 bits");
  if (text.empty() || read.ec != std::errc{} || read.ptr != end)
    return bad(quoted(text) + " is not " + std::string(form));
  return value;
}

/// Checks "low..high" with the parser of the value's own type.
template <class T, class Parse>
Result<T> within(const SettingDescription& description, std::string_view text, Parse parse) {
  CENOTE_ASSIGN(const T value, parse(text));
  const auto dots = description.allowed.find("..");
  if (dots == std::string_view::npos) return value;
  CENOTE_ASSIGN(const T low, parse(description.allowed.substr(0, dots)));
  CENOTE_ASSIGN(const T high, parse(description.allowed.substr(dots + 2)));
  if (value < low || value > high)
    return bad(quoted(text) + " is outside " + std::string(description.allowed));
  return value;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const auto at = text.find(separator);
    auto word = text.substr(0, at);
    while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
    while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
    words.emplace_back(word);
    text = at == std::string_view::npos ? std::string_view{} : text.substr(at + 1);
  }
  return words;
}

Result<void> one_of(const SettingDescription& description, const std::string& word) {
  if (description.allowed.empty()) return {};
  const auto choices = split(description.allowed, '|');
  std::string listed;
  for (const auto& choice : choices) {
    if (choice == word) return {};
    listed += (listed.empty() ? "" : ", ") + choice;
  }
  return bad(quoted(word) + " is not one of " + listed);
}

Result<bool> parse_boolean(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return bad(quoted(text) + " is not true or false");
}

Result<std::vector<std::string>> parse_list(const SettingDescription& description, std::string_view text) {
  auto words = split(text, ',');
  for (const auto& word : words) {
    if (word.empty()) return bad("an empty word in " + quoted(text));
    CENOTE_TRY(one_of(description, word));
  }
  return words;
}

}  // namespace

std::string_view to_string(SettingType type) {
  switch (type) {
    case SettingType::boolean:
      return "boolean";
    case SettingType::integer:
      return "integer";
    case SettingType::unsigned_integer:
      return "unsigned integer";
    case SettingType::duration:
      return "duration";
    case SettingType::size:
      return "size";
    case SettingType::text:
      return "text";
    case SettingType::list:
      return "list";
    case SettingType::choice:
      return "choice";
  }
  return "unknown type";
}

Result<Clock::duration> parse_duration(std::string_view text) {
  CENOTE_ASSIGN(const auto ns, parse_scaled(text, duration_units, duration_form));
  return std::chrono::nanoseconds(static_cast<std::int64_t>(ns));
}

Result<std::uint64_t> parse_size(std::string_view text) { return parse_scaled(text, size_units, size_form); }

Result<Settings::Value> Settings::parse(const SettingDescription& description, std::string_view text) {
  switch (description.type) {
    case SettingType::boolean:
      return parse_boolean(text);
    case SettingType::integer:
      return within<std::int64_t>(description, text,
                                  [](auto t) { return parse_number<std::int64_t>(t, "a whole number"); });
    case SettingType::unsigned_integer:
      return within<std::uint64_t>(description, text, [](auto t) {
        return parse_number<std::uint64_t>(t, "a whole number, not negative");
      });
    case SettingType::duration:
      return within<Clock::duration>(description, text, parse_duration);
    case SettingType::size:
      return within<std::uint64_t>(description, text, parse_size);
    case SettingType::text:
      return std::string(text);
    case SettingType::list:
      return parse_list(description, text);
    case SettingType::choice: {
      std::string word(text);
      CENOTE_TRY(one_of(description, word));
      return word;
    }
  }
  return fail(ErrorCode::internal, "read value", "setting of an unknown type");
}

}  // namespace cenote
