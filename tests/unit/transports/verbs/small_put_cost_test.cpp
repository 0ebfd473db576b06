// What a small put, get and message over verbs does beside posting and polling: no allocation, no lock, and
// no system call but the look at its sockets that progress() takes a thousand times a second.
//
// Runs itself again over a libibverbs under which every request is done at once (perf/at_once), counts there
// every malloc and every lock, and has the kernel trap every system call.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <sstream>

#include "runtime/spawn.h"
#include "runtime/unique_fd.h"
#include "tests/test_paths.h"
#include "transports/verbs/verbs.h"

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* old, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
}

namespace cenote::transport {
namespace {

std::atomic<long> allocations{0}, locks{0}, looks{0}, other_calls{0}, latest_other{-1};
constexpr auto look_interval = std::chrono::milliseconds(1);  // no transport looks more often

}  // namespace
}  // namespace cenote::transport

// The whole program's, so also those of the C++ library and of whatever is loaded.
#pragma GCC visibility push(default)
extern "C" {
void* malloc(std::size_t size) {
  cenote::transport::allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  cenote::transport::allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, size);
}
void* realloc(void* old, std::size_t size) {
  cenote::transport::allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(old, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  cenote::transport::allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, size);
}
int pthread_mutex_lock(pthread_mutex_t* mutex) {
  cenote::transport::locks.fetch_add(1, std::memory_order_relaxed);
  using Lock = int (*)(pthread_mutex_t*);
  static const auto real = reinterpret_cast<Lock>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  return real(mutex);
}
}
#pragma GCC visibility pop

namespace cenote::transport {
namespace {

/// Answers a trapped call with 0: of epoll, that nothing happened.
void on_trap(int /*signal*/, siginfo_t* info, void* context) {
  const int number = info->si_syscall;
  if (number == SYS_epoll_wait || number == SYS_epoll_pwait) {
    looks.fetch_add(1, std::memory_order_relaxed);
  } else {
    other_calls.fetch_add(1, std::memory_order_relaxed);
    latest_other.store(number, std::memory_order_relaxed);
  }
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RAX] = 0;
}

/// From now on every system call is trapped but those that end the process, or read the clock where the
/// kernel has no faster way.
bool trap_system_calls() {
  struct sigaction action = {};
  action.sa_sigaction = on_trap;
  action.sa_flags = SA_SIGINFO;
  if (::sigaction(SIGSYS, &action, nullptr) != 0) return false;
  const auto allow = [](unsigned number, unsigned char to_the_end) {
    return sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, to_the_end, 0);
  };
  std::array<sock_filter, 7> program{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      allow(SYS_rt_sigreturn, 4),
      allow(SYS_write, 3),
      allow(SYS_exit_group, 2),
      allow(SYS_clock_gettime, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

struct Pair {
  std::unique_ptr<Transport> from = make_verbs_transport().value(), to = make_verbs_transport().value();
  std::unique_ptr<Region> memory = to->allocate(4096).value(), own = from->allocate(4096).value();
  std::unique_ptr<Endpoint> writer, target;
};

/// Does what `post(number)` does `count` times; takes each completion.
template <class Post>
bool many(Pair& pair, std::uint64_t count, const Post& post) {
  Completion done[16];
  std::uint64_t posted = 0, finished = 0;
  while (finished < count) {
    for (; posted < count && posted - finished < 128; ++posted) {
      if (!post(posted)) return false;
    }
    pair.from->progress();
    const std::size_t taken = pair.writer->poll(done);
    for (std::size_t i = 0; i < taken; ++i) {
      if (done[i].error || done[i].tag != finished + i) return false;
    }
    finished += taken;
  }
  return true;
}

/// Puts 8 bytes, every other time with a signal; gets as many; sends as many messages as the window takes
/// while the peer takes none.
bool move_many(Pair& pair, std::uint64_t count, std::uint64_t messages) {
  const std::uint64_t word = 1;
  const auto bytes = std::as_bytes(std::span(&word, 1));
  const RemoteSlice there{&pair.memory->key(), 8};
  const bool moved =
      many(pair, count,
           [&](std::uint64_t tag) {
             return pair.writer->put(bytes, there, tag % 2 == 0 ? 5 : no_signal, tag).has_value();
           }) &&
      many(pair, count, [&](std::uint64_t tag) {
        return pair.writer->get(pair.own->bytes().first(8), there, tag).has_value();
      });
  for (std::uint64_t i = 0; moved && i < messages; ++i) {
    if (!pair.writer->send(bytes)) return false;
    pair.from->progress();
  }
  return moved;
}

/// 0 and the counts on standard output, or how far it came.
int count_costs() {
  Pair pair;
  const Deadline deadline = Deadline::in(std::chrono::seconds(60));
  pair.writer = pair.from->connect(pair.to->address(), "target", 0, deadline).value();
  pair.target = pair.to->connect(pair.from->address(), "writer", 0, deadline).value();
  if (!pair.writer->put({}, {}, 1, 0)) return 10;
  Completion done;
  while (pair.writer->poll(std::span(&done, 1)) == 0) {
    pair.from->progress();
    pair.to->progress();
    if (deadline.passed()) return 11;
  }
  if (!move_many(pair, 5000, 1000)) return 12;  // queues grow to their size
  if (!trap_system_calls()) return 13;
  allocations = locks = 0;
  const auto begin = Clock::now();
  const bool moved = move_many(pair, 100'000, 4000);
  const auto passed = Clock::now() - begin;
  const long costs[] = {allocations, locks, looks, other_calls, latest_other};
  const long allowed = passed / look_interval + 1;
  char text[200];
  const int size = std::snprintf(text, sizeof text, "%ld %ld %ld %ld %ld %ld\n", costs[0], costs[1], costs[2],
                                 allowed, costs[3], costs[4]);
  if (!moved || ::write(STDOUT_FILENO, text, static_cast<std::size_t>(size)) != size) ::_exit(14);
  ::_exit(0);
}

TEST(SmallOperations, CostNoAllocationNoLockAndNoSystemCall) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  SpawnOptions options;
  options.program = "/proc/self/exe";
  options.words = {"small_put_cost_test", "--count"};
  auto environment = own_environment();
  std::erase_if(environment, [](const std::string& each) { return each.starts_with("LD_LIBRARY_PATH="); });
  environment.push_back("LD_LIBRARY_PATH=" CENOTE_BINARY_DIR "/at_once");
  options.environment = std::move(environment);
  options.output = write_end.get();
  const auto pid = spawn(options);
  ASSERT_TRUE(pid) << pid.error().message();
  write_end.reset();
  std::string text;
  char buffer[256];
  for (ssize_t count = 0; (count = ::read(read_end.get(), buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(count));
  int status = 0;
  ASSERT_EQ(::waitpid(*pid, &status, 0), *pid);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  std::istringstream in(text);
  long allocated = -1, locked = -1, looked = -1, may_look = -1, others = -1, latest = -1;
  ASSERT_TRUE(in >> allocated >> locked >> looked >> may_look >> others >> latest) << text;
  EXPECT_EQ(allocated, 0);
  EXPECT_EQ(locked, 0);
  EXPECT_EQ(others, 0) << "the latest was system call " << latest;
  EXPECT_LE(looked, may_look);
}

}  // namespace
}  // namespace cenote::transport

int main(int count, char** words) {
  if (count > 1 && std::string_view(words[1]) == "--count") return cenote::transport::count_costs();
  testing::InitGoogleTest(&count, words);
  return RUN_ALL_TESTS();
}
