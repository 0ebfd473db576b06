// Small things every program needs of its process: a temporary folder, random bytes, hexadecimal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/bytes.h"
#include "runtime/result.h"

namespace cenote {

/// A folder of its own under the system's temporary folder (mode 0700), removed with everything in it by the
/// destructor. Movable. A child made by fork must not destroy its copy: see disown().
class TemporaryFolder {
 public:
  /// `prefix`: start of its name, letters and digits. `parent`: where; empty = the system's temporary folder.
  static Result<TemporaryFolder> create(std::string_view prefix, const std::string& parent = {});
  TemporaryFolder(TemporaryFolder&& other) noexcept;
  TemporaryFolder& operator=(TemporaryFolder&& other) noexcept;
  ~TemporaryFolder();

  [[nodiscard]] const std::string& path() const { return path_; }
  /// path() + "/" + name
  [[nodiscard]] std::string file(std::string_view name) const;
  /// The folder stays.
  void disown() { path_.clear(); }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

/// The whole of a file. Errors: not_found or system_error with the system's text, invalid_argument (larger
/// than `most` bytes).
Result<std::string> read_file(const std::string& path, std::size_t most);

/// Whether the CPU has something mapped at every page of the range; false for one that wraps around. `bytes`
/// may be a claim of somebody else's: memory does not grow with it.
bool is_mapped(const void* pointer, std::size_t bytes);

/// Fills `out` from the kernel's generator, good enough for keys.
Result<void> random_bytes(std::span<std::byte> out);
Result<void> random_bytes(std::span<std::uint8_t> out);

/// Lower case, two digits a byte.
std::string to_hex(std::span<const std::byte> bytes);
std::string to_hex(std::span<const std::uint8_t> bytes);
/// Errors: invalid_argument (odd length, another character). Takes upper case too.
Result<Bytes> from_hex(std::string_view text);

/// Whether both are alike, in a time that depends on their lengths only.
bool equal_in_constant_time(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b);

}  // namespace cenote
