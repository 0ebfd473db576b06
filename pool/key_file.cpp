#include "pool/key_file.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace cenote::pool {
namespace {

constexpr std::string_view kKeyHeader = "cenote ed25519 private key\n";

/// Owns a descriptor.
class File {
 public:
  File(const std::filesystem::path& path, int flags, mode_t mode = 0)
      : descriptor_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] int get() const { return descriptor_; }
  [[nodiscard]] bool open() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

Result<void> write_all(int descriptor, std::string_view text, const std::string& stage) {
  while (!text.empty()) {
    const auto written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail(system_error(stage, errno));
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Result<void> write_temporary(const std::filesystem::path& path, std::string_view text,
                             const std::string& stage) {
  const File file(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
  if (!file.open()) return fail(system_error(stage, errno));
  if (::fchmod(file.get(), 0600) != 0) return fail(system_error(stage, errno));
  CENOTE_TRY(write_all(file.get(), text, stage));
  if (::fsync(file.get()) != 0) return fail(system_error(stage, errno));
  return {};
}

std::string to_hex(std::span<const std::uint8_t> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  for (const auto byte : bytes) {
    out.push_back(digits[byte >> 4U]);
    out.push_back(digits[byte & 15U]);
  }
  return out;
}

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

Result<KeyPair> parse_key(std::string_view text, const std::string& stage) {
  std::array<std::uint8_t, 32> secret{};
  const Error foreign{ErrorCode::protocol_error, stage, "the file is not a key that cenote wrote"};
  if (text.size() != kKeyHeader.size() + 65 || !text.starts_with(kKeyHeader) || text.back() != '\n') {
    return fail(foreign);
  }
  text.remove_prefix(kKeyHeader.size());
  for (std::size_t i = 0; i < secret.size(); ++i) {
    const int high = digit(text[2 * i]);
    const int low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return fail(foreign);
    secret[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  auto pair = KeyPair::from_private(secret);
  OPENSSL_cleanse(secret.data(), secret.size());
  return pair;
}

}  // namespace

Result<void> write_private_file(const std::filesystem::path& path, std::string_view text) {
  const auto stage = "write " + path.string();
  auto temporary = path;
  temporary += "." + std::to_string(::getpid()) + ".new";
  if (auto written = write_temporary(temporary, text, stage); !written) {
    ::unlink(temporary.c_str());
    return written;
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int cause = errno;
    ::unlink(temporary.c_str());
    return fail(system_error(stage, cause));
  }
  const File folder(path.has_parent_path() ? path.parent_path() : ".", O_RDONLY | O_DIRECTORY);
  if (!folder.open() || ::fsync(folder.get()) != 0) return fail(system_error(stage, errno));
  return {};
}

Result<std::string> read_file(const std::filesystem::path& path, std::size_t most) {
  const auto stage = "read " + path.string();
  const File file(path, O_RDONLY);
  if (!file.open()) {
    auto error = system_error(stage, errno);
    if (error.native == ENOENT) error.code = ErrorCode::not_found;
    return fail(std::move(error));
  }
  std::string text;
  std::array<char, 4096> chunk{};
  while (true) {
    const auto got = ::read(file.get(), chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(system_error(stage, errno));
    if (got == 0) return text;
    text.append(chunk.data(), static_cast<std::size_t>(got));
    if (text.size() > most) {
      return fail(ErrorCode::invalid_argument, stage, "it is larger than " + std::to_string(most) + " bytes");
    }
  }
}

Result<KeyPair> load_or_create_key(const std::filesystem::path& path) {
  const auto stage = "load key " + path.string();
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if ((status.st_mode & 077U) != 0) {
      return fail(
          Error{ErrorCode::permission_denied, stage, "others than its owner may read or write it"}.fix(
              "chmod 600 " + path.string() + ", and replace the key if it may have been copied"));
    }
    CENOTE_ASSIGN(auto text, read_file(path, 4096));
    auto pair = parse_key(text, stage);
    OPENSSL_cleanse(text.data(), text.size());
    return pair;
  }
  if (errno != ENOENT) return fail(system_error(stage, errno));
  CENOTE_ASSIGN(auto pair, KeyPair::generate());
  auto secret = pair.private_key();
  auto text = std::string(kKeyHeader) + to_hex(secret) + "\n";
  auto written = write_private_file(path, text);
  OPENSSL_cleanse(secret.data(), secret.size());
  OPENSSL_cleanse(text.data(), text.size());
  if (!written) return fail(std::move(written).error());
  return pair;
}

}  // namespace cenote::pool
