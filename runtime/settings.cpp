#include "runtime/settings.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "runtime/process.h"

#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

namespace cenote {
namespace {

constexpr std::string_view prefix = "CENOTE_";
constexpr std::size_t most_file_bytes = 1U << 20U;

/// Levenshtein's distance: insertions, deletions and replacements that make `a` into `b`.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j + 1] + 1, row[j] + 1, replaced});
    }
  }
  return row.back();
}

std::string suggestion(std::string_view name) {
  if (name.size() > 100) return "see: cenote config";
  const auto* nearest = std::ranges::min_element(
      settings_table, {}, [name](const SettingDescription& d) { return distance(name, d.name); });
  if (distance(name, nearest->name) > std::max<std::size_t>(2, name.size() / 3)) return "see: cenote config";
  return "did you mean " + std::string(nearest->name) + "?";
}

std::size_t index_of(std::string_view name) {
  return static_cast<std::size_t>(std::ranges::find(settings_table, name, &SettingDescription::name) -
                                  std::begin(settings_table));
}
bool known(std::size_t index) { return index < std::size(settings_table); }

tl::unexpected<Error> unknown(std::string_view name, std::string_view shown, const std::string& source,
                              ErrorCode code = ErrorCode::invalid_argument) {
  return fail(Error{code, "read settings", source + ": '" + std::string(shown) + "' is not a setting"}.fix(
      suggestion(name)));
}

/// The variables of this process whose names `wanted` holds for.
template <class Wanted>
Environment read_variables(Wanted wanted) {
  Environment found;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    const std::string_view line(*at);
    const auto equals = line.find('=');
    if (equals != std::string_view::npos && wanted(line.substr(0, equals)))
      found.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return found;
}

Environment process_environment() {
  return read_variables([](std::string_view name) { return name.starts_with(prefix); });
}

/// A TOML value as a user would write it elsewhere; nullopt for what no setting holds (dates, nested arrays).
std::optional<std::string> scalar_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  return std::nullopt;
}

std::optional<std::string> node_text(const toml::node& node) {
  const auto* array = node.as_array();
  if (array == nullptr) return scalar_text(node);
  std::string joined;
  for (const auto& element : *array) {
    const auto word = scalar_text(element);
    if (!word) return std::nullopt;
    joined += (joined.empty() ? "" : ",") + *word;
  }
  return joined;
}

struct FileValue {
  std::string name;
  const toml::node* node;
};

void flatten(const toml::table& table, const std::string& above, std::vector<FileValue>& out) {
  for (const auto& [key, node] : table) {
    std::string name = above;
    if (!name.empty()) name += '.';
    name += key.str();
    if (const auto* inner = node.as_table()) {
      flatten(*inner, name, out);
    } else {
      out.push_back({std::move(name), &node});
    }
  }
}

}  // namespace

Settings::Settings() {
  slots_.reserve(std::size(settings_table));
  for (const auto& description : settings_table) {
    // A default that its own line refuses is found by the test of the table; the slot then holds an empty
    // text.
    auto value = parse(description, description.default_text);
    slots_.push_back({value ? std::move(*value) : Value{}, std::string(description.default_text), "default"});
  }
}

Environment launcher_environment() {
  return read_variables([](std::string_view name) {
    return std::ranges::find(launcher_variables, name, &LauncherVariable::name) !=
           std::end(launcher_variables);
  });
}

Result<Settings> Settings::load(const SettingSources& sources) {
  Settings settings;
  const auto environment = sources.environment ? *sources.environment : process_environment();
  // The file may be named by the stronger sources, so they are read first to find it, and again to override
  // it.
  CENOTE_TRY(settings.read_environment(environment));
  CENOTE_TRY(settings.read_overrides(sources.overrides));
  const auto file = sources.file.empty() ? settings.text("config.file") : sources.file;
  if (file.empty()) return settings;
  CENOTE_TRY(settings.read_file(file));
  CENOTE_TRY(settings.read_environment(environment));
  CENOTE_TRY(settings.read_overrides(sources.overrides));
  return settings;
}

Result<void> Settings::read_file(const std::string& path) {
  CENOTE_ASSIGN(const auto text, cenote::read_file(path, most_file_bytes));
  toml::table table;
  try {
    table = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    return fail(
        ErrorCode::invalid_argument, "read settings",
        path + ":" + std::to_string(error.source().begin.line) + ": " + std::string(error.description()));
  }
  std::vector<FileValue> values;
  flatten(table, "", values);
  std::ranges::sort(values, {}, [](const FileValue& v) { return v.node->source().begin.line; });
  for (const auto& [name, node] : values) {
    const auto source = path + ":" + std::to_string(node->source().begin.line);
    if (name == "config.file")
      return fail(ErrorCode::invalid_argument, "read settings",
                  source + ": config.file cannot be set in a file");
    if (!known(index_of(name))) return unknown(name, name, source);
    const auto value = node_text(*node);
    if (!value)
      return fail(
          ErrorCode::invalid_argument, "read settings",
          fmt::format("{}: {} needs a string, a whole number, a boolean or an array of them", source, name));
    CENOTE_TRY(set(name, *value, source));
  }
  return {};
}

Result<void> Settings::read_environment(const Environment& environment) {
  for (const auto& [variable, value] : environment) {
    if (!variable.starts_with(prefix)) continue;
    const auto* found = std::ranges::find_if(
        settings_table, [&](const SettingDescription& d) { return environment_name(d.name) == variable; });
    if (found != std::end(settings_table)) {
      CENOTE_TRY(set(found->name, value, variable));
      continue;
    }
    std::string name = variable.substr(prefix.size());
    std::ranges::transform(name, name.begin(), [](unsigned char c) {
      return c == '_' ? '.' : static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    });
    return unknown(name, variable, "environment");
  }
  return {};
}

Result<void> Settings::read_overrides(const std::vector<std::string>& overrides) {
  for (const auto& line : overrides) {
    const auto equals = line.find('=');
    if (equals == std::string::npos)
      return fail(ErrorCode::invalid_argument, "read settings",
                  "--set '" + line + "' is not of the form name=value");
    CENOTE_TRY(
        set(std::string_view(line).substr(0, equals), std::string_view(line).substr(equals + 1), "--set"));
  }
  return {};
}

Result<void> Settings::set(std::string_view name, std::string_view value, std::string source) {
  const auto index = index_of(name);
  if (!known(index)) return unknown(name, name, source);
  auto parsed = parse(settings_table[index], value);
  if (!parsed) {
    const auto shown = source + ": " + std::string(name);
    return fail(ErrorCode::invalid_argument, "read settings", shown + ": " + parsed.error().cause);
  }
  slots_[index] = {std::move(*parsed), std::string(value), std::move(source)};
  return {};
}

Result<SettingEntry> Settings::entry(std::string_view name) const {
  const auto index = index_of(name);
  if (!known(index)) return unknown(name, name, "settings", ErrorCode::not_found);
  return SettingEntry{&settings_table[index], slots_[index].text, slots_[index].source};
}

std::vector<SettingEntry> Settings::entries() const {
  std::vector<SettingEntry> rows;
  rows.reserve(slots_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i)
    rows.push_back({&settings_table[i], slots_[i].text, slots_[i].source});
  return rows;
}

std::string Settings::environment_name(std::string_view name) {
  std::string variable(prefix);
  for (const char c : name)
    variable += c == '.' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return variable;
}

bool Settings::boolean(SettingKey<SettingType::boolean> key) const {
  return std::get<bool>(slots_[key.index].value);
}
std::int64_t Settings::integer(SettingKey<SettingType::integer> key) const {
  return std::get<std::int64_t>(slots_[key.index].value);
}
std::uint64_t Settings::uinteger(SettingKey<SettingType::unsigned_integer> key) const {
  return std::get<std::uint64_t>(slots_[key.index].value);
}
Clock::duration Settings::duration(SettingKey<SettingType::duration> key) const {
  return std::get<Clock::duration>(slots_[key.index].value);
}
std::uint64_t Settings::size(SettingKey<SettingType::size> key) const {
  return std::get<std::uint64_t>(slots_[key.index].value);
}
const std::string& Settings::text(SettingKey<SettingType::text, SettingType::choice> key) const {
  return std::get<std::string>(slots_[key.index].value);
}
const std::vector<std::string>& Settings::list(SettingKey<SettingType::list> key) const {
  return std::get<std::vector<std::string>>(slots_[key.index].value);
}

}  // namespace cenote
