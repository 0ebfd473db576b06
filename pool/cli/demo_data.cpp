#include "pool/cli/demo_data.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "pool/key_file.h"

namespace cenote::pool::cli {

namespace {

constexpr int kHighestPixel = 16;
constexpr std::size_t kLargestFile = 64 << 20;

tl::unexpected<Error> bad_line(const std::string& path, std::size_t line, std::string_view why) {
  return fail(Error{ErrorCode::protocol_error, "read " + path, fmt::format("line {}: {}", line, why)}.fix(
      "expected: 64 grey values 0..16 and a digit 0..9, separated by commas"));
}

// One row: 64 values and a label. Empty = good.
std::string_view read_row(std::string_view line, Digits& digits) {
  for (std::size_t column = 0; column <= digit_pixels; ++column) {
    int value = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
    if (error != std::errc()) return "not a number";
    line.remove_prefix(static_cast<std::size_t>(end - line.data()));
    const bool last = column == digit_pixels;
    if (value < 0 || value > (last ? static_cast<int>(digit_classes) - 1 : kHighestPixel))
      return "a value out of range";
    if (last) {
      digits.labels.push_back(value);
      return line.empty() || line == "\r" ? "" : "too many columns";
    }
    digits.pixels.push_back(static_cast<float>(value) / kHighestPixel);
    if (line.empty() || line.front() != ',') return "too few columns";
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
    const auto line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.empty()) continue;
    if (const auto why = read_row(line, digits); !why.empty()) return bad_line(path, number, why);
  }
  if (digits.rows() < 100) return bad_line(path, digits.rows(), "the file ends: too few rows to train on");
  return digits;
}

DigitsSplit split(const Digits& digits) {
  DigitsSplit out;
  for (std::size_t row = 0; row < digits.rows(); ++row)
    append(row % 5 == 4 ? out.test : out.train, digits, row);
  return out;
}

Result<std::string> find_digits(const std::string& given) {
  namespace fs = std::filesystem;
  if (!given.empty()) return given;
  std::error_code ignored;
  const auto folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  const std::array<fs::path, 5> places{
      folder / "digits.csv", folder.parent_path() / "share/cenote/digits.csv",
      folder.parent_path() / "examples/data/digits.csv",
      fs::path(CENOTE_SOURCE_DIR) / "examples/data/digits.csv", fs::path("examples/data/digits.csv")};
  for (const auto& place : places) {
    if (fs::exists(place, ignored)) return place.string();
  }
  return fail(Error{
      ErrorCode::not_found, "find the demo's data",
      fmt::format("no digits.csv beside the program, in {} or in {}", places[1].string(), places[2].string())}
                  .fix("give it: cenote demo --data FILE"));
}

}  // namespace cenote::pool::cli
