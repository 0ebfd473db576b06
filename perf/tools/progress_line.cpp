#include "perf/tools/progress_line.h"

#include <fmt/format.h>
#include <unistd.h>

namespace cenote::perf {
namespace {

constexpr auto patience = std::chrono::seconds(2);  // shorter runs need no line

void put(int fd, const std::string& text) {
  [[maybe_unused]] const auto written = ::write(fd, text.data(), text.size());
}

}  // namespace

std::string progress_text(const Plan& plan, std::uint64_t done, Clock::duration since) {
  if (plan.iterations != 0)
    return fmt::format("{} bytes: {} of {}", plan.size, done, plan.iterations + plan.warm_up);
  return fmt::format("{} bytes: {} of {:g} s, {} messages", plan.size,
                     std::chrono::duration_cast<std::chrono::seconds>(since).count(),
                     static_cast<double>(plan.duration_ns) / 1e9, done);
}

ProgressLine::ProgressLine(int fd) : fd_(fd), terminal_(::isatty(fd) == 1) { begin(); }

void ProgressLine::begin() {
  began_ = Clock::now();
  due_ = began_ + patience;
}

void ProgressLine::show(const Plan& plan, std::uint64_t done, Clock::time_point now) {
  if (now < due_) return;
  due_ = now + std::chrono::seconds(terminal_ ? 1 : 10);
  const auto text = progress_text(plan, done, now - began_);
  put(fd_, terminal_ ? "\r  " + text + "\x1b[K" : "  " + text + "\n");
  shown_ = terminal_;
}

void ProgressLine::end() {
  if (shown_) put(fd_, "\r\x1b[K");
  shown_ = false;
}

}  // namespace cenote::perf
