// Who dials and cannot be let in waits at the door, and costs nothing meanwhile.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "runtime/unique_fd.h"
#include "tests/unit/transports/pair.h"
#include "transports/handshake.h"

namespace cenote::transport::test {
namespace {

class Reception : public Conformance {};
CENOTE_CONFORMANCE(Reception);

/// A socket of a stranger's, not connected yet.
UniqueFd stranger(const Kind& kind) {
  return UniqueFd(kind.transport() == "shm" ? ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)
                                            : ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}
bool dial(const Kind& kind, const Transport& transport, const UniqueFd& fd) {
  Reader in(transport.address());
  (void)AddressHeader::unpack(in, kind.transport());
  const std::string where = in.text();
  if (kind.transport() == "shm") {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::memcpy(to.sun_path + 1, where.data(), where.size());
    return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&to),
                     static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + where.size())) == 0;
  }
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(in.get<std::uint16_t>());
  ::inet_pton(AF_INET, where.c_str(), &to.sin_addr);
  return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
}
/// Whether it was let in: then there is a challenge to read.
bool let_in(const UniqueFd& fd) {
  std::byte byte{};
  return ::recv(fd.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
}

/// Processor time that this thread takes to wait for a second.
double cost_of_a_second(Transport& transport) {
  const auto now = [] {
    timespec at{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return static_cast<double>(at.tv_sec) + static_cast<double>(at.tv_nsec) / 1e9;
  };
  Transport* all[] = {&transport};
  const double before = now();
  const Deadline second = Deadline::in(1s);
  while (!second.passed()) (void)wait(all, second, nullptr, "sleep");
  return now() - before;
}

/// No descriptor can be made while it lives.
class NoDescriptorLeft {
 public:
  NoDescriptorLeft() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const UniqueFd first_free(::dup(STDIN_FILENO));
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(first_free.get());
    ::setrlimit(RLIMIT_NOFILE, &now);
  }
  ~NoDescriptorLeft() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptorLeft(const NoDescriptorLeft&) = delete;
  NoDescriptorLeft& operator=(const NoDescriptorLeft&) = delete;

 private:
  rlimit before_{};
};

void expect_open_for_peers(const Kind& kind, Transport& host) {
  const auto guest = make(kind);
  const auto l = host.connect(guest->address(), "guest", 0, soon()).value();
  const auto r = guest->connect(host.address(), "host", 0, soon()).value();
  ASSERT_TRUE(r->put({}, {}, 0, 0));
  EXPECT_TRUE(drive({&host, guest.get()}, [&] { return l->signal(0) == 1; }));
}

TEST_P(Reception, WithoutADescriptorLeftNobodyIsLetInAndNothingSpins) {
  const auto host = make(GetParam());
  const UniqueFd waiting = stranger(GetParam());
  {
    const NoDescriptorLeft none;
    ASSERT_TRUE(dial(GetParam(), *host, waiting));
    EXPECT_LT(cost_of_a_second(*host), 0.2);
    EXPECT_FALSE(let_in(waiting));
  }
  EXPECT_TRUE(drive({host.get()}, [&] { return let_in(waiting); }));
  expect_open_for_peers(GetParam(), *host);
}

TEST_P(Reception, ThoseBeyondTheLimitWaitUntilASlotIsFreeAndNothingSpins) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  rlimit more = files;
  more.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  ::setrlimit(RLIMIT_NOFILE, &more);
  {
    const auto host = make(GetParam());
    std::vector<UniqueFd> strangers;
    for (int i = 0; i < 256; ++i) {
      strangers.push_back(stranger(GetParam()));
      ASSERT_TRUE(dial(GetParam(), *host, strangers.back()));
      ASSERT_TRUE(drive({host.get()}, [&] { return let_in(strangers.back()); })) << i;
    }
    const UniqueFd late = stranger(GetParam());
    ASSERT_TRUE(dial(GetParam(), *host, late));
    EXPECT_LT(cost_of_a_second(*host), 0.2);
    EXPECT_FALSE(let_in(late));
    strangers.clear();
    EXPECT_TRUE(drive({host.get()}, [&] { return let_in(late); }));
    expect_open_for_peers(GetParam(), *host);
  }
  ::setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace
}  // namespace cenote::transport::test
