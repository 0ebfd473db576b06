// `cenote perf` as a process whose words can be read while it runs.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/multi/agent/cluster.h"

namespace cenote::perf::test {

using pool::testing::eventually;
using pool::testing::patience;

/// Ends with the test, whatever it does.
class Running {
 public:
  explicit Running(std::vector<std::string> words)
      : output_(::memfd_create("output", MFD_CLOEXEC)), error_(::memfd_create("error", MFD_CLOEXEC)) {
    pool::cli::ChildOptions options;
    words.insert(words.begin(), pool::testing::kCenote);
    options.command = std::move(words);
    options.output = output_.get();
    options.error = error_.get();
    auto started = pool::cli::ChildProcess::start(options);
    EXPECT_TRUE(started) << started.error().message();
    if (started) child_ = std::move(*started);
  }

  [[nodiscard]] pid_t pid() const { return child_.pid(); }
  [[nodiscard]] std::string output() const { return text(output_); }
  [[nodiscard]] std::string error() const { return text(error_); }
  void signal(int number) const { child_.signal(number); }
  /// Its exit code; -1 with a failure of the test when it does not end.
  int wait() {
    const auto status = child_.wait(patience());
    EXPECT_TRUE(status) << "it does not end; it said: " << error();
    return status ? pool::cli::ChildProcess::exit_code(*status) : -1;
  }
  bool says(const std::string& words) const {
    return eventually([&] { return (output() + error()).find(words) != std::string::npos; });
  }
  /// The port that a server took.
  [[nodiscard]] std::string port() const {
    const std::string before = "waiting for the client on ";
    EXPECT_TRUE(says(before)) << error();
    auto line = error();
    line = line.substr(line.find(before));
    line = line.substr(0, line.find('\n'));
    return line.substr(line.rfind(':') + 1);
  }

 private:
  static std::string text(const UniqueFd& fd) {
    std::string out(static_cast<std::size_t>(::lseek(fd.get(), 0, SEEK_END)), '\0');
    const auto count = ::pread(fd.get(), out.data(), out.size(), 0);
    out.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
    return out;
  }

  UniqueFd output_, error_;
  pool::cli::ChildProcess child_;
};

}  // namespace cenote::perf::test
