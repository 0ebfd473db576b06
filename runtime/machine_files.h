// MachineFiles: what /sys, /proc, /dev and /lib say of a machine. Of this one, or of one that was recorded:
// a folder that holds such a tree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cenote {

class MachineFiles {
 public:
  /// `root` stands before every path; empty: this machine.
  explicit MachineFiles(std::string root = {}) : root_(std::move(root)) {}

  [[nodiscard]] const std::string& root() const { return root_; }
  [[nodiscard]] bool exists(std::string_view path) const;
  /// A file's bytes; none: it is not there, or cannot be read.
  [[nodiscard]] std::optional<std::string> bytes(std::string_view path) const;
  /// A file's text without the white space at its end; none: it is not there, or cannot be read.
  [[nodiscard]] std::optional<std::string> text(std::string_view path) const;
  /// A number at the beginning of a file: decimal, or hexadecimal after 0x.
  [[nodiscard]] std::optional<std::int64_t> number(std::string_view path) const;
  /// What a folder holds, sorted.
  [[nodiscard]] std::vector<std::string> names(std::string_view folder) const;
  /// The last part of what a symbolic link leads to; empty: it leads nowhere.
  [[nodiscard]] std::string link(std::string_view path) const;
  /// Where a path leads, every link followed, without the root; empty: nowhere.
  [[nodiscard]] std::string real(std::string_view path) const;

 private:
  [[nodiscard]] std::string at(std::string_view path) const { return root_ + std::string(path); }
  std::string root_;
};

}  // namespace cenote
