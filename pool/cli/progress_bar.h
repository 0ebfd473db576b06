// One line that grows on a terminal, a few plain lines elsewhere.
#pragma once

#include <cstdint>
#include <string>

namespace cenote::pool::cli {

class ProgressBar {
 public:
  ProgressBar(std::string title, std::uint64_t total);
  /// `note`: shown behind the bar.
  void show(std::uint64_t done, const std::string& note);
  /// A line of its own, above the bar.
  void tell(const std::string& line) const;

 private:
  const std::string title_;
  const std::uint64_t total_;
  const bool terminal_;
  std::uint64_t lines_shown_ = 0;
};

}  // namespace cenote::pool::cli
