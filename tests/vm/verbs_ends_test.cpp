// How connections over the kernel's verbs end, and what is left of them: peers that are killed, keys of
// leases that have ended, receivers that do not look, GIDs that do not fit, and a thousand of them one after
// another.
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "runtime/unique_fd.h"
#include "tests/unit/transports/pair.h"
#include "tests/vm/environment.h"
#include "tests/vm/faults.h"
#include "tests/vm/seed.h"
#include "transports/verbs/verbs.h"

namespace cenote::transport::test {
namespace {

using cenote::test::vm::environment;
using cenote::test::vm::patient_timeout;
using cenote::test::vm::run_tool;

VerbsOptions over(std::vector<std::string> devices) {
  VerbsOptions options;
  options.devices = std::move(devices);
  options.timeout = patient_timeout;
  return options;
}

/// Left has rxe0, right has rxe1.
Pair pair_over(const VerbsOptions& left, const VerbsOptions& right) {
  bool first = true;
  return Pair({"verbs", [&]() { return make_verbs_transport(std::exchange(first, false) ? left : right); }});
}

using VerbsEnds = cenote::test::vm::VmTest;

// ---- A peer that is killed while it is written to.

constexpr std::size_t cell = 20'000, cells = 150;

struct Introduction {
  std::byte address[256];
  std::size_t size = 0;
  RemoteKey key;
};

Introduction introduce(const Transport& transport, const Region* memory) {
  Introduction mine{};
  mine.size = transport.address().size();
  std::memcpy(mine.address, transport.address().data(), mine.size);
  if (memory != nullptr) mine.key = memory->key();
  return mine;
}

Introduction exchange(int fd, const Introduction& mine) {
  Introduction theirs{};
  EXPECT_EQ(::send(fd, &mine, sizeof mine, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof mine));
  EXPECT_EQ(::recv(fd, &theirs, sizeof theirs, MSG_WAITALL), static_cast<ssize_t>(sizeof theirs));
  return theirs;
}

/// Memory that outlives the process which lets a peer write there.
struct Shared {
  Shared() {
    void* mapped = ::mmap(nullptr, cell * cells, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    bytes = {static_cast<std::byte*>(mapped), cell * cells};
  }
  ~Shared() { ::munmap(bytes.data(), bytes.size()); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  [[nodiscard]] std::span<std::byte> at(std::uint64_t i) const { return bytes.subspan(i * cell, cell); }
  std::span<std::byte> bytes;
};

/// Registers the memory, and progresses until it is killed.
[[noreturn]] void be_written_to(int fd, const Shared& shared) {
  auto transport = make_verbs_transport(over({"rxe1"})).value();
  const auto region =
      transport->register_memory(MemoryDescription::of_host(shared.bytes.data(), shared.bytes.size()))
          .value();
  const Introduction theirs = exchange(fd, introduce(*transport, region.get()));
  const auto endpoint =
      transport->connect(std::span(theirs.address).first(theirs.size), "writer", 0, soon()).value();
  while (!endpoint->failure()) transport->progress();
  ::_exit(0);
}

struct Written {
  std::vector<bool> complete = std::vector<bool>(cells);
  std::uint64_t completions = 0, errors = 0;
};

void take(Endpoint& endpoint, Written& written) {
  Completion done[16];
  for (std::size_t n = endpoint.poll(done); n > 0; n = endpoint.poll(done)) {
    for (const Completion& one : std::span(done).first(n)) {
      ++written.completions;
      if (one.error) {
        ++written.errors;
      } else {
        EXPECT_FALSE(written.complete[one.tag]) << "put " << one.tag << " completed twice";
        written.complete[one.tag] = true;
      }
    }
  }
}

void kill_while_writing(std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const Shared shared;
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd here(ends[0]), there(ends[1]);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) be_written_to(there.get(), shared);
  const auto transport = make_verbs_transport(over({"rxe0"})).value();
  const Introduction theirs = exchange(here.get(), introduce(*transport, nullptr));
  const auto endpoint =
      transport->connect(std::span(theirs.address).first(theirs.size), "victim", 0, soon()).value();
  std::vector<Bytes> sources;
  for (std::uint64_t i = 0; i < cells; ++i)
    sources.push_back(pattern(cell - random() % (cell - 1), seed + i));

  // The blow falls some microseconds after one of the completions, with several puts behind it under way.
  const std::uint64_t kill_after = 1 + random() % (cells / 2);
  const auto later = std::chrono::microseconds(random() % 3000);
  std::optional<Clock::time_point> kill_at, killed_at;
  Written written;
  std::uint64_t posted = 0;
  const Deadline deadline = soon();
  while (!endpoint->failure() && !deadline.passed()) {
    if (posted < cells && posted < written.completions + 12 &&
        endpoint->put(sources[posted], {&theirs.key, posted * cell}, posted % 3, posted))
      ++posted;
    transport->progress();
    take(*endpoint, written);
    if (!kill_at && written.completions >= kill_after) kill_at = Clock::now() + later;
    if (kill_at && !killed_at && Clock::now() >= *kill_at) {
      ::kill(child, SIGKILL);
      killed_at = Clock::now();
    }
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(endpoint->failure()) << posted << " posted, " << written.completions << " completed";
  ASSERT_TRUE(killed_at) << endpoint->failure()->message();
  EXPECT_LT(Clock::now() - *killed_at, 10s);
  EXPECT_EQ(endpoint->failure()->code, ErrorCode::peer_failed) << endpoint->failure()->message();
  EXPECT_EQ(endpoint->failure()->peer, "victim");
  take(*endpoint, written);
  EXPECT_EQ(written.completions, posted) << "each completes once";
  for (std::uint64_t i = 0; i < cells; ++i) {
    if (written.complete[i]) {
      EXPECT_TRUE(same(shared.at(i).first(sources[i].size()), sources[i]))
          << "put " << i << " was said to be done";
    } else if (i >= posted) {
      EXPECT_TRUE(std::ranges::all_of(shared.at(i), [](std::byte b) { return b == std::byte{0}; }))
          << "cell " << i;
    }
  }
}

TEST_F(VerbsEnds, WhatWasCompleteBeforeThePeerWasKilledIsInItsMemoryAndTheRestEndsWithItsName) {
  const std::uint64_t seed = cenote::test::vm::drawn_seed();
  for (std::uint64_t round = 0; round < 10 && !HasFailure(); ++round) kill_while_writing(seed + round);
}

// ---- Keys.

TEST_F(VerbsEnds, AWriteWithTheKeyOfAnEndedLeaseIsRefusedByTheCardAndTheErrorNamesTheLease) {
  auto worker = make_verbs_transport(over({"rxe1"})).value();
  const auto client = make_verbs_transport(over({"rxe0"})).value();
  const auto to_worker = client->connect(worker->address(), "lease 7f3a on node2", 0, soon()).value();
  const auto to_client = worker->connect(client->address(), "client", 0, soon()).value();
  auto memory = region(*worker, 1 << 16);
  const RemoteKey key = memory->key();
  const Bytes data = pattern(1 << 16, 1);
  ASSERT_TRUE(to_worker->put(data, {&key, 0}, 1, 1));
  ASSERT_TRUE(drive({client.get(), worker.get()}, [&] { return to_client->signal(1) == 1; }));
  memory.reset();
  const auto next = region(*worker, 1 << 16);  // the next lease's, perhaps at the same address
  ASSERT_TRUE(to_worker->put(data, {&key, 0}, 1, 2));
  ASSERT_TRUE(drive({client.get(), worker.get()}, [&] { return to_worker->failure().has_value(); }));
  const std::string said = to_worker->failure()->message();
  EXPECT_EQ(to_worker->failure()->code, ErrorCode::permission_denied) << said;
  for (const auto* part : {"lease 7f3a on node2", "REM_ACCESS_ERR", "its lease may have ended"})
    EXPECT_NE(said.find(part), std::string::npos) << part << ": " << said;
  EXPECT_TRUE(std::ranges::all_of(next->bytes(), [](std::byte b) { return b == std::byte{0}; }));
}

// ---- A receiver that does not look.

std::uint64_t counter(const std::string& device, const std::string& name) {
  std::ifstream in("/sys/class/infiniband/" + device + "/ports/1/hw_counters/" + name);
  std::uint64_t value = 0;
  EXPECT_TRUE(in >> value) << device << " " << name;
  return value;
}

TEST_F(VerbsEnds, MoreThanAReceiverHasBuffersForWaitsInTheSendersCardAndIsNotLost) {
  auto options = over({"rxe1"});
  options.receives = 64;
  const Pair pair = pair_over(over({"rxe0"}), options);
  const auto memory = region(*pair.right, 8);
  pair.settle();
  const std::uint64_t refused = counter("rxe1", "send_rnr_err") + counter("rxe0", "rcvd_rnr_err");
  constexpr std::uint64_t signals = 600;
  std::vector<std::uint64_t> values(signals);
  std::iota(values.begin(), values.end(), 1);
  std::uint64_t posted = 0, finished = 0;
  const auto send_some = [&] {
    if (posted < signals &&
        pair.to_right->put(std::as_bytes(std::span(&values[posted], 1)), {&memory->key(), 0}, 5, posted))
      ++posted;
    Completion done[16];
    finished += pair.to_right->poll(done);
    pair.left->progress();
  };
  // The receiver does nothing until its card has turned something away.
  const Deadline deadline = soon();
  while (counter("rxe1", "send_rnr_err") + counter("rxe0", "rcvd_rnr_err") == refused) {
    ASSERT_FALSE(deadline.passed()) << posted << " signals posted";
    for (int i = 0; i < 50; ++i) send_some();
  }
  EXPECT_FALSE(pair.to_right->failure());
  ASSERT_TRUE(pair.until([&] {
    send_some();
    return pair.to_left->signal(5) >= signals && finished == signals;
  })) << pair.to_left->signal(5);
  EXPECT_EQ(pair.to_left->signal(5), signals) << "none is counted twice";
  std::uint64_t last = 0;
  std::memcpy(&last, memory->bytes().data(), sizeof last);
  EXPECT_EQ(last, signals) << "the last one's value stands";
}

// ---- GIDs that do not fit.

TEST_F(VerbsEnds, GidsOfDifferentKindsOnTheTwoSidesAreNamed) {
  auto ipv6 = over({"rxe0"}), ipv4 = over({"rxe1"});
  ipv6.gid_index = 0;  // link-local
  ipv4.gid_index = 1;
  const auto left = make_verbs_transport(ipv6).value(), right = make_verbs_transport(ipv4).value();
  const auto to_right = left->connect(right->address(), "right", 0, soon()).value();
  const auto to_left = right->connect(left->address(), "left", 0, soon()).value();
  ASSERT_TRUE(drive({left.get(), right.get()},
                    [&] { return to_right->failure().has_value() && to_left->failure().has_value(); }));
  for (const auto* endpoint : {to_right.get(), to_left.get()}) {
    const std::string said = endpoint->failure()->message();
    for (const auto* part : {"fe80::ce:10ff:fe00:0", "10.77.0.2", "verbs.gid_index"})
      EXPECT_NE(said.find(part), std::string::npos) << part << ": " << said;
  }
}

// ---- A thousand.

std::array<std::size_t, 3> kernel_objects() {
  std::array<std::size_t, 3> found{};
  const char* const kinds[] = {"qp", "mr", "cq"};
  for (std::size_t i = 0; i < found.size(); ++i)
    found[i] = nlohmann::json::parse(run_tool(std::string("rdma -j resource show ") + kinds[i])).size();
  return found;
}

std::size_t descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                                std::filesystem::directory_iterator{}));
}

TEST_F(VerbsEnds, AThousandConnectionsLeaveNoQueuePairRegionOrDescriptor) {
  const auto objects_before = kernel_objects();
  const auto descriptors_before = descriptors();
  {
    const Pair pair = pair_over(over({"rxe0"}), over({"rxe1"}));
    pair.settle();
    const auto objects = kernel_objects();
    const auto open = descriptors();
    EXPECT_GT(objects[0], objects_before[0]) << "it counts what there is";
    constexpr std::uint32_t at_once = 20;
    for (std::uint32_t first = 0; first < 1000; first += at_once) {
      std::vector<std::unique_ptr<Endpoint>> lefts, rights;
      for (std::uint32_t channel = 1; channel <= at_once; ++channel) {
        lefts.push_back(pair.left->connect(pair.right->address(), "right", channel, soon()).value());
        rights.push_back(pair.right->connect(pair.left->address(), "left", channel, soon()).value());
      }
      const auto memory = region(*pair.right, 4096);
      const Bytes data = pattern(4096, first);
      for (auto& left : lefts) ASSERT_TRUE(left->put(data, {&memory->key(), 0}, 3, first));
      ASSERT_TRUE(pair.until([&] {
        return std::ranges::all_of(rights, [](const auto& right) { return right->signal(3) == 1; });
      })) << "connections from "
          << first << " on";
    }
    // What was closed last still says farewell.
    EXPECT_TRUE(pair.until([&] { return descriptors() == open; })) << descriptors() << " and not " << open;
    ASSERT_TRUE(pair.until([&] { return kernel_objects() == objects; }))
        << testing::PrintToString(kernel_objects());
  }
  EXPECT_EQ(kernel_objects(), objects_before);
  EXPECT_EQ(descriptors(), descriptors_before);
}

// ---- More connections than may keep queue pairs.

TEST_F(VerbsEnds, ConnectionsThatAreNotUsedGiveTheirQueuePairsUp) {
  auto left = over({"rxe0"}), right = over({"rxe1"});
  left.connections = 2;
  left.rest = 0ms;
  const Pair pair = pair_over(left, right);
  pair.settle();
  constexpr std::size_t many = 6, bytes = 20'000;
  const auto with_one = kernel_objects()[0];
  std::vector<std::unique_ptr<Endpoint>> lefts, rights;
  for (std::uint32_t channel = 1; channel <= many; ++channel) {
    lefts.push_back(pair.left->connect(pair.right->address(), "right", channel, soon()).value());
    rights.push_back(pair.right->connect(pair.left->address(), "left", channel, soon()).value());
  }
  const auto memory = region(*pair.right, bytes), back = region(*pair.left, bytes);
  for (std::uint64_t turn = 0; turn < 8 * many; ++turn) {
    const std::size_t at = turn * 5 % many;  // the next is never the last
    const auto there = rights[at]->signal(3), here = lefts[at]->signal(3);
    const Bytes sent = pattern(bytes, turn), returned = pattern(bytes, turn + 1000);
    ASSERT_TRUE(lefts[at]->put(sent, {&memory->key(), 0}, 3, turn));
    ASSERT_TRUE(pair.until([&] { return rights[at]->signal(3) == there + 1; })) << turn;
    EXPECT_TRUE(same(memory->bytes(), sent)) << turn;
    ASSERT_TRUE(rights[at]->put(returned, {&back->key(), 0}, 3, turn));
    ASSERT_TRUE(pair.until([&] { return lefts[at]->signal(3) == here + 1; })) << turn;
    EXPECT_TRUE(same(back->bytes(), returned)) << turn;
    (void)pair.finished(*lefts[at], 1);
    (void)pair.finished(*rights[at], 1);
  }
  // One more connection than then, with a queue pair on either side.
  ASSERT_TRUE(pair.until([&] { return kernel_objects()[0] == with_one + 2; })) << kernel_objects()[0];
  std::uint64_t parked = 0;
  for (const auto& endpoint : lefts) parked += endpoint->stats().parked;
  EXPECT_GE(parked, 4 * many);
  // The end of a parked one is heard.
  const auto idle = std::ranges::find_if(
      lefts, [](const auto& endpoint) { return endpoint->stats().parked > endpoint->stats().revived; });
  ASSERT_NE(idle, lefts.end());
  rights[static_cast<std::size_t>(idle - lefts.begin())].reset();
  ASSERT_TRUE(pair.until([&] { return (*idle)->failure().has_value(); }));
  EXPECT_EQ((*idle)->failure()->code, ErrorCode::peer_failed);
}

}  // namespace
}  // namespace cenote::transport::test
