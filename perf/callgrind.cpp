#include "perf/callgrind.h"

#include <charconv>

namespace cenote::perf {
namespace {

/// "(3) /usr/bin/x" names object 3; "(3)" is that one again.
std::string object_of(std::string_view value, std::map<std::string, std::string>& names) {
  const auto end = value.find(')');
  if (value.empty() || value.front() != '(' || end == std::string_view::npos) return std::string(value);
  std::string& name = names[std::string(value.substr(0, end + 1))];
  if (value.size() > end + 2) name = value.substr(end + 2);
  return name;
}

/// The last of a line's numbers, its others are positions. False: it is no cost line.
bool cost_of(std::string_view line, std::uint64_t& cost) {
  if (line.empty() || (line.front() != '+' && line.front() != '-' && line.front() != '*' &&
                       (line.front() < '0' || line.front() > '9')))
    return false;
  const auto blank = line.rfind(' ');
  if (blank == std::string_view::npos) return false;
  const auto number = line.substr(blank + 1);
  const auto read = std::from_chars(number.data(), number.data() + number.size(), cost);
  return read.ec == std::errc{} && read.ptr == number.data() + number.size();
}

}  // namespace

Result<std::map<std::string, std::uint64_t>> instructions_by_object(std::string_view text) {
  const auto wrong = [](const char* what) {
    return fail(ErrorCode::protocol_error, "read callgrind's output", what);
  };
  std::map<std::string, std::string> names;
  std::map<std::string, std::uint64_t> out;
  std::string object;
  bool known = false, of_a_call = false;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    std::uint64_t cost = 0;
    if (line == "events: Ir") {
      known = true;
    } else if (line.starts_with("ob=")) {
      object = object_of(line.substr(3), names);
    } else if (line.starts_with("cob=")) {
      (void)object_of(line.substr(4), names);  // it may be named here first
    } else if (line.starts_with("calls=")) {
      of_a_call = true;  // the next line is what the callee cost, counted there
    } else if (cost_of(line, cost)) {
      if (!std::exchange(of_a_call, false)) out[object] += cost;
    }
  }
  if (!known) return wrong("it does not count instructions (Ir) alone");
  if (out.empty()) return wrong("it has no costs");
  return out;
}

}  // namespace cenote::perf
