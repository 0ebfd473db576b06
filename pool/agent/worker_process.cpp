#include "pool/agent/worker_process.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <future>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "pool/agent/worker_wire.h"
#include "pool/remote/silence.h"
#include "runtime/spawn.h"
#include "runtime/unique_fd.h"

namespace cenote::pool::agent {

namespace {

static_assert(kWorkerFd == spawn_passed_fd);

struct Spawned {
  pid_t pid = -1;
  UniqueFd pidfd, socket;
};

Result<Spawned> spawn_worker(const WorkerProcessOptions& options, const WorkerSetup& setup) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    return fail(system_error("make the worker's socket pair", errno));
  }
  Spawned spawned;
  spawned.socket = UniqueFd(pair[0]);
  const UniqueFd theirs(pair[1]);
  // Before there is a worker: sending to one that died already would throw away its last words.
  CENOTE_TRY(send_packet(spawned.socket.get(), encode_setup(setup)));

  SpawnOptions how{.program = options.executable,
                   .words = {"cenote"},
                   .environment = caged_environment(own_environment()),
                   .pass = theirs.get(),
                   .own_session = true};
  how.words.insert(how.words.end(), options.arguments.begin(), options.arguments.end());
  how.words.insert(how.words.end(), {"--parent", std::to_string(::getpid())});
  auto started = spawn(how);
  if (!started) {
    started.error().stage = "start worker process " + options.executable;
    return fail(std::move(started).error());
  }
  spawned.pid = *started;
  spawned.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, spawned.pid, 0)));
  if (!spawned.pidfd) {
    const int cause = errno;
    ::kill(spawned.pid, SIGKILL);
    ::waitpid(spawned.pid, nullptr, 0);
    return fail(system_error("watch worker process", cause));
  }
  return spawned;
}

WorkerExit read_exit(int status, const std::string& last_words) {
  if (WIFSIGNALED(status)) {
    return {true,
            fmt::format("killed by signal {} ({})", WTERMSIG(status), ::sigabbrev_np(WTERMSIG(status)))};
  }
  const int code = WEXITSTATUS(status);
  if (code == worker_session_over || code == worker_setup_failed) return {false, last_words};
  return {true, fmt::format("exit code {}{}{}", code, last_words.empty() ? "" : ": ", last_words)};
}

class Processes final : public WorkerProcesses {
 public:
  Processes(WorkerProcessOptions options, UniqueFd wake)
      : options_(std::move(options)),
        cages_(std::move(options_.cages)),
        wake_(std::move(wake)),
        thread_([this] { run(); }) {}

  ~Processes() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    wake();
    thread_.join();
  }

  void on_exit(OnExit told) override {
    const std::lock_guard lock(mutex_);
    told_ = std::move(told);
  }

  Result<Bytes> start(const WorkerSetup& setup, Deadline deadline) override {
    std::future<Result<Bytes>> answer;
    {
      const std::lock_guard lock(mutex_);
      auto& worker = workers_.emplace_back(options_.silence);
      worker.setup = setup;
      answer = worker.answer.get_future();
      worker.answer_by = deadline;
    }
    wake();
    return answer.get();  // the thread answers by the deadline
  }

  void stop(const std::string& lease_id, std::uint64_t generation) override {
    {
      const std::lock_guard lock(mutex_);
      for (auto& worker : workers_) {
        if (worker.is(lease_id, generation)) worker.stop = true;
      }
    }
    wake();
  }

  [[nodiscard]] std::vector<DeviceUse> load(const std::string& lease_id,
                                            std::uint64_t generation) const override {
    const std::lock_guard lock(mutex_);
    for (const auto& worker : workers_) {
      if (worker.is(lease_id, generation)) return worker.use;
    }
    return {};
  }

  [[nodiscard]] std::vector<pid_t> pids() const override {
    const std::lock_guard lock(mutex_);
    std::vector<pid_t> pids;
    for (const auto& worker : workers_) {
      if (worker.process.pid > 0) pids.push_back(worker.process.pid);
    }
    return pids;
  }

 private:
  struct Worker {
    explicit Worker(Clock::duration longest_silence) : silence(longest_silence) {}

    WorkerSetup setup;
    std::promise<Result<Bytes>> answer;
    Deadline answer_by = Deadline::never();
    bool answered = false, spawned = false, stop = false, asked_to_end = false, gone = false;
    std::optional<Deadline> kill_at;
    HeldCage cage;
    Spawned process;
    std::vector<DeviceUse> use;
    remote::Silence silence;
    std::string hung;  ///< why it was killed
    std::string last_words;
    WorkerExit exit;

    [[nodiscard]] bool is(const std::string& lease_id, std::uint64_t generation) const {
      return setup.lease_id == lease_id && setup.generation == generation;
    }
    void reply(Result<Bytes> result) {
      if (answered) return;
      answered = true;
      answer.set_value(std::move(result));
    }
  };

  void wake() {
    const std::uint64_t one = 1;
    // Fails only when the counter is full: then the thread is awake already.
    [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
  }

  void run() {
    for (;;) {
      std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}};
      Deadline next = Deadline::in(std::chrono::seconds(60));
      std::list<Worker> gone;
      {
        std::unique_lock lock(mutex_);
        for (auto& worker : workers_) advance(worker, next);
        for (auto it = workers_.begin(); it != workers_.end();) {
          auto here = it++;
          if (here->gone) gone.splice(gone.end(), workers_, here);
        }
        if (closing_ && workers_.empty() && gone.empty()) return;
        for (const auto& worker : workers_) {
          if (worker.process.socket) fds.push_back({worker.process.socket.get(), POLLIN, 0});
          fds.push_back({worker.process.pidfd.get(), POLLIN, 0});
        }
      }
      for (auto& worker : gone) {
        if (told_) told_(worker.setup.lease_id, worker.setup.generation, worker.exit);
      }
      if (!gone.empty()) continue;
      ::poll(fds.data(), fds.size(), next.poll_ms());
      std::uint64_t count = 0;
      if (fds[0].revents != 0) [[maybe_unused]]
        const auto drained = ::read(wake_.get(), &count, sizeof count);
    }
  }

  // Everything that can be done for one worker without waiting; lowers `next` to when it wants to be looked
  // at.
  void advance(Worker& worker, Deadline& next) {
    if (closing_) worker.stop = true;
    if (!worker.spawned) launch(worker);
    if (worker.gone) return;
    listen(worker);
    if (reap(worker)) return;
    if (!worker.answered && worker.answer_by.passed()) {
      worker.reply(fail(ErrorCode::deadline_exceeded, "start worker of lease " + worker.setup.lease_id,
                        "it did not say in time where it listens"));
      worker.stop = true;
    }
    watch(worker, next);
    if (worker.stop && !worker.asked_to_end) {
      worker.asked_to_end = true;
      worker.kill_at = Deadline::in(options_.grace);
      ::shutdown(worker.process.socket.get(), SHUT_WR);  // the worker reads the end of the file and ends
    }
    if (worker.kill_at && worker.kill_at->passed()) {
      ::syscall(SYS_pidfd_send_signal, worker.process.pidfd.get(), SIGKILL, nullptr, 0);
      worker.kill_at.reset();
    }
    if (worker.kill_at) next = sooner(next, *worker.kill_at);
    if (!worker.answered) next = sooner(next, worker.answer_by);
  }

  void watch(Worker& worker, Deadline& next) const {
    if (!worker.answered || worker.asked_to_end || worker.stop) return;
    worker.silence.look(Clock::now());
    next = sooner(next, Deadline::in(worker.silence.step()));
    if (!worker.silence.over()) return;
    worker.hung = fmt::format("it {} (stopped, hung, or its machine is overloaded) and was killed",
                              worker.silence.text());
    worker.asked_to_end = true;
    worker.kill_at = Deadline::in(Clock::duration::zero());
  }

  static Deadline sooner(Deadline a, Deadline b) { return a.when() < b.when() ? a : b; }

  void launch(Worker& worker) {
    worker.spawned = true;
    if (worker.stop) {
      give_up(worker, Error{ErrorCode::cancelled, "start worker of lease " + worker.setup.lease_id,
                            "it was ended before it started"});
      return;
    }
    auto caged = cages_.make(worker.setup);
    if (!caged) {
      give_up(worker, std::move(caged).error());
      return;
    }
    worker.cage = std::move(*caged);
    worker.setup.cage = worker.cage.cage;
    auto process = spawn_worker(options_, worker.setup);
    if (!process) {
      give_up(worker, std::move(process).error());
      return;
    }
    worker.process = std::move(*process);
  }

  void give_up(Worker& worker, Error error) {
    worker.exit = {false, error.cause};
    worker.reply(fail(std::move(error)));
    worker.gone = true;
  }

  void listen(Worker& worker) {
    pollfd readable{worker.process.socket.get(), POLLIN, 0};
    while (worker.process.socket && ::poll(&readable, 1, 0) > 0) {
      const auto packet = receive_packet(worker.process.socket.get());
      if (!packet || packet->empty()) {
        // It closed its end: it is ending, or hangs in doing so.
        worker.process.socket = UniqueFd();
        worker.asked_to_end = true;
        if (!worker.kill_at) worker.kill_at = Deadline::in(options_.grace);
        return;
      }
      auto message = decode_message(*packet);
      if (!message) {
        worker.last_words = message.error().message();
        worker.stop = true;
        return;
      }
      worker.silence.heard();
      take(worker, std::move(*message));
    }
  }

  static void take(Worker& worker, WorkerMessage message) {
    switch (message.kind) {
      case WorkerSays::ready:
        worker.reply(std::move(message.address));
        break;
      case WorkerSays::load:
        worker.use = std::move(message.use);
        break;
      case WorkerSays::failed:
      case WorkerSays::done:
        if (message.error) {
          worker.last_words = message.error->message();
          worker.reply(fail(std::move(*message.error)));
        }
        break;
    }
  }

  bool reap(Worker& worker) {
    int status = 0;
    const auto pid = ::waitpid(worker.process.pid, &status, WNOHANG);
    if (pid == 0 || (pid < 0 && errno == EINTR)) return false;
    listen(worker);  // last words that came between the first look and the end
    worker.exit = worker.hung.empty() ? read_exit(status, worker.last_words) : WorkerExit{true, worker.hung};
    worker.reply(fail(ErrorCode::peer_failed, "start worker of lease " + worker.setup.lease_id,
                      worker.exit.reason.empty() ? "it ended before it listened" : worker.exit.reason));
    worker.gone = true;
    return true;
  }

  WorkerProcessOptions options_;
  Cages cages_;  ///< of the thread
  UniqueFd wake_;
  mutable std::mutex mutex_;
  OnExit told_;
  std::list<Worker> workers_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<WorkerProcesses>> WorkerProcesses::create(WorkerProcessOptions options) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return fail(system_error("make the wake-up of the worker processes", errno));
  return std::make_unique<Processes>(std::move(options), std::move(wake));
}

}  // namespace cenote::pool::agent
