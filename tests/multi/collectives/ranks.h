// Runs ranks as threads of one process, or as processes that can be killed.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/communicator.h"

namespace cenote::collectives {

/// Transports of each rank: {"shm", "tcp"} for all, or alternating with ranks that have no shared memory.
enum class Mode : std::uint8_t { shm, tcp, mixed };
inline std::string name_of(Mode mode) {
  return mode == Mode::shm ? "shm" : mode == Mode::tcp ? "tcp" : "mixed";
}

inline CommunicatorOptions options_for(Mode mode, std::uint32_t rank, std::uint32_t size) {
  CommunicatorOptions options;
  options.rank = rank;
  options.size = size;
  options.fabric.transports =
      mode == Mode::shm ? std::vector<std::string>{"shm"} : std::vector<std::string>{"shm", "tcp"};
  if (mode == Mode::tcp || (mode == Mode::mixed && rank % 2 == 1)) options.fabric.transports = {"tcp"};
  options.operation_timeout = std::chrono::seconds(60);
  options.init_timeout = std::chrono::seconds(60);
  return options;
}

/// One communicator a thread; `body` runs on each.
inline void on_threads(std::vector<CommunicatorOptions> all, const std::function<void(Communicator&)>& body,
                       const std::function<void(std::uint32_t, const Error&)>& failed) {
  auto root = BootstrapRoot::create("127.0.0.1");
  if (!root) return failed(0, root.error());
  std::vector<std::thread> threads;
  for (auto& options : all) {
    options.id = (*root)->id();
    threads.emplace_back([&options, &body, &failed] {
      auto communicator = Communicator::create(options);
      if (!communicator) return failed(options.rank, communicator.error());
      body(**communicator);
    });
  }
  for (auto& thread : threads) thread.join();
}

/// A rank in a process of its own; killed and reaped by the destructor. Make all of them before any thread.
class RankProcess {
 public:
  /// `body` gets the id's text (from `tell`), calls `up` when it is in the group, and returns a report.
  explicit RankProcess(
      const std::function<std::string(const std::string& id, const std::function<void()>& up)>& body) {
    int in[2];
    int out[2];
    if (pipe(in) != 0 || pipe(out) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      close(in[1]);
      close(out[0]);
      const auto report = body(read_line(in[0]), [&] { (void)!write(out[1], "up\n", 3); });
      (void)!write(out[1], report.data(), report.size());
      _exit(0);
    }
    close(in[0]);
    close(out[1]);
    tell_ = in[1];
    listen_ = out[0];
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  ~RankProcess() {
    if (tell_ >= 0) close(tell_);
    if (listen_ >= 0) close(listen_);
    kill(SIGKILL);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
  }

  void tell(const std::string& text) {
    const auto line = text + "\n";
    (void)!write(tell_, line.data(), line.size());
    close(std::exchange(tell_, -1));
  }
  void kill(int signal) const {
    if (pid_ > 0) ::kill(pid_, signal);
  }
  /// Waits until it called `up` (true) or ended.
  [[nodiscard]] bool is_up() const { return read_line(listen_) == "up"; }
  /// What it reported; empty when it died. Waits for its end.
  std::string report() {
    auto text = read_all(listen_);
    close(std::exchange(listen_, -1));
    return text;
  }

 private:
  /// Not up to the end: processes made later hold copies of the pipe.
  static std::string read_line(int fd) {
    std::string text;
    for (char c = 0; read(fd, &c, 1) == 1 && c != '\n';) text += c;
    return text;
  }
  static std::string read_all(int fd) {
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = read(fd, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(n));
    return text;
  }
  pid_t pid_ = -1;
  int tell_ = -1;
  int listen_ = -1;
};

}  // namespace cenote::collectives
