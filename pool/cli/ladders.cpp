#include "pool/cli/ladders.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "pool/agent/cage_plan.h"
#include "pool/agent/local_driver.h"
#include "pool/cli/cli.h"
#include "pool/cli/gpu_ladder.h"
#include "pool/cli/output.h"
#include "pool/client/pool_client.h"
#include "runtime/unique_fd.h"
#include "transports/fabric.h"
#include "transports/verbs/preflight.h"
#include "transports/verbs/verbs.h"

namespace cenote::pool::cli {

namespace {

namespace fs = std::filesystem;

Rung rung(std::string ladder, std::string name, bool usable, std::string reason, std::string remedy = {}) {
  return {std::move(ladder), std::move(name), usable, std::move(reason),
          usable ? std::string() : std::move(remedy)};
}

Rung cuda_driver() {
  const auto driver = agent::open_driver({});
  if (!driver) {
    return rung("GPU driver", "libcuda", false, driver.error().cause,
                "install the vendor's driver on machines with a GPU; elsewhere use emulated GPUs");
  }
  const auto devices = agent::list_devices(**driver, {});
  return devices ? rung("GPU driver", "libcuda", true,
                        fmt::format("{}, {}", (*driver)->name(), count_text(devices->size(), "device")))
                 : rung("GPU driver", "libcuda", false, devices.error().cause, "check with nvidia-smi");
}

Rung emulated_driver() {
  const agent::DriverSpec spec{.machine = "doctor",
                               .emulated = {{.model = "H200", .memory_bytes = 16 << 20}}};
  const auto driver = agent::open_driver(spec);
  return driver ? rung("GPU driver", "emulated", true,
                       "PTX runs on this machine's processor (agent.devices emulated:...)")
                : rung("GPU driver", "emulated", false, driver.error().cause);
}

Rung shared_memory() {
  const std::string ladder = "transport", name = "shm";
  const UniqueFd fd(static_cast<int>(::syscall(SYS_memfd_create, "cenote-doctor", MFD_CLOEXEC)));
  if (!fd) return rung(ladder, name, false, fmt::format("memfd_create: {}", std::strerror(errno)));
  if (::ftruncate(fd.get(), 4096) != 0)
    return rung(ladder, name, false, fmt::format("ftruncate: {}", std::strerror(errno)));
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (page == MAP_FAILED) return rung(ladder, name, false, fmt::format("mmap: {}", std::strerror(errno)));
  ::munmap(page, 4096);
  std::error_code ignored;
  if (!fs::exists("/proc/sys/kernel/random/boot_id", ignored)) {
    return rung(ladder, name, false, "no boot id in /proc: peers on this host cannot be told", "mount /proc");
  }
  return rung(ladder, name, true, "memfd works, boot id readable: peers on this host share memory");
}

Rung tcp(const Settings& settings) {
  const auto& host = settings.text("tcp.host");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), "0", &hints, &found); error != 0) {
    return rung("transport", "tcp", false, fmt::format("tcp.host {}: {}", host, ::gai_strerror(error)),
                "set tcp.host to an address of this machine");
  }
  const UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool bound = fd && ::bind(fd.get(), found->ai_addr, found->ai_addrlen) == 0;
  const int cause = errno;
  ::freeaddrinfo(found);
  if (!bound) {
    return rung("transport", "tcp", false, fmt::format("bind to tcp.host {}: {}", host, std::strerror(cause)),
                "set tcp.host to an address of this machine");
  }
  const bool loopback = host.starts_with("127.") || host == "localhost" || host == "::1";
  return rung(
      "transport", "tcp", true,
      fmt::format("tcp.host {} can be bound{}", host, loopback ? " (reachable from this machine only)" : ""));
}

Rung verbs(const Settings& settings) {
  auto options = transport::fabric_options(settings).verbs;
  options.host = settings.text("tcp.host");
  options.receives = 8;  // of 8 KiB each: enough to see that a port takes any
  const auto made = transport::make_verbs_transport(options);
  return made ? rung("transport", "verbs", true, "ports can be used; the preflight below names them")
              : rung("transport", "verbs", false, made.error().cause, made.error().remedy);
}

/// As the preflight judges it, which knows who is not bound by the limit.
Rung locked_memory() {
  using namespace transport::verbs;
  for (const auto& finding : preflight(read_machine(MachineFiles())))
    if (finding.subject == "locked memory")
      return rung("process limits", finding.subject, finding.verdict <= Verdict::warning, finding.seen,
                  finding.remedy);
  return rung("process limits", "locked memory", false, "it was not looked at");
}

Rung open_files() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return rung("process limits", "open files", limit.rlim_cur >= 1024,
              fmt::format("RLIMIT_NOFILE is {}", limit.rlim_cur),
              "each lease and each peer takes a few descriptors: ulimit -n 65536");
}

Rung pid_descriptors() {
  const UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  return rung("process limits", "pidfd", static_cast<bool>(fd),
              fd ? "agents can watch their workers" : fmt::format("pidfd_open: {}", std::strerror(errno)),
              "agents need Linux 5.3 or newer");
}

/// What an agent that this user starts here would hold its workers to.
std::vector<Rung> cage_ladder(const Settings& settings) {
  const std::string ladder = "worker's cage";
  const auto plan = agent::plan_cage(agent::cage_options(settings));
  if (!plan) return {rung(ladder, "user", false, plan.error().cause, plan.error().remedy)};
  std::vector<Rung> rungs;
  for (const auto& part : plan->rungs)
    rungs.push_back(rung(ladder, std::string(part.name), part.taken, part.reason, part.remedy));
  return rungs;
}

}  // namespace

std::vector<Rung> machine_ladders(const Settings& settings) {
  std::vector<Rung> rungs{cuda_driver(), emulated_driver()};
  std::ranges::move(gpu_memory_ladder(settings), std::back_inserter(rungs));
  rungs.push_back(verbs(settings));
  rungs.push_back(shared_memory());
  rungs.push_back(tcp(settings));
  rungs.push_back(locked_memory());
  rungs.push_back(open_files());
  rungs.push_back(pid_descriptors());
  std::ranges::move(cage_ladder(settings), std::back_inserter(rungs));
  return rungs;
}

std::vector<Rung> pool_ladders(const Settings& settings) {
  std::vector<Rung> rungs;
  const auto& broker = settings.text("broker.address");
  const auto client = make_client(settings);
  if (!client) {
    rungs.push_back(rung("pool", "certificate", false, client.error().cause, client.error().remedy));
    rungs.push_back(rung("pool", "broker", false, "not tried: there is no certificate to show to " + broker));
    return rungs;
  }
  rungs.push_back(
      rung("pool", "certificate", true, "client certificate of " + settings.text("tls.dir") + " is good"));
  const auto state = (*client)->top(Deadline::in(std::chrono::seconds(2)));
  rungs.push_back(
      state ? rung("pool", "broker", true,
                   fmt::format("{} answers: {}, {}", broker, count_text(state->agents.size(), "agent"),
                               count_text(state->leases.size(), "lease")))
            : rung("pool", "broker", false, state.error().cause, state.error().remedy));
  return rungs;
}

}  // namespace cenote::pool::cli
