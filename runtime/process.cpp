#include "runtime/process.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <vector>

#include "runtime/unique_fd.h"

namespace cenote {

Result<TemporaryFolder> TemporaryFolder::create(std::string_view prefix, const std::string& parent) {
  std::string root = parent;
  if (root.empty()) {
    std::error_code error;
    root = std::filesystem::temp_directory_path(error).string();
    if (error) return fail(system_error("find the temporary folder", error.value()));
  }
  std::string path = root + "/" + std::string(prefix) + "-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return fail(system_error("make temporary folder " + path, errno));
  return TemporaryFolder(std::move(path));
}

TemporaryFolder::TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}

TemporaryFolder& TemporaryFolder::operator=(TemporaryFolder&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // nothing a destructor could do about it
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::file(std::string_view name) const { return path_ + "/" + std::string(name); }

Result<std::string> read_file(const std::string& path, std::size_t most) {
  auto cannot = [&path](int error) {
    auto failed = system_error("read " + path, error);
    if (error == ENOENT) failed.code = ErrorCode::not_found;
    return fail(std::move(failed));
  };
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return cannot(errno);
  std::string text;
  for (;;) {
    const auto at = text.size();
    text.resize(at + 65536);
    const auto got = ::read(fd.get(), text.data() + at, 65536);
    const int error = errno;
    text.resize(at + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && error == EINTR) continue;
    if (got < 0) return cannot(error);
    if (got == 0) return text;
    if (text.size() > most)
      return fail(ErrorCode::invalid_argument, "read " + path,
                  "it is larger than " + std::to_string(most) + " bytes");
  }
}

Result<void> random_bytes(std::span<std::byte> out) {
  while (!out.empty()) {
    const auto got = ::getrandom(out.data(), out.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(system_error("read random bytes", errno));
    out = out.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

Result<void> random_bytes(std::span<std::uint8_t> out) { return random_bytes(std::as_writable_bytes(out)); }

std::string to_hex(std::span<const std::byte> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const auto byte : bytes) {
    const auto value = std::to_integer<unsigned>(byte);
    text += digits[value >> 4U];
    text += digits[value & 15U];
  }
  return text;
}

std::string to_hex(std::span<const std::uint8_t> bytes) { return to_hex(std::as_bytes(bytes)); }

namespace {
int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}
}  // namespace

Result<Bytes> from_hex(std::string_view text) {
  if (text.size() % 2 != 0)
    return fail(ErrorCode::invalid_argument, "read hexadecimal", "odd number of digits");
  Bytes bytes;
  bytes.reserve(text.size() / 2);
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const int high = digit(text[i]);
    const int low = digit(text[i + 1]);
    if (high < 0 || low < 0)
      return fail(ErrorCode::invalid_argument, "read hexadecimal",
                  "no digit near character " + std::to_string(i + 1));
    bytes.push_back(static_cast<std::byte>(high * 16 + low));
  }
  return bytes;
}

bool equal_in_constant_time(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  if (a.size() != b.size()) return false;
  volatile std::uint8_t difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference = static_cast<std::uint8_t>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

bool is_mapped(const void* pointer, std::size_t bytes) {
  constexpr std::uintptr_t page = 4096;
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(pointer) + bytes;
  if (end < begin) return false;
  std::array<unsigned char, 1024> resident;  // of one piece of the range
  for (auto at = begin; at < end;) {
    const auto piece = std::min<std::uintptr_t>(end - at, resident.size() * page);
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    if (::mincore(reinterpret_cast<void*>(at), piece, resident.data()) != 0) return false;
    at += piece;
  }
  return true;
}

}  // namespace cenote
