// What a peer on the same host that has proved itself may send or write into shared memory, and what becomes
// of it.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "tests/unit/transports/mallory.h"

namespace cenote::transport::test {
namespace {

using shm::PacketType;

const Kind& shm_kind() {
  static const Kind kind{"shm", [] { return make_shm_transport(); }};
  return kind;
}

constexpr int size_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

UniqueFd memfd(std::size_t bytes, int seals, unsigned flags = 0) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}
UniqueFd read_only(const UniqueFd& fd) {
  return UniqueFd(::open(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), O_RDONLY | O_CLOEXEC));
}

struct Sent {
  std::string what;
  UniqueFd fd;
};

/// Everything that is no sealed memory of `bytes` bytes that a peer may write to.
std::vector<Sent> bad_memory(std::size_t bytes) {
  std::vector<Sent> all;
  all.push_back({"unsealed memory", memfd(bytes, 0)});
  all.push_back({"memory that may shrink", memfd(bytes, F_SEAL_GROW | F_SEAL_SEAL)});
  all.push_back({"memory whose seals may not be final", memfd(bytes, F_SEAL_GROW | F_SEAL_SHRINK)});
  all.push_back({"empty memory", memfd(0, size_seals)});
  all.push_back({"memory that is too small", memfd(bytes - 1, size_seals)});
  all.push_back({"memory that is too large", memfd(bytes + shm::page_size, size_seals)});
  all.push_back({"memory sealed against writing", memfd(bytes, size_seals | F_SEAL_FUTURE_WRITE)});
  all.push_back({"memory opened for reading", read_only(memfd(bytes, size_seals))});
  all.push_back({"a device", UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC))});
  all.push_back({"a folder", UniqueFd(::open("/", O_RDONLY | O_CLOEXEC))});
  all.push_back({"a socket", UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0))});
  return all;
}

TEST(HostileShm, InboxThatIsNoSealedMemoryIsRefused) {
  Victim victim(shm_kind());
  for (const Sent& sent : bad_memory(shm::inbox_size)) {
    ShmMallory mallory(victim);
    mallory.write_raw(PacketType::resources, 0, {sent.fd.get(), mallory.good_door()});
    victim.expect_failed(ErrorCode::protocol_error, sent.what);
    victim.endpoint.reset();
  }
  victim.expect_others_well();
}

TEST(HostileShm, WrongNumberOfDescriptorsIsRefused) {
  Victim victim(shm_kind());
  const int files_before = ::dup(0);
  ASSERT_GE(files_before, 0);
  ::close(files_before);
  for (const std::size_t count : {0U, 1U, 3U, 16U}) {
    ShmMallory mallory(victim);
    mallory.write_raw(PacketType::resources, 0, std::vector<int>(count, mallory.good_inbox()));
    victim.expect_failed(ErrorCode::protocol_error, std::to_string(count) + " descriptors");
    victim.endpoint.reset();
  }
  const int files_after = ::dup(0);
  EXPECT_EQ(files_after, files_before) << "descriptors that were sent stayed open";
  ::close(files_after);
  victim.expect_others_well();
}

TEST(HostileShm, RegionThatIsNoSealedMemoryIsRefused) {
  Victim victim(shm_kind());
  const Bytes data = pattern(64, 1);
  Writer body;
  body.put(std::uint64_t{1});
  for (const Sent& sent : bad_memory(2 * shm::page_size)) {
    ShmMallory mallory(victim);
    mallory.finish(victim);
    const RemoteKey key = mallory.key();
    ASSERT_TRUE(victim.endpoint->put(data, {&key, 0}, 0, 9));
    (void)mallory.read(victim, PacketType::want_region);
    const int fds[] = {sent.fd.get()};
    ASSERT_TRUE(mallory.control.send(PacketType::region, body.bytes(), fds));
    victim.expect_failed(ErrorCode::protocol_error, sent.what);
    Completion done;
    ASSERT_EQ(victim.endpoint->poll(std::span(&done, 1)), 1U);
    EXPECT_TRUE(done.error);
    victim.endpoint.reset();
  }
  victim.expect_others_well();
}

TEST(HostileShm, PacketsOutOfTurnOrOfTheWrongShapeFail) {
  Victim victim(shm_kind());
  for (int type = 0; type < 256; ++type) {
    for (const std::size_t body : {0U, 7U, 17U, 511U}) {
      const auto sent = static_cast<PacketType>(type);
      if (sent == PacketType::wake || sent == PacketType::close || sent == PacketType::no_region) continue;
      if (type > 20 && body != 7) continue;
      ShmMallory mallory(victim);
      mallory.finish(victim);
      mallory.write_raw(sent, body, {});
      victim.expect_failed(ErrorCode::protocol_error,
                           "type " + std::to_string(type) + " of " + std::to_string(body));
      victim.endpoint.reset();
    }
  }
  for (const std::size_t body : {513U, 4000U}) {
    ShmMallory mallory(victim);
    mallory.finish(victim);
    mallory.write_raw(PacketType::wake, body, {});
    victim.expect_failed(ErrorCode::protocol_error, "packet of " + std::to_string(body));
    victim.endpoint.reset();
  }
  victim.expect_others_well();
}

TEST(HostileShm, AskingForMemoryWithoutTakingItIsEnded) {
  Victim victim(shm_kind());
  ShmMallory mallory(victim);
  mallory.finish(victim);
  Writer body;
  body.put(victim.key().region).put(victim.key().token);
  Bytes packet(1 + body.bytes().size());
  packet[0] = static_cast<std::byte>(PacketType::want_region);
  std::copy(body.bytes().begin(), body.bytes().end(), packet.begin() + 1);
  ASSERT_TRUE(victim.until([&] {
    (void)::send(mallory.control.fd(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return victim.endpoint->failure().has_value();
  }));
  victim.expect_failed(ErrorCode::protocol_error, "flood");
  victim.expect_others_well();
}

/// A reader that is slow, not hostile: what its socket did not take leaves when it reads, though it says
/// nothing.
TEST(HostileShm, PacketsThatTheSocketDidNotTakeLeaveWhenThePeerReads) {
  constexpr int many = 400;
  Victim victim(shm_kind());
  ShmMallory mallory(victim);
  mallory.finish(victim);
  std::vector<std::unique_ptr<Region>> regions;
  for (int i = 0; i < many; ++i) {
    regions.push_back(region(victim.transport(), 1));
    const auto key = RegionKey::unpack(regions.back()->key());
    Writer body;
    body.put(key->region).put(key->token);
    ASSERT_TRUE(mallory.control.send(PacketType::want_region, body.bytes()));
    ASSERT_EQ(mallory.read(victim, PacketType::region).fds.size(), 1U);
  }
  regions.clear();  // each tells the peer
  Transport& transport = victim.transport();
  ASSERT_TRUE(drive({victim.pair.left.get(), &transport}, [&] { return transport.arm(); }));
  pollfd asleep{transport.wait_fds()[0], POLLIN, 0};
  ASSERT_EQ(::poll(&asleep, 1, 0), 0) << "awake without a reason";
  int told = 0;
  const auto take = [&] {
    for (auto got = mallory.control.receive(); got && *got; got = mallory.control.receive())
      told += (*got)->type == PacketType::region_gone;
  };
  take();
  ASSERT_LT(told, many) << "the socket took them all: nothing was kept";
  EXPECT_EQ(::poll(&asleep, 1, 20'000), 1) << "it sleeps on, though there is room";
  transport.disarm();
  EXPECT_TRUE(victim.until([&] {
    take();
    return told == many;
  })) << told;
}

TEST(HostileShm, ImpossibleSizesAndCountsFail) {
  Victim victim(shm_kind());
  std::byte buffer[shm::max_message];
  for (const std::uint32_t size : {std::uint32_t{shm::max_message + 1}, ~0U, 1U << 31}) {
    ShmMallory mallory(victim);
    mallory.finish(victim);
    std::memcpy(mallory.inbox().ring[0].payload, &size, sizeof size);
    mallory.inbox().ring[0].sequence = 1;
    EXPECT_FALSE(victim.endpoint->receive(buffer));
    victim.expect_failed(ErrorCode::protocol_error, "message of " + std::to_string(size));
    victim.endpoint.reset();
  }
  for (const std::uint64_t taken : {~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{5000}}) {
    ShmMallory mallory(victim);
    mallory.finish(victim);
    mallory.inbox().taken = taken;
    for (int i = 0; i < 2000 && victim.endpoint->send({}); ++i) {
    }
    victim.expect_failed(ErrorCode::protocol_error, "taken " + std::to_string(taken));
    victim.endpoint.reset();
  }
  for (const std::uint64_t size : {std::uint64_t{shm::max_reason} + 2, ~std::uint64_t{0}}) {
    ShmMallory mallory(victim);
    mallory.finish(victim);
    mallory.inbox().farewell = size;
    mallory.inbox().control = 99;
    victim.expect_failed(ErrorCode::protocol_error, "farewell of " + std::to_string(size));
    victim.endpoint.reset();
  }
  victim.expect_others_well();
}

/// Writes nonsense, with a liking for the places that matter.
void scribble(shm::Inbox& inbox, std::mt19937_64& random) {
  auto* words = reinterpret_cast<shm::Word*>(&inbox);
  const std::uint64_t values[] = {0, 1, random() % 1100, random() % 9000, ~std::uint64_t{0}, random()};
  const std::uint64_t value = values[random() % std::size(values)];
  switch (random() % 6) {
    case 0:
      words[random() % (sizeof inbox / sizeof *words)] = value;
      break;
    case 1:
      words[random() % 32] = value;
      break;
    case 2: {
      shm::Line& line = inbox.ring[random() % 8];
      std::memcpy(line.payload, &value, sizeof value);
      line.sequence = random() % 10;
      break;
    }
    case 3: {
      shm::PutLine& line = inbox.puts[random() % 4];
      for (auto& word : line.put) word = random() % 2 == 0 ? value : random();
      line.sequence = random() % 6;
      break;
    }
    case 4:
      inbox.puts_taken = value;
      break;
    default:
      inbox.taken = value;
  }
}

/// The victim goes on as if nothing were.
void carry_on(Victim& victim, const RemoteKey& key) {
  std::byte buffer[shm::max_message];
  (void)victim.endpoint->receive(buffer);
  (void)victim.endpoint->send(std::span(buffer).first(2000));
  (void)victim.endpoint->put({}, {}, 3, 0);
  (void)victim.endpoint->get(std::span(buffer).first(8), {&key, 0}, 0);
  (void)victim.endpoint->signal(40);
  Completion done[8];
  (void)victim.endpoint->poll(done);
  (void)victim.transport().progress();
}

void expect_honest_failure(const Victim& victim, int& failed) {
  const auto failure = victim.endpoint->failure();
  if (!failure) return;
  ++failed;
  EXPECT_EQ(failure->peer, "mallory");
  // A scribbled farewell may also be a possible one.
  EXPECT_TRUE(failure->code == ErrorCode::protocol_error || failure->code == ErrorCode::peer_failed ||
              failure->code == ErrorCode::permission_denied)
      << failure->message();
}

TEST(HostileShm, ScribbledInboxesHarmNobody) {
  Victim victim(shm_kind());
  int failed = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 random(seed);
    ShmMallory mallory(victim);
    mallory.finish(victim);
    for (int i = 0; i < 100 && !victim.endpoint->failure(); ++i) {
      scribble(mallory.inbox(), random);
      carry_on(victim, mallory.key());
    }
    expect_honest_failure(victim, failed);
    victim.endpoint.reset();
  }
  EXPECT_GT(failed, 200);
  victim.expect_others_well();
}

TEST(HostileShm, InboxesScribbledWhileTheyAreReadHarmNobody) {
  Victim victim(shm_kind());
  int failed = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    ShmMallory mallory(victim);
    mallory.finish(victim);
    std::atomic<bool> over{false};
    std::atomic<int> rounds{0};
    std::thread writer([&] {
      std::mt19937_64 random(seed);
      std::uint64_t line = 0;
      while (!over) {
        // A message that changes its size while it is taken.
        shm::Line& next = mallory.inbox().ring[line % shm::ring_lines];
        const auto size = static_cast<std::uint32_t>(random() % 2 == 0 ? random() % 52 : random());
        std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(next.payload)) = size;
        next.sequence = ++line;
        if (line % 64 == 0) scribble(mallory.inbox(), random);
        rounds.fetch_add(1, std::memory_order_relaxed);
      }
    });
    for (int i = 0; (i < 200 || rounds < 100) && !victim.endpoint->failure(); ++i)
      carry_on(victim, mallory.key());
    over = true;
    writer.join();
    expect_honest_failure(victim, failed);
    victim.endpoint.reset();
  }
  EXPECT_GT(failed, 0);
  victim.expect_others_well();
}

TEST(HostileShm, DialerThatDiesWhileItIsWelcomedIsNoticed) {
  Victim victim(shm_kind());
  { const ShmMallory mallory(victim); }
  victim.expect_failed(ErrorCode::peer_failed, "death");
}

TEST(HostileShm, DialerThatEndsBeforeItDialsIsNoticedLongBeforeTheDeadline) {
  const auto waiting = make(shm_kind());
  std::unique_ptr<Transport> dialer;
  const auto id = [](const Transport& transport) {
    Reader in(transport.address());
    return AddressHeader::unpack(in, "shm").value().id;
  };
  do {
    dialer = make(shm_kind());
  } while (id(*dialer) < id(*waiting));
  const auto endpoint =
      waiting->connect(dialer->address(), "rank 3", 0, Deadline::in(std::chrono::hours(1))).value();
  for (int i = 0; i < 100; ++i) waiting->progress();
  EXPECT_FALSE(endpoint->failure());
  dialer.reset();
  ASSERT_TRUE(drive({waiting.get()}, [&] { return endpoint->failure().has_value(); }));
  EXPECT_EQ(endpoint->failure()->code, ErrorCode::peer_failed);
  EXPECT_EQ(endpoint->failure()->peer, "rank 3");
}

TEST(HostileShm, DialerThatLivesIsWaitedFor) {
  const auto a = make(shm_kind()), b = make(shm_kind());
  const auto l = a->connect(b->address(), "b", 0, soon()).value();
  const auto until = Clock::now() + 700ms;  // several looks whether the dialer lives
  ASSERT_TRUE(drive({a.get(), b.get()}, [&] { return Clock::now() > until; }));
  ASSERT_FALSE(l->failure()) << l->failure()->message();
  const auto r = b->connect(a->address(), "a", 0, soon()).value();
  ASSERT_TRUE(l->put({}, {}, 0, 0));
  EXPECT_TRUE(drive({a.get(), b.get()}, [&] { return r->signal(0) == 1; }));
}

}  // namespace
}  // namespace cenote::transport::test
