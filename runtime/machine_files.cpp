#include "runtime/machine_files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>

#include "runtime/process.h"

namespace cenote {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t most_text = std::size_t{4} << 20U;

}  // namespace

bool MachineFiles::exists(std::string_view path) const {
  std::error_code ignored;
  return fs::exists(at(path), ignored);
}

std::optional<std::string> MachineFiles::bytes(std::string_view path) const {
  std::error_code ignored;
  if (fs::is_directory(at(path), ignored)) return std::nullopt;
  auto read = read_file(at(path), most_text);
  if (!read) return std::nullopt;
  return std::move(*read);
}

std::optional<std::string> MachineFiles::text(std::string_view path) const {
  auto read = bytes(path);
  if (read) read->erase(read->find_last_not_of(" \t\r\n") + 1);
  return read;
}

std::optional<std::int64_t> MachineFiles::number(std::string_view path) const {
  const auto read = text(path);
  if (!read) return std::nullopt;
  const bool hexadecimal = read->starts_with("0x");
  const char* const begin = read->data() + (hexadecimal ? 2 : 0);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(begin, read->data() + read->size(), value, hexadecimal ? 16 : 10);
  if (error != std::errc{} || end == begin) return std::nullopt;
  return value;
}

std::vector<std::string> MachineFiles::names(std::string_view folder) const {
  std::vector<std::string> names;
  std::error_code error;
  for (auto entry = fs::directory_iterator(at(folder), error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::ranges::sort(names);
  return names;
}

std::string MachineFiles::link(std::string_view path) const {
  std::error_code error;
  const auto target = fs::read_symlink(at(path), error);
  return error ? std::string() : target.filename().string();
}

std::string MachineFiles::real(std::string_view path) const {
  std::error_code error;
  auto whole = fs::canonical(at(path), error).string();
  if (error) return {};
  if (root_.empty()) return whole;
  const auto root = fs::canonical(root_, error).string();
  return whole.starts_with(root) ? whole.substr(root.size()) : std::string();
}

}  // namespace cenote
