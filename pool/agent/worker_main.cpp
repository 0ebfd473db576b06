#include "pool/agent/worker_main.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <memory>
#include <thread>
#include <utility>

#include "pool/agent/local_driver.h"
#include "pool/agent/near_devices.h"
#include "pool/agent/worker_wire.h"
#include "pool/remote/worker.h"
#include "runtime/unique_fd.h"

namespace cenote::pool::agent {

namespace {

constexpr int kLoadReportMs = 200;

// Beside the session: listens for the agent's word to end it, and reports load.
class Attendant {
 public:
  Attendant(int fd, remote::Worker& worker, CancelFlag& cancel, transport::Fabric& fabric)
      : fd_(fd), done_(::eventfd(0, EFD_CLOEXEC)), thread_([this, &worker, &cancel, &fabric] {
          while (!finished_) {
            pollfd fds[2] = {{fd_, POLLIN, 0}, {done_.get(), POLLIN, 0}};
            const int ready = ::poll(fds, 2, kLoadReportMs);
            if (ready > 0 && fds[0].revents != 0) {
              // The agent only ever says "end", or is gone.
              cancel.raise();
              fabric.interrupt();
              return;
            }
            report(worker);
          }
        }) {}

  ~Attendant() {
    finished_ = true;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto woken = ::write(done_.get(), &one, sizeof one);
    thread_.join();
  }
  Attendant(const Attendant&) = delete;
  Attendant& operator=(const Attendant&) = delete;

 private:
  void report(const remote::Worker& worker) const {
    WorkerMessage message;
    message.kind = WorkerSays::load;
    for (const auto& device : worker.load().devices) {
      message.use.push_back({device.memory_used, device.launches, device.busy_ns});
    }
    // A lost agent is noticed by poll.
    [[maybe_unused]] const auto sent = send_packet(fd_, encode_message(message));
  }

  int fd_;
  UniqueFd done_;
  std::atomic<bool> finished_{false};
  std::thread thread_;
};

// Tells the agent how it ended and gives that as an exit code.
int say(WorkerSays kind, const Result<void>& result, int code) {
  WorkerMessage message;
  message.kind = kind;
  if (!result) message.error = result.error();
  [[maybe_unused]] const auto sent = send_packet(kWorkerFd, encode_message(message));
  return code;
}

Result<void> die_with(pid_t parent) {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
    return fail(system_error("tie the worker to its agent", errno));
  // It may have died before the line above.
  if (::getppid() != parent) return fail(ErrorCode::peer_failed, "start worker", "its agent is gone");
  return {};
}

Result<PreparedWorker> set_up(pid_t parent) {
  CENOTE_TRY(die_with(parent));
  CENOTE_ASSIGN(const auto packet, receive_packet(kWorkerFd));
  if (packet.empty())
    return fail(ErrorCode::cancelled, "start worker", "the agent ended it before its setup");
  CENOTE_ASSIGN(const auto setup, decode_setup(packet));
  CENOTE_ASSIGN(auto log, worker_log(setup));  // its file may be the agent's alone
  CENOTE_TRY(enter(setup.cage, parent));
  return prepare_worker(setup, std::move(log));
}

}  // namespace

Result<std::unique_ptr<Logger>> worker_log(const WorkerSetup& setup) {
  LogOptions log = setup.log;
  log.component = "worker " + setup.lease_id;
  return Logger::create(log);
}

Result<PreparedWorker> prepare_worker(const WorkerSetup& setup, std::unique_ptr<Logger> log) {
  PreparedWorker served;
  served.log = std::move(log);
  CENOTE_ASSIGN(served.driver, open_driver(setup.driver));
  remote::WorkerOptions options;
  options.lease_id = setup.lease_id;
  for (const auto& device : setup.devices)
    options.devices.push_back(static_cast<cuda::DeviceId>(device.ordinal));
  auto fabric = setup.fabric;
  if (fabric.verbs.near.empty() && setup.driver.emulated.empty())
    fabric.verbs.near = near_devices(*served.driver, options.devices);
  fabric.verbs.log = served.log.get();  // what was chosen for each rail, at level debug
  CENOTE_ASSIGN(served.fabric, transport::Fabric::create(fabric));
  options.memory_limits = setup.memory_limits;
  options.client_fabric_address = setup.client_fabric_address;
  options.channel = setup.channel;
  options.rank_fabric = std::move(fabric);
  options.collectives = setup.collectives;
  CENOTE_ASSIGN(served.worker, remote::Worker::create(*served.driver, *served.fabric, std::move(options)));
  return served;
}

int worker_main(pid_t parent) {
  ::signal(SIGPIPE, SIG_IGN);
  auto served = set_up(parent);
  if (!served) return say(WorkerSays::failed, fail(std::move(served).error()), worker_setup_failed);

  WorkerMessage ready;
  ready.kind = WorkerSays::ready;
  ready.address = served->fabric->address();
  if (!send_packet(kWorkerFd, encode_message(ready))) return worker_setup_failed;

  CancelFlag cancel;
  Result<void> result;
  {
    const Attendant attendant(kWorkerFd, *served->worker, cancel, *served->fabric);
    result = served->worker->serve(cancel);
  }
  const int code = say(WorkerSays::done, result, worker_session_over);
  // A kernel that never ends would hold up the driver's own tidying for ever. The process ends instead, and
  // the kernel's work with it.
  if (!served->worker->settled()) ::_exit(code);
  return code;
}

}  // namespace cenote::pool::agent
