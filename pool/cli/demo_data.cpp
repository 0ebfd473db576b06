#include "pool/cli/demo_data.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <system_error>
#include <vector>

#include "pool/key_file.h"

namespace cenote::pool::cli {

namespace {

constexpr int kHighestPixel = 16;
constexpr std::size_t kLargestFile = 64 << 20;
constexpr std::size_t kLeastRows = 100;
constexpr std::size_t kShownCell = 20;
constexpr int kLevelsToSourceTree = 3;

// What somebody's file holds goes to a terminal.
std::string printable(std::string_view cell) {
  std::string text(cell.substr(0, kShownCell));
  for (char& c : text) c = c < 0x20 || c == 0x7f ? '?' : c;
  return text + (cell.size() > kShownCell ? "..." : "");
}

tl::unexpected<Error> bad_data(const std::string& path, std::string why) {
  return fail(Error{ErrorCode::protocol_error, "read " + path, std::move(why)}.fix(
      "expected: rows of 64 grey values 0..16 and a digit 0..9, separated by commas"));
}

// One row: 64 values and a label. Empty = good; else what is wrong, with the column.
std::string read_row(std::string_view line, Digits& digits) {
  constexpr auto kColumns = digit_pixels + 1;
  for (std::size_t column = 1; column <= kColumns; ++column) {
    const auto cell = line.substr(0, std::min(line.find(','), line.size()));
    int value = 0;
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (error != std::errc() || end != cell.data() + cell.size())
      return fmt::format("column {}: '{}' is not a whole number", column, printable(cell));
    const bool last = column == kColumns;
    const int most = last ? static_cast<int>(digit_classes) - 1 : kHighestPixel;
    if (value < 0 || value > most) return fmt::format("column {}: {} is not in 0..{}", column, value, most);
    line.remove_prefix(cell.size());
    if (last) {
      digits.labels.push_back(value);
      return line.empty() ? "" : fmt::format("more than {} columns", kColumns);
    }
    digits.pixels.push_back(static_cast<float>(value) / kHighestPixel);
    if (line.empty()) return fmt::format("{} of {} columns", column, kColumns);
    line.remove_prefix(1);
  }
  return "";
}

void append(Digits& to, const Digits& from, std::size_t row) {
  const auto first = from.pixels.begin() + static_cast<std::ptrdiff_t>(row * digit_pixels);
  to.pixels.insert(to.pixels.end(), first, first + digit_pixels);
  to.labels.push_back(from.labels[row]);
}

}  // namespace

Result<Digits> read_digits(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored))
    return fail(ErrorCode::invalid_argument, "read " + path, "it is not a regular file");
  CENOTE_ASSIGN(const auto text, read_file(path, kLargestFile));
  Digits digits;
  std::string_view rest(text);
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const auto end = std::min(rest.find('\n'), rest.size());
    auto line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    if (const auto why = read_row(line, digits); !why.empty())
      return bad_data(path, fmt::format("row {}, {}", number, why));
  }
  if (digits.rows() < kLeastRows)
    return bad_data(path,
                    fmt::format("it has {} rows, the demo needs {} at least", digits.rows(), kLeastRows));
  return digits;
}

DigitsSplit split(const Digits& digits) {
  DigitsSplit out;
  for (std::size_t row = 0; row < digits.rows(); ++row)
    append(row % 5 == 4 ? out.test : out.train, digits, row);
  return out;
}

std::filesystem::path program_folder() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
}

Result<std::string> find_digits(const std::string& given, const std::filesystem::path& program) {
  namespace fs = std::filesystem;
  if (!given.empty()) return given;
  const auto above = program.parent_path();
  std::vector<fs::path> places{program / "digits.csv", above / "share/cenote/digits.csv"};
  auto folder = above;  // a build lies in its source tree: build/PRESET/bin
  for (int level = 0; level < kLevelsToSourceTree && !folder.empty(); ++level) {
    places.push_back(folder / "examples/data/digits.csv");
    if (folder == folder.parent_path()) break;
    folder = folder.parent_path();
  }
  places.emplace_back("examples/data/digits.csv");
  std::string looked;
  for (const auto& place : places) {
    std::error_code ignored;
    if (fs::exists(place, ignored)) return place.string();
    looked += (looked.empty() ? "" : ", ") + place.string();
  }
  return fail(Error{ErrorCode::not_found, "find the demo's data", "there is none of " + looked}.fix(
      "give it: cenote demo --data FILE"));
}

}  // namespace cenote::pool::cli
