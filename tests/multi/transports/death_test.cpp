// A process that is killed is noticed by its peer within a second, spinning or asleep, also when a child that
// it forked has all its descriptors and lives on. A single death may meet a machine that is busy with
// something else: the second is held against the median.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/unique_fd.h"
#include "tests/fault_row.h"
#include "tests/unit/transports/pair.h"

namespace cenote::transport::test {
namespace {

class Death : public Conformance {};
CENOTE_CONFORMANCE(Death);

struct Introduction {
  std::byte address[256];
  std::size_t size = 0;
};

void exchange(int fd, const Transport& transport, Introduction& theirs) {
  Introduction mine{};
  mine.size = transport.address().size();
  std::memcpy(mine.address, transport.address().data(), mine.size);
  ASSERT_EQ(::send(fd, &mine, sizeof mine, 0), static_cast<ssize_t>(sizeof mine));
  ASSERT_EQ(::recv(fd, &theirs, sizeof theirs, MSG_WAITALL), static_cast<ssize_t>(sizeof theirs));
}

/// A child of the victim that does nothing but hold what it inherited, until the test has closed `life`.
void fork_heir(const UniqueFd& life) {
  if (::fork() != 0) return;
  char nothing = 0;
  (void)!::read(life.get(), &nothing, 1);
  ::_exit(0);
}

/// The victim: connects, gives a signal, then lives on until it is killed.
[[noreturn]] void live(int fd, const Kind& kind, const UniqueFd& life) {
  const auto transport = make(kind);
  Introduction theirs{};
  exchange(fd, *transport, theirs);
  const auto endpoint =
      transport->connect(std::span(theirs.address).first(theirs.size), "parent", 0, soon()).value();
  while (endpoint->signal(0) == 0) transport->progress();  // the heir inherits a connection that stands
  if (life) fork_heir(life);
  (void)endpoint->put({}, {}, 0, 0);
  while (!endpoint->failure()) transport->progress();
  ::_exit(0);
}

/// How long the death took to be noticed.
void kill_and_notice(const Kind& kind, bool asleep, bool with_heir, Clock::duration& noticed_after) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  UniqueFd here(pair[0]), there(pair[1]);
  int life[2] = {-1, -1};
  ASSERT_TRUE(!with_heir || ::pipe2(life, O_CLOEXEC) == 0);
  UniqueFd life_of_heir(life[0]), life_here(life[1]);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    here.reset();
    life_here.reset();
    live(there.get(), kind, life_of_heir);
  }
  const auto transport = make(kind);
  Introduction theirs{};
  exchange(here.get(), *transport, theirs);
  const auto endpoint =
      transport->connect(std::span(theirs.address).first(theirs.size), "victim", 0, soon()).value();
  ASSERT_TRUE(endpoint->put({}, {}, 0, 0));
  ASSERT_TRUE(drive({transport.get()}, [&] { return endpoint->signal(0) == 1; }));
  const auto memory = region(*transport, 64);
  ::kill(child, SIGKILL);
  const auto killed = Clock::now();
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  Transport* all[] = {transport.get()};
  const Deadline deadline = soon();
  while (!endpoint->failure() && !deadline.passed()) {
    if (asleep) {
      (void)wait(all, deadline, nullptr, "notice", 0us);
    } else {
      transport->progress();
    }
  }
  ASSERT_TRUE(endpoint->failure());
  noticed_after = Clock::now() - killed;
  EXPECT_EQ(endpoint->failure()->code, ErrorCode::peer_failed) << endpoint->failure()->message();
  EXPECT_EQ(endpoint->failure()->peer, "victim");
}

void die_again_and_again(const Kind& kind, bool asleep, bool with_heir = false) {
  std::vector<Clock::duration> noticed_after(5);
  for (auto& after : noticed_after) {
    kill_and_notice(kind, asleep, with_heir, after);
    if (::testing::Test::HasFatalFailure()) return;
    EXPECT_LT(after, 20s);
  }
  std::ranges::sort(noticed_after);
  EXPECT_LT(noticed_after[noticed_after.size() / 2], 1s);
  if (kind.name != "shm" && kind.name != "tcp") return;  // not every machine has the others
  cenote::test::tried(
      {"Transports over shared memory and TCP, ends as processes",
       std::string("the peer's process is killed while this side ") + (asleep ? "sleeps" : "spins"),
       noticed_after.size(), "noticed within 1 s", "so of most, all within 20 s"});
}

TEST_P(Death, IsNoticedWhileSpinning) { die_again_and_again(GetParam(), false); }
TEST_P(Death, IsNoticedWhileAsleep) { die_again_and_again(GetParam(), true); }
/// Sandboxes may forbid it.
bool kernel_has_process_handles() {
  return static_cast<bool>(UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))));
}

TEST_P(Death, IsNoticedWhileSpinningThoughAForkedChildLives) {
  if (!kernel_has_process_handles()) GTEST_SKIP() << "no pidfd_open here";
  die_again_and_again(GetParam(), false, true);
}
TEST_P(Death, IsNoticedWhileAsleepThoughAForkedChildLives) {
  if (!kernel_has_process_handles()) GTEST_SKIP() << "no pidfd_open here";
  die_again_and_again(GetParam(), true, true);
}

}  // namespace
}  // namespace cenote::transport::test
