// Runs ranks as threads of one process, or as processes that can be killed.
#pragma once

#include <gtest/gtest.h>
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

/// Transports of each rank: one for all, or (mixed) shared memory but for the odd ranks, which have TCP only.
/// Over verbs, ranks with one card or the other of the test VM alternate with such that have both.
enum class Mode : std::uint8_t { shm, tcp, mixed, verbs };
inline std::string name_of(Mode mode) {
  constexpr const char* names[] = {"shm", "tcp", "mixed", "verbs"};
  return names[static_cast<std::size_t>(mode)];
}
/// By which transport two ranks must reach each other.
inline std::string transport_between(Mode mode, std::uint32_t a, std::uint32_t b) {
  if (mode == Mode::mixed) return a % 2 == 0 && b % 2 == 0 ? "shm" : "tcp";
  return name_of(mode);
}

struct GroupOf {
  Mode mode;
  std::uint32_t ranks;
};
/// What the tests run over: modes.cpp, or a file like it that they are linked with.
std::vector<Mode> modes();
std::vector<GroupOf> groups();

/// How often what is tried again and again is tried: less in the VM, whose processor is emulated.
inline int rounds(Mode mode, int usual) { return mode == Mode::verbs ? (usual + 3) / 4 : usual; }

inline CommunicatorOptions options_for(Mode mode, std::uint32_t rank, std::uint32_t size) {
  CommunicatorOptions options;
  options.rank = rank;
  options.size = size;
  options.fabric.transports = {mode == Mode::mixed ? "shm" : name_of(mode)};
  if (mode == Mode::mixed) options.fabric.transports.emplace_back("tcp");
  if (mode == Mode::mixed && rank % 2 == 1) options.fabric.transports = {"tcp"};
  const std::vector<std::string> cards[] = {{"rxe0"}, {"rxe1"}, {"rxe0", "rxe1"}};
  options.fabric.verbs.devices = mode == Mode::verbs ? cards[rank % 3] : std::vector<std::string>{};
  options.fabric.verbs.timeout = 18;  // a second: see tests/vm/environment.h
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

inline MemoryDescription memory_of(Bytes& bytes) {
  return MemoryDescription::of_host(bytes.data(), bytes.size());
}

/// `ranks` of one mode, a thread each; whoever does not get into the group fails the test.
inline void run(Mode mode, std::uint32_t ranks, const std::string& algorithm,
                const std::function<void(Communicator&)>& body) {
  std::vector<CommunicatorOptions> all;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    all.push_back(options_for(mode, r, ranks));
    all.back().algorithm = algorithm;
  }
  on_threads(std::move(all), body, [](std::uint32_t rank, const Error& error) {
    ADD_FAILURE() << "rank " << rank << ": " << error.message();
  });
}

inline Result<void> finish(Communicator& communicator, Result<Request> request) {
  if (!request) return fail(std::move(request).error());
  return communicator.wait(*request, Deadline::never());
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
  [[nodiscard]] pid_t pid() const { return pid_; }
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

/// Allreduces of changing sizes until something fails; the report says what, and how long the last one took.
inline std::string reduce_until_failure(const std::string& id, const std::function<void()>& up, Mode mode,
                                        std::uint32_t rank, std::uint32_t ranks, Clock::duration timeout,
                                        Clock::duration init_timeout = std::chrono::seconds(20)) {
  auto options = options_for(mode, rank, ranks);
  options.id = *UniqueId::parse(id);
  options.operation_timeout = timeout;
  options.init_timeout = init_timeout;
  auto communicator = Communicator::create(options);
  if (!communicator) return "create: " + communicator.error().message();
  up();
  Bytes buffer(1 << 20);
  for (std::uint64_t i = 0;; ++i) {
    const std::size_t count = i % 3 == 0 ? 5 : i % 3 == 1 ? 3'000 : 200'000;
    const auto started = Clock::now();
    auto request =
        (*communicator)->allreduce(memory_of(buffer), memory_of(buffer), count, CENOTE_FLOAT32, CENOTE_MAX);
    Result<void> done = request ? (*communicator)->wait(*request, Deadline::never()) : fail(request.error());
    if (done) continue;
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - started).count();
    return "after " + std::to_string(ms) + " ms, peer " + done.error().peer + ": " + done.error().message();
  }
}

}  // namespace cenote::collectives
