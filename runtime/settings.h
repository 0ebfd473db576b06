// Settings: the values of settings_table.h for one context, and where each came from. Command line beats
// environment beats file beats default. A value without owner or lock: copy it, read it from any thread.
//
// Errors of load: invalid_argument for a wrong value and for a name that is no setting, not_found for a file
// that cannot be read. Each names the setting, its source (file:line, variable, --set) and what is allowed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/deadline.h"
#include "runtime/result.h"
#include "runtime/settings_table.h"

namespace cenote {

/// A name of the table, checked by the compiler: `settings.text("log.file")`.
template <SettingType... types>
struct SettingKey {
  // NOLINTNEXTLINE(google-explicit-constructor): a literal is meant to become a key
  consteval SettingKey(const char* name) : index(find(name)) {}
  std::size_t index;

 private:
  static consteval std::size_t find(std::string_view name) {
    for (std::size_t i = 0; i < std::size(settings_table); ++i) {
      if (settings_table[i].name == name) {
        if (!((settings_table[i].type == types) || ...)) throw "the setting has another type";
        return i;
      }
    }
    throw "no such setting in settings_table.h";
  }
};

using Environment = std::map<std::string, std::string>;

/// The variables of launcher_variables that this process has.
Environment launcher_environment();

struct SettingSources {
  std::string file{};                        ///< TOML; empty = what config.file says in the sources below
  std::optional<Environment> environment{};  ///< nullopt = that of this process
  std::vector<std::string> overrides{};      ///< "name=value", in order
};

/// One row of the listing.
struct SettingEntry {
  const SettingDescription* description;
  std::string value;   ///< as a user would write it
  std::string source;  ///< "default", "cenote.toml:12", "CENOTE_LOG_LEVEL", "--set"
};

class Settings {
 public:
  /// Every setting at its default.
  Settings();
  static Result<Settings> load(const SettingSources& sources = {});

  [[nodiscard]] bool boolean(SettingKey<SettingType::boolean> key) const;
  [[nodiscard]] std::int64_t integer(SettingKey<SettingType::integer> key) const;
  [[nodiscard]] std::uint64_t uinteger(SettingKey<SettingType::unsigned_integer> key) const;
  [[nodiscard]] Clock::duration duration(SettingKey<SettingType::duration> key) const;
  [[nodiscard]] std::uint64_t size(SettingKey<SettingType::size> key) const;
  [[nodiscard]] const std::string& text(SettingKey<SettingType::text, SettingType::choice> key) const;
  [[nodiscard]] const std::vector<std::string>& list(SettingKey<SettingType::list> key) const;

  /// Sets one by name, as if it came from `source`; checked like every other.
  Result<void> set(std::string_view name, std::string_view value, std::string source);
  /// One setting by a name known only at run time. Errors: not_found, with the nearest name.
  [[nodiscard]] Result<SettingEntry> entry(std::string_view name) const;
  /// All of them, in the table's order.
  [[nodiscard]] std::vector<SettingEntry> entries() const;

  /// Where "log.level" is read from in the environment: "CENOTE_LOG_LEVEL".
  static std::string environment_name(std::string_view name);

 private:
  using Value =
      std::variant<bool, std::int64_t, std::uint64_t, Clock::duration, std::string, std::vector<std::string>>;
  struct Slot {
    Value value;
    std::string text;
    std::string source;
  };

  static Result<Value> parse(const SettingDescription& description, std::string_view text);
  Result<void> read_file(const std::string& path);
  Result<void> read_environment(const Environment& environment);
  Result<void> read_overrides(const std::vector<std::string>& overrides);

  std::vector<Slot> slots_;  ///< one for each line of the table
};

std::string_view to_string(SettingType type);
/// "30s", "1.5ms": digits, perhaps a fraction, and ns, us, ms, s, m, h or d.
Result<Clock::duration> parse_duration(std::string_view text);
/// "40GiB", "512", "1.5MiB" in bytes.
Result<std::uint64_t> parse_size(std::string_view text);

}  // namespace cenote
