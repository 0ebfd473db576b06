// `cenote demo` as a process that a test does things to: it can be watched, signalled, and looked over when
// it has ended, also for what it left behind.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "tests/multi/agent/cluster.h"

namespace cenote::pool::testing {

class DemoProcess {
 public:
  /// Its temporary folder is made in a folder of its own, so that it can be found.
  explicit DemoProcess(const std::vector<std::string>& arguments) {
    cli::ChildOptions options;
    options.command = {kCenote, "demo", "--json", figures_path()};
    options.command.insert(options.command.end(), arguments.begin(), arguments.end());
    std::filesystem::create_directory(temporary());
    options.environment["TMPDIR"] = temporary();
    options.output = output_.get();
    options.error = error_.get();
    auto child = cli::ChildProcess::start(options);
    EXPECT_TRUE(child) << child.error().message();
    if (child) child_ = std::move(*child);
  }

  cli::ChildProcess& child() { return child_; }
  /// Waits for its end; its exit code as a shell tells it.
  int end() {
    const auto status = child_.wait(Deadline::in(std::chrono::minutes(4)));
    EXPECT_TRUE(status) << "it did not end: " << output();
    return status ? cli::ChildProcess::exit_code(*status) : -1;
  }
  [[nodiscard]] std::string output() const { return contents(output_); }
  [[nodiscard]] std::string error() const { return contents(error_); }
  bool has_said(const std::string& text) {
    return eventually([&] { return output().find(text) != std::string::npos || !child_.running(); },
                      Deadline::in(std::chrono::minutes(2))) &&
           output().find(text) != std::string::npos;
  }
  [[nodiscard]] nlohmann::json figures() const {
    std::ifstream file(figures_path());
    return nlohmann::json::parse(file, nullptr, false);
  }
  [[nodiscard]] std::string figures_path() const { return folder_.file("figures.json"); }
  [[nodiscard]] std::string temporary() const { return folder_.file("tmp"); }
  /// Names in its temporary folder.
  [[nodiscard]] std::vector<std::string> left() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(temporary()))
      names.push_back(entry.path().filename());
    return names;
  }
  /// Broker, agents and guardian, by the words of their command lines; -1 = there is none (any more).
  pid_t child_named(const std::string& word) {
    for (const auto pid : children_of(child_.pid())) {
      const auto words = command_line(pid);
      if (std::ranges::find(words, word) != words.end()) return pid;
    }
    return -1;
  }
  static std::vector<std::string> command_line(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
    std::vector<std::string> words;
    for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
    return words;
  }

 private:
  static std::string contents(const UniqueFd& fd) {
    std::string text(
        static_cast<std::size_t>(std::filesystem::file_size("/proc/self/fd/" + std::to_string(fd.get()))),
        '\0');
    const auto got = ::pread(fd.get(), text.data(), text.size(), 0);
    text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return text;
  }

  TemporaryFolder folder_ = std::move(*TemporaryFolder::create("cenote-test"));
  UniqueFd output_{::memfd_create("output", MFD_CLOEXEC)}, error_{::memfd_create("error", MFD_CLOEXEC)};
  cli::ChildProcess child_;
};

}  // namespace cenote::pool::testing
