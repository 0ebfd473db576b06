// Enters a cage and tries one way out of it: `cage_process USER FILTERED CGROUP THREADS ATTEMPT [ARGUMENT]`.
// Prints what it met: "done", or the name of the error.
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <latch>
#include <map>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "pool/agent/cage.h"

namespace {

int system_call(long result) { return result < 0 ? errno : 0; }

std::string argument;

// As many threads as it gets, at most 200.
int many_threads() {
  std::vector<std::jthread> threads;
  std::latch over(1);
  int error = 0;
  try {
    for (int i = 0; i < 200; ++i) threads.emplace_back([&over] { over.wait(); });
  } catch (const std::system_error& refused) {
    error = refused.code().value();
  }
  over.count_down();
  return error;
}

int much_memory() {
  const std::size_t bytes = std::size_t{256} << 20U;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return errno;
  std::memset(memory, 1, bytes);
  return 0;
}

int look_into_parent() {
  char byte = 0;
  iovec here{&byte, 1}, there{reinterpret_cast<void*>(std::strtoull(argument.c_str(), nullptr, 16)), 1};
  return system_call(::process_vm_readv(::getppid(), &here, 1, &there, 1, 0));
}

int thread_works() {
  int answer = 0;
  std::thread([&answer] { answer = 42; }).join();
  return answer == 42 ? 0 : EINVAL;
}

int open_socket(int family, int type) {
  const int fd = ::socket(family, type, 0);
  return fd < 0 ? errno : (::close(fd), 0);
}

const std::map<std::string, std::function<int()>> attempts{
    {"nothing", [] { return 0; }},
    {"read", [] { return system_call(::open(argument.c_str(), O_RDONLY | O_CLOEXEC)); }},
    {"start a program", [] { return system_call(::execl("/bin/true", "true", nullptr)); }},
    {"fork",
     [] {
       const auto pid = ::fork();
       if (pid == 0) ::_exit(0);
       return system_call(pid);
     }},
    {"trace its parent", [] { return system_call(::ptrace(PTRACE_SEIZE, ::getppid(), nullptr, nullptr)); }},
    {"look into its parent", look_into_parent},
    {"kill its parent", [] { return system_call(::kill(::getppid(), 0)); }},
    {"open its parent's pidfd", [] { return system_call(::syscall(SYS_pidfd_open, ::getppid(), 0)); }},
    {"become root", [] { return system_call(::syscall(SYS_setresuid, 0, 0, 0)); }},
    {"a user namespace", [] { return system_call(::unshare(CLONE_NEWUSER)); }},
    {"a user namespace by clone",
     [] {
       const long pid = ::syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
       if (pid == 0) ::_exit(0);
       return system_call(pid);
     }},
    {"mount", [] { return system_call(::mount("none", "/mnt", "tmpfs", 0, nullptr)); }},
    {"bpf",
     [] {
       bpf_attr attributes{};
       return system_call(::syscall(SYS_bpf, BPF_MAP_CREATE, &attributes, sizeof attributes));
     }},
    {"perf events",
     [] {
       perf_event_attr attributes{};
       attributes.type = PERF_TYPE_SOFTWARE;
       attributes.size = sizeof attributes;
       return system_call(::syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0));
     }},
    {"keys", [] { return system_call(::syscall(SYS_keyctl, 0, -3, 1)); }},
    {"user faults", [] { return system_call(::syscall(SYS_userfaultfd, O_CLOEXEC)); }},
    {"io_uring", [] { return system_call(::syscall(SYS_io_uring_setup, 1, nullptr)); }},
    {"a raw socket", [] { return open_socket(AF_PACKET, SOCK_RAW); }},
    {"a crypto socket", [] { return open_socket(AF_ALG, SOCK_SEQPACKET); }},
    {"be traceable again", [] { return system_call(::prctl(PR_SET_DUMPABLE, 1)); }},
    {"outlive its agent", [] { return system_call(::prctl(PR_SET_PDEATHSIG, 0)); }},
    {"a call of tomorrow", [] { return system_call(::syscall(5000)); }},
    {"many threads", many_threads},
    {"much memory", much_memory},
    {"crash",
     [] {
       std::abort();
       return 0;
     }},
    {"a thread", thread_works},
    {"a TCP socket", [] { return open_socket(AF_INET, SOCK_STREAM); }},
    {"a unix socket", [] { return open_socket(AF_UNIX, SOCK_SEQPACKET); }},
    {"wait for a signal",
     [] {
       ::pause();
       return 0;
     }},
};

}  // namespace

int main(int argc, char** argv) {
  using namespace cenote::pool::agent;
  if (argc < 6) return 2;
  const Cage cage{.user = static_cast<std::uint32_t>(std::strtoul(argv[1], nullptr, 10)),
                  .cgroup = argv[3],
                  .threads = std::strtoull(argv[4], nullptr, 10),
                  .filtered = std::string(argv[2]) == "filtered",
                  .dumpable = std::string(argv[2]) != "filtered"};
  const auto attempt = attempts.find(argv[5]);
  if (attempt == attempts.end()) return 2;
  if (argc > 6) argument = argv[6];
  if (auto entered = enter(cage, ::getppid()); !entered) {
    std::printf("not caged: %s\n", entered.error().message().c_str());
    return 1;
  }
  if (attempt->first == "wait for a signal") std::printf("waiting\n");
  std::fflush(stdout);
  const int error = attempt->second();
  std::printf("%s\n", error == 0 ? "done" : ::strerrorname_np(error));
  std::fflush(stdout);
  ::_exit(0);  // a sanitizer's own end would make system calls of its own
}
