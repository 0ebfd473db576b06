// Commands a C program that uses libcenote-pool (pool_program.c), and finds its helper process.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cenote/pool.h"
#include "pool/cli/child_process.h"
#include "tests/multi/agent/cluster.h"
#include "tests/test_paths.h"

namespace cenote::pool::testing {

inline const std::string kPoolProgram = CENOTE_BINARY_DIR "/tests/pool_program";
inline const std::string kPtx = CENOTE_SOURCE_DIR "/cuda/kernels/basic.ptx";

struct Answer {
  int status = -1;  ///< a cenote_status; -1 = none came
  std::string text;
};
inline bool operator==(const Answer& a, int status) { return a.status == status; }
inline std::ostream& operator<<(std::ostream& out, const Answer& a) {
  return out << a.status << " " << a.text;
}

class PoolProgram {
 public:
  /// `environment`: its only CENOTE_* variables.
  explicit PoolProgram(const std::map<std::string, std::string>& environment = {}) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    socket_.reset(ends[0]);
    const UniqueFd theirs(ends[1]);
    cli::ChildOptions options;
    options.command = {kPoolProgram};
    options.without = "CENOTE_";
    options.environment = environment;
    options.pass = theirs.get();
    auto started = cli::ChildProcess::start(options);
    EXPECT_TRUE(started) << started.error().message();
    if (started) process_ = std::move(*started);
  }

  /// One command and its answer.
  Answer say(const std::string& command) {
    send(command);
    return hear();
  }
  /// "P L GPUS [TTL_MS]": asked again while the devices of an earlier lease are being cleared.
  Answer lease(const std::string& what) {
    Answer answer;
    EXPECT_TRUE(eventually([&] {
      answer = say("lease " + what);
      return answer.status != CENOTE_RESOURCE_EXHAUSTED;
    })) << answer;
    return answer;
  }
  void send(const std::string& command) {
    const auto line = command + "\n";
    EXPECT_EQ(::send(socket_.get(), line.data(), line.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(line.size()));
  }
  Answer hear(Deadline deadline = Deadline::in(std::chrono::seconds(90))) {
    std::string line;
    while (line.empty() || line.back() != '\n') {
      pollfd readable{socket_.get(), POLLIN, 0};
      char byte = 0;
      if (::poll(&readable, 1, deadline.poll_ms()) <= 0 || ::recv(socket_.get(), &byte, 1, 0) != 1)
        return {-1, "no answer after: " + line};
      line += byte;
    }
    line.pop_back();
    const auto space = line.find(' ');
    return {std::stoi(line.substr(0, space)), line.substr(space + 1)};
  }

  [[nodiscard]] pid_t pid() const { return process_.pid(); }
  void signal(int number) const { process_.signal(number); }
  void kill() { process_.end(Clock::duration::zero()); }
  /// It ends by itself, without a call to the library.
  int finish() {
    socket_.reset();
    const auto status = process_.wait(patience());
    return status ? cli::ChildProcess::exit_code(*status) : -1;
  }

  /// Its helper processes that run.
  [[nodiscard]] std::vector<pid_t> helpers() const { return helpers_of(process_.pid()); }
  static std::vector<pid_t> helpers_of(pid_t program) {
    std::string wanted("cenote\0session\0--for\0", 21);
    wanted += std::to_string(program) + '\0';
    std::vector<pid_t> found;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
      std::ifstream file(entry.path() / "cmdline", std::ios::binary);
      std::ostringstream words;
      words << file.rdbuf();  // a process that ends in the meantime has none: no exception
      if (words.str() == wanted) found.push_back(std::stoi(entry.path().filename()));
    }
    return found;
  }

 private:
  UniqueFd socket_;
  cli::ChildProcess process_;
};

}  // namespace cenote::pool::testing
