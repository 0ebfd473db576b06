#include "runtime/launcher_lists.h"

#include <charconv>
#include <optional>

namespace cenote::launcher {
namespace {

constexpr std::size_t longest_name = 253;

/// Reads a list from the left.
class Cursor {
 public:
  Cursor(std::string_view list, const char* what) : list_(list), what_(what) {}

  [[nodiscard]] bool at_end() const { return at_ == list_.size(); }
  [[nodiscard]] char next() const { return at_end() ? '\0' : list_[at_]; }
  bool take(char wanted) {
    if (next() != wanted) return false;
    ++at_;
    return true;
  }
  bool take(std::string_view wanted) {
    if (!list_.substr(at_).starts_with(wanted)) return false;
    at_ += wanted.size();
    return true;
  }
  /// The longest run of characters that `belongs` holds for.
  template <class Belongs>
  std::string_view run(Belongs belongs) {
    const auto from = at_;
    while (!at_end() && belongs(list_[at_])) ++at_;
    return list_.substr(from, at_ - from);
  }
  std::string_view digits() {
    return run([](char c) { return c >= '0' && c <= '9'; });
  }
  [[nodiscard]] tl::unexpected<Error> bad(const std::string& why) const {
    constexpr std::size_t shown = 200;
    return fail(ErrorCode::invalid_argument, std::string("read the list of ") + what_,
                "'" + std::string(list_.substr(0, shown)) + (list_.size() > shown ? "..." : "") +
                    "', character " + std::to_string(at_ + 1) + ": " + why);
  }

 private:
  std::string_view list_;
  const char* what_;
  std::size_t at_ = 0;
};

std::optional<std::uint32_t> number(std::string_view digits) {
  std::uint32_t value = 0;
  const auto* end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, value);
  if (digits.empty() || read.ec != std::errc{} || read.ptr != end) return std::nullopt;
  return value;
}

bool in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
         c == '_' || c == ':';
}

/// What stands in brackets: "1-3,07]", the opening one being taken.
Result<std::vector<std::string>> bracket(Cursor& at) {
  std::vector<std::string> out;
  do {
    const auto low = at.digits();
    const auto first = number(low);
    if (!first) return at.bad("a number belongs here");
    auto last = first;
    if (at.take('-')) last = number(at.digits());
    if (!last || *last < *first) return at.bad("a range that does not rise");
    if (*last - *first >= most_nodes - out.size()) return at.bad("more nodes than one job has");
    for (std::uint32_t n = *first; n <= *last; ++n) {
      auto digits = std::to_string(n);
      if (digits.size() < low.size()) digits.insert(0, low.size() - digits.size(), '0');
      out.push_back(std::move(digits));
      if (n == *last) break;  // it may be the largest number there is
    }
  } while (at.take(','));
  if (!at.take(']')) return at.bad("a ']' belongs here");
  return out;
}

/// Each of `names` before each of `parts`.
Result<std::vector<std::string>> joined(const Cursor& at, const std::vector<std::string>& names,
                                        const std::vector<std::string>& parts) {
  if (names.size() > most_nodes / parts.size()) return at.bad("more nodes than one job has");
  std::vector<std::string> out;
  out.reserve(names.size() * parts.size());
  for (const auto& name : names) {
    for (const auto& part : parts) {
      if (name.size() + part.size() > longest_name) return at.bad("a name longer than 253 characters");
      out.push_back(name + part);
    }
  }
  return out;
}

/// One name, which may stand for many: "r[0-1]n[0-1]".
Result<std::vector<std::string>> word(Cursor& at) {
  std::vector<std::string> names{""};
  bool empty = true;
  for (;; empty = false) {
    if (at.take('[')) {
      CENOTE_ASSIGN(const auto parts, bracket(at));
      CENOTE_ASSIGN(names, joined(at, names, parts));
    } else if (const auto text = at.run(in_name); !text.empty()) {
      CENOTE_ASSIGN(names, joined(at, names, {std::string(text)}));
    } else {
      break;
    }
  }
  if (empty) return at.bad("a node's name belongs here");
  return names;
}

}  // namespace

Result<std::vector<std::string>> expand_nodes(std::string_view list) {
  Cursor at(list, "nodes");
  std::vector<std::string> out;
  do {
    CENOTE_ASSIGN(auto names, word(at));
    if (names.size() > most_nodes - out.size()) return at.bad("more nodes than one job has");
    for (auto& name : names) out.push_back(std::move(name));
  } while (at.take(','));
  if (!at.at_end()) return at.bad("a ',' or the end belongs here");
  return out;
}

Result<std::vector<std::uint32_t>> expand_counts(std::string_view list) {
  Cursor at(list, "tasks on each node");
  std::vector<std::uint32_t> out;
  do {
    const auto count = number(at.digits());
    if (!count) return at.bad("a number belongs here");
    std::uint32_t times = 1;
    if (at.take("(x")) {
      const auto repeated = number(at.digits());
      if (!repeated || *repeated == 0 || !at.take(')')) return at.bad("'(x3)' belongs here");
      times = *repeated;
    }
    if (times > most_nodes - out.size()) return at.bad("more nodes than one job has");
    out.insert(out.end(), times, *count);
  } while (at.take(','));
  if (!at.at_end()) return at.bad("a ',' or the end belongs here");
  return out;
}

}  // namespace cenote::launcher
