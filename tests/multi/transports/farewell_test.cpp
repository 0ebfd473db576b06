// The reason given to close() arrives although everything is destroyed, or the process ends, right after, in
// the middle of traffic both ways.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "runtime/unique_fd.h"
#include "tests/unit/transports/pair.h"

namespace cenote::transport::test {
namespace {

class Farewell : public Conformance {};
CENOTE_CONFORMANCE(Farewell);

constexpr std::size_t memory_size = 64 * 1024;
constexpr std::size_t little = 4096;
constexpr std::size_t sizes[] = {64, little, little + 1, memory_size};

/// What the two sides tell each other before they talk.
struct Introduction {
  std::byte address[256];
  std::size_t address_size = 0;
  RemoteKey key;
};

Introduction introduce(const Transport& transport, const Region& memory) {
  Introduction mine{};
  mine.address_size = transport.address().size();
  std::memcpy(mine.address, transport.address().data(), mine.address_size);
  mine.key = memory.key();
  return mine;
}

bool exchange(int fd, const Introduction& mine, Introduction& theirs) {
  return ::send(fd, &mine, sizeof mine, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof mine) &&
         ::recv(fd, &theirs, sizeof theirs, MSG_WAITALL) == static_cast<ssize_t>(sizeof theirs);
}

/// Traffic both ways, always some under way: little, or as much as the endpoint takes, which fills sockets.
struct Traffic {
  Traffic(Endpoint& to, const RemoteKey& their_key, std::size_t bytes)
      : endpoint(&to), key(their_key), out(bytes), in(bytes), ahead(bytes > little ? 300 : 3) {}
  void step() {
    Completion done[64];
    while (endpoint->poll(done) != 0) {
    }
    std::byte buffer[100];
    for (auto got = endpoint->receive(buffer); got && *got; got = endpoint->receive(buffer)) {
    }
    if (sent >= endpoint->signal(2) + ahead) return;
    (void)endpoint->put(out, {&key, 0}, 1, 0);
    (void)endpoint->get(in, {&key, 0}, 0);
    (void)endpoint->send(std::span(out).first(64));
    sent += endpoint->put(std::span(out).first(16), {&key, 0}, 2, 0).has_value();
  }
  Endpoint* endpoint;
  RemoteKey key;
  Bytes out, in;
  std::uint64_t ahead, sent = 0;
};

/// The side that goes: talks until the other has answered `signals` times, says why it goes, and is gone.
void leave(const Kind& kind, int fd, std::uint64_t signals, std::size_t bytes, bool region_first) {
  auto transport = make(kind);
  auto memory = region(*transport, memory_size);
  Introduction theirs{};
  if (!exchange(fd, introduce(*transport, *memory), theirs)) return;
  auto endpoint =
      transport->connect(std::span(theirs.address).first(theirs.address_size), "stayer", 0, soon()).value();
  Traffic traffic(*endpoint, theirs.key, bytes);
  Transport* all[] = {transport.get()};
  while (endpoint->signal(2) < signals && !endpoint->failure()) {
    traffic.step();
    (void)wait(all, Deadline::in(1ms), nullptr, "traffic");
  }
  endpoint->close("lease 17 expired");
  if (region_first) memory.reset();
  endpoint.reset();
  transport.reset();
}

/// The side that stays: its endpoint's failure.
std::string stay(const Kind& kind, int fd, std::size_t bytes) {
  const auto transport = make(kind);
  const auto memory = region(*transport, memory_size);
  Introduction theirs{};
  if (!exchange(fd, introduce(*transport, *memory), theirs)) return "no introduction";
  const auto endpoint =
      transport->connect(std::span(theirs.address).first(theirs.address_size), "leaver", 0, soon()).value();
  Traffic traffic(*endpoint, theirs.key, bytes);
  Transport* all[] = {transport.get()};
  const Deadline deadline = soon();
  while (!endpoint->failure() && !deadline.passed()) {
    traffic.step();
    (void)wait(all, Deadline::in(1ms), nullptr, "traffic");
  }
  return endpoint->failure() ? endpoint->failure()->message() : "no failure";
}

struct Sockets {
  Sockets() {
    int pair[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    here.reset(pair[0]);
    there.reset(pair[1]);
  }
  UniqueFd here, there;
};

TEST_P(Farewell, ReasonArrivesThoughEverythingIsDestroyedAtOnce) {
  for (int round = 0; round < GetParam().rounds; ++round) {
    Sockets sockets;
    const std::size_t bytes = sizes[round % 4];
    std::thread other([&] {
      leave(GetParam(), sockets.there.get(), 1 + static_cast<std::uint64_t>(round) % 7 * 10, bytes,
            round % 3 == 0);
    });
    const std::string failure = stay(GetParam(), sockets.here.get(), bytes);
    other.join();
    ASSERT_NE(failure.find("lease 17 expired"), std::string::npos) << "round " << round << ": " << failure;
  }
}

TEST_P(Farewell, ReasonArrivesThoughTheProcessEndsAtOnce) {
  for (int round = 0; round < GetParam().rounds; ++round) {
    Sockets sockets;
    const std::size_t bytes = sizes[round % 4];
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      sockets.here.reset();
      leave(GetParam(), sockets.there.get(), 1 + static_cast<std::uint64_t>(round) % 7 * 10, bytes,
            round % 3 == 0);
      ::_exit(0);
    }
    sockets.there.reset();
    const std::string failure = stay(GetParam(), sockets.here.get(), bytes);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    ASSERT_NE(failure.find("lease 17 expired"), std::string::npos) << "round " << round << ": " << failure;
  }
}

TEST_P(Farewell, ReasonArrivesAtOneWhoLooksMuchLater) {
  auto left = make(GetParam());
  const auto right = make(GetParam());
  const auto memory = region(*right, memory_size), mine = region(*left, memory_size);
  auto l = left->connect(right->address(), "right", 0, soon()).value();
  const auto r = right->connect(left->address(), "left", 0, soon()).value();
  ASSERT_TRUE(l->put({}, {}, 1, 0));
  ASSERT_TRUE(r->put({}, {}, 1, 0));
  ASSERT_TRUE(drive({left.get(), right.get()}, [&] { return r->signal(1) == 1 && l->signal(1) == 1; }));
  const Bytes data = pattern(1000, 1);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(l->send(data));
    ASSERT_TRUE(r->send(data));
    (void)r->put(data, {&mine->key(), 0}, 0, 0);
    (void)l->put(data, {&memory->key(), 0}, 0, 0);
    (void)right->progress();
  }
  l->close("lease 17 expired");
  l.reset();
  left.reset();
  for (int i = 0; i < 50; ++i) (void)r->put(data, {&mine->key(), 0}, 0, 0);
  ASSERT_TRUE(drive({right.get()}, [&] { return r->failure().has_value(); }));
  EXPECT_NE(r->failure()->cause.find("lease 17 expired"), std::string::npos) << r->failure()->message();
  EXPECT_EQ(r->failure()->code, ErrorCode::peer_failed);
  // What had arrived before can still be taken.
  Bytes buffer(1000);
  const auto first = r->receive(buffer);
  ASSERT_TRUE(first && *first);
  EXPECT_TRUE(same(buffer, data));
}

TEST_P(Farewell, ReasonFollowsAPayloadThatTheSocketHasNotTaken) {
  Pair pair(GetParam());
  const auto memory = region(*pair.right, 3 << 20);
  pair.settle();
  const Bytes data = pattern(3 << 20, 1);
  for (std::uint64_t tag = 0; tag < 8; ++tag)
    ASSERT_TRUE(pair.to_right->put(data, {&memory->key(), 0}, 0, tag));
  pair.to_right->close("lease 17 expired");
  pair.to_right.reset();
  ASSERT_TRUE(pair.until([&] { return pair.to_left->failure().has_value(); }));
  EXPECT_NE(pair.to_left->failure()->cause.find("lease 17 expired"), std::string::npos)
      << pair.to_left->failure()->message();
}

/// Puts until nothing completes any more, or `most` have: how many are complete.
std::uint64_t fill(Transport& transport, Endpoint& endpoint, const RemoteKey& key,
                   const std::vector<Bytes>& sources, std::uint64_t most) {
  std::uint64_t posted = 0, complete = 0, idle = 0;
  while (complete < most && idle < 200) {
    const Bytes& source = sources[posted % sources.size()];
    posted += endpoint.put(source, {&key, 0}, 3, posted).has_value();
    Completion done[64];
    const std::size_t got = endpoint.poll(done);
    for (std::size_t i = 0; i < got; ++i) complete += !done[i].error;
    idle = got == 0 ? idle + 1 : 0;
    if (posted % 3 == 0 || got == 0) transport.progress();
  }
  return complete;
}

/// Small puts are copied, large ones are not: both kinds, and a mix.
std::vector<std::vector<Bytes>> loads() {
  return {{pattern(8, 1)}, {pattern(900, 2)}, {pattern(50'000, 3)}, {pattern(100, 4), pattern(20'000, 5)}};
}

TEST_P(Farewell, WhatIsCompleteArrivesThoughEverythingIsDestroyedAtOnce) {
  for (const auto& sources : loads()) {
    Pair pair(GetParam());
    const auto memory = region(*pair.right, 64 * 1024);
    pair.settle();
    std::uint64_t one = 0;  // the way to that region stands before the other side looks no more
    ASSERT_TRUE(pair.to_right->get(std::as_writable_bytes(std::span(&one, 1)), {&memory->key(), 0}, 0));
    ASSERT_EQ(pair.finished(*pair.to_right, 1).size(), 1U);
    const std::uint64_t complete = fill(*pair.left, *pair.to_right, memory->key(), sources, 20'000);
    ASSERT_GT(complete, 0U);
    pair.to_right.reset();
    pair.left.reset();
    ASSERT_TRUE(drive({pair.right.get()}, [&] { return pair.to_left->failure().has_value(); }));
    EXPECT_GE(pair.to_left->signal(3), complete) << sources.front().size();
    EXPECT_EQ(pair.to_left->failure()->code, ErrorCode::peer_failed);
  }
}

TEST_P(Farewell, WhatIsCompleteArrivesWhileThePeerSendsIfTheTransportLivesOn) {
  for (const auto& sources : loads()) {
    Pair pair(GetParam());
    const auto memory = region(*pair.right, 64 * 1024), mine = region(*pair.left, 64 * 1024);
    pair.settle();
    std::uint64_t one = 0;
    ASSERT_TRUE(pair.to_right->get(std::as_writable_bytes(std::span(&one, 1)), {&memory->key(), 0}, 0));
    ASSERT_TRUE(pair.to_left->get(std::as_writable_bytes(std::span(&one, 1)), {&mine->key(), 0}, 0));
    ASSERT_EQ(pair.finished(*pair.to_right, 1).size(), 1U);
    ASSERT_EQ(pair.finished(*pair.to_left, 1).size(), 1U);
    // The peer does not read, but it sends.
    const Bytes data = pattern(5000, 9);
    for (int i = 0; i < 100; ++i) (void)pair.to_left->put(data, {&mine->key(), 0}, 0, 0);
    const std::uint64_t complete = fill(*pair.left, *pair.to_right, memory->key(), sources, 20'000);
    ASSERT_GT(complete, 0U);
    pair.to_right.reset();
    ASSERT_TRUE(pair.until([&] {
      (void)pair.to_left->put(data, {&mine->key(), 0}, 0, 0);
      Completion done[64];
      (void)pair.to_left->poll(done);
      return pair.to_left->failure().has_value();
    }));
    EXPECT_GE(pair.to_left->signal(3), complete) << sources.front().size();
  }
}

TEST_P(Farewell, WhatAPeerWritesCannotDisturbALog) {
  const Pair pair(GetParam());
  pair.settle();
  pair.to_right->close("red \x1b[31m\nnew line");
  ASSERT_TRUE(pair.until([&] { return pair.to_left->failure().has_value(); }));
  EXPECT_NE(pair.to_left->failure()->cause.find("red ?[31m?new line"), std::string::npos)
      << pair.to_left->failure()->message();
}

}  // namespace
}  // namespace cenote::transport::test
