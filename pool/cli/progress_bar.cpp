#include "pool/cli/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "pool/cli/cli.h"

namespace cenote::pool::cli {

namespace {

constexpr std::uint64_t kWidth = 32;
constexpr std::uint64_t kPlainLines = 6;

}  // namespace

ProgressBar::ProgressBar(std::string title, std::uint64_t total)
    : title_(std::move(title)), total_(total == 0 ? 1 : total), terminal_(::isatty(STDOUT_FILENO) == 1) {}

// What cannot be shown is not worth ending for: the figures that follow tell of a broken output.
void ProgressBar::show(std::uint64_t done, const std::string& note) {
  if (terminal_) {
    const auto filled = done * kWidth / total_;
    static_cast<void>(print(fmt::format("\r  {} [{:#<{}}{:.<{}}] {}/{}  {}\x1b[K{}", title_, "", filled, "",
                                        kWidth - filled, done, total_, note, done == total_ ? "\n" : "")));
    return;
  }
  // The first one too: it tells that there is movement, and how fast.
  if (done * kPlainLines / total_ <= lines_shown_ && done != 1 && done != total_) return;
  lines_shown_ = done * kPlainLines / total_;
  static_cast<void>(print(fmt::format("  {} {}/{}  {}\n", title_, done, total_, note)));
}

void ProgressBar::tell(const std::string& line) const {
  static_cast<void>(print(fmt::format("{}  {}\n", terminal_ ? "\r\x1b[K" : "", line)));
}

}  // namespace cenote::pool::cli
