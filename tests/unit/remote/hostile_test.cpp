// The worker fed by a client that means harm: its session may end, nothing else.
#include <random>

#include "pool/remote/codec.h"
#include "pool/remote/ring.h"
#include "tests/unit/remote/rig.h"

namespace cenote::pool::remote {
namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;

/// A client below the driver: hello, then whatever bytes.
struct Attacker {
  explicit Attacker(cuda::Driver& driver) {
    fabric = transport::Fabric::create(test::over("shm")).value();
    worker = std::make_unique<test::WorkerThread>(driver, test::over("shm"),
                                                  test::options_for(fabric->address(), 1, {0}));
    link = fabric->connect(worker->address(), "victim", 1, Deadline::in(std::chrono::seconds(30))).value();
  }
  bool greet() {
    region = link.transport->allocate(ring_bytes).value();
    std::array<std::byte, 512> bytes;
    const auto size = encode(
        Hello{protocol_version, 1, ring_slots, std::span(region->key().bytes).first(region->key().size)},
        bytes);
    if (!link.endpoint->send(std::span(bytes).first(size))) return false;
    for (;;) {
      const auto got = link.endpoint->receive(bytes);
      if (!got) return false;
      if (*got) {
        return dispatch(std::span(bytes).first(**got),
                        [&](const auto& command) -> Result<void> {
                          if constexpr (std::is_same_v<std::decay_t<decltype(command)>, Welcome>) {
                            std::copy(command.key.begin(), command.key.end(), key.bytes.begin());
                            key.size = static_cast<std::uint8_t>(command.key.size());
                            return {};
                          } else {
                            return fail(ErrorCode::protocol_error, "test", "no welcome");
                          }
                        })
            .has_value();
      }
      if (!fabric->wait(Deadline::in(std::chrono::seconds(30)), nullptr, "welcome")) return false;
    }
  }
  /// False once the worker has had enough.
  bool put(RingSender& ring, std::size_t head, std::size_t bulk) {
    while (!ring.room()) {
      if (link.endpoint->failure()) return false;
      (void)fabric->wait(Deadline::in(std::chrono::milliseconds(20)), nullptr, "room");
      // Answers are given back unread, so that the worker goes on.
      while (link.endpoint->signal(max_lanes) > answers) {
        ++answers;
        (void)link.endpoint->put({}, {&key, 0}, max_lanes, tag_batch);
      }
      if (++patience > 100) return false;  // the worker waits for something that never comes: fine
    }
    return ring.commit(head, bulk).has_value() && arrive();
  }
  /// Until what was put has left; false: the connection is over.
  bool arrive() {
    std::array<transport::Completion, 16> done;
    while (link.endpoint->poll(done) == 0) {
      if (link.endpoint->failure()) return false;
      (void)fabric->wait(Deadline::in(std::chrono::milliseconds(20)), nullptr, "the put");
    }
    return true;
  }
  std::unique_ptr<transport::Fabric> fabric;
  std::unique_ptr<test::WorkerThread> worker;
  transport::Link link;
  std::unique_ptr<transport::Region> region;
  transport::RemoteKey key;
  std::uint64_t answers = 0;
  int patience = 0;
};

class Hostile : public testing::Test {
 protected:
  void SetUp() override {
    cuda::EmulatorOptions options;
    options.devices.front().memory_bytes = 64 * MiB;
    options.devices.front().context_bytes = MiB;
    driver = cuda::make_emulated_driver(options);
    ASSERT_EQ(driver->init(0), cuda::Status::success);
  }
  /// Whatever happened, the device serves the next one, and nothing of the last session is left.
  void TearDown() override {
    cuda::Context context = nullptr;
    ASSERT_EQ(driver->primary_ctx_retain(&context, 0), cuda::Status::success);
    ASSERT_EQ(driver->ctx_set_current(context), cuda::Status::success);
    std::size_t free = 0, total = 0;
    ASSERT_EQ(driver->mem_get_info(&free, &total), cuda::Status::success) << driver->last_error_detail();
    EXPECT_EQ(total - free, MiB);
  }
  std::unique_ptr<cuda::Driver> driver;
};

TEST_F(Hostile, RandomBytesEndTheSessionWithProtocolError) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    Attacker attacker(*driver);
    ASSERT_TRUE(attacker.greet());
    RingSender ring(*attacker.link.endpoint, attacker.key, {0, 0, 0});
    for (auto& byte : ring.head().first(512)) byte = static_cast<std::byte>(random());
    attacker.put(ring, 512, 0);
    const auto ended = attacker.worker->join();
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code, ErrorCode::protocol_error) << ended.error().message();
  }
}

TEST_F(Hostile, ABatchHeaderThatLiesEndsTheSession) {
  Attacker attacker(*driver);
  ASSERT_TRUE(attacker.greet());
  const BatchHeader lie{0, 0xffffff00U, 0xffffffffU, 0};
  ASSERT_TRUE(attacker.link.endpoint->put(std::as_bytes(std::span(&lie, 1)), {&attacker.key, 0}, 0, 1));
  attacker.arrive();
  const auto ended = attacker.worker->join();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::protocol_error);
}

TEST_F(Hostile, AHelloOfAnotherVersionIsRefusedWithBothNumbers) {
  Attacker attacker(*driver);
  std::array<std::byte, 256> bytes;
  const auto size = encode(Hello{99, 1, ring_slots, {}}, bytes);
  ASSERT_TRUE(attacker.link.endpoint->send(std::span(bytes).first(size)));
  while (!attacker.link.endpoint->failure())
    (void)attacker.fabric->wait(Deadline::in(std::chrono::milliseconds(50)), nullptr, "the refusal");
  const auto ended = attacker.worker->join();
  ASSERT_FALSE(ended);
  EXPECT_NE(ended.error().message().find("version 99"), std::string::npos) << ended.error().message();
}

/// Plausible numbers: small handles, addresses near those in use, now and then anything.
struct Plausible {
  std::mt19937_64& random;
  std::uint64_t base;
  std::vector<std::string>& store;
  template <class T>
  void operator()(const char*, T& value) {
    if constexpr (std::is_same_v<T, Blob> || std::is_same_v<T, Text>) {
      store.emplace_back(random() % 40, static_cast<char>(random()));
      if constexpr (std::is_same_v<T, Blob>)
        value = as_bytes(store.back());
      else
        value = store.back();
    } else {
      const auto kind = random() % 8;
      if (kind < 5)
        value = static_cast<T>(random() % 6);
      else if (kind < 7 && sizeof(T) == 8)
        value = static_cast<T>(base + (random() % 4) * 2 * MiB);
      else
        value = static_cast<T>(random());
    }
  }
};

TEST_F(Hostile, WellFormedNonsenseNeverHarmsTheWorker) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed);
    Attacker attacker(*driver);
    ASSERT_TRUE(attacker.greet());
    RingSender ring(*attacker.link.endpoint, attacker.key, {0, 0, 0});
    bool alive = true;
    for (int batch = 0; batch < 30 && alive; ++batch) {
      std::size_t used = 0;
      for (int command = 0; command < 20; ++command) {
        const auto pick = random() % (static_cast<std::uint64_t>(Opcode::count) - 1) + 1;
        std::vector<std::string> store;
        store.reserve(8);
#define CENOTE_TEST_PICK(Struct, name, answer, fields)                                 \
  if (pick == static_cast<std::uint64_t>(Opcode::name)) {                              \
    Struct c;                                                                          \
    visit_fields(c, Plausible{random, 2 * MiB, store});                                \
    if (Opcode::name != Opcode::goodbye) used += encode(c, ring.head().subspan(used)); \
  }
        CENOTE_REMOTE_CALLS(CENOTE_TEST_PICK, CENOTE_REMOTE_NO_FIELD)
#undef CENOTE_TEST_PICK
      }
      alive = attacker.put(ring, used, random() % 4096);
    }
    attacker.link.endpoint->close("done");
    const auto ended = attacker.worker->join();
    ASSERT_FALSE(ended);
    EXPECT_TRUE(ended.error().code == ErrorCode::protocol_error ||
                ended.error().code == ErrorCode::peer_failed)
        << ended.error().message();
  }
}

/// Puts one batch of commands and takes answers until `last` of them have come; every data command has to
/// name bytes of its own batch. Returns the bytes that came as data.
std::size_t exchange(Attacker& client, RingSender& out, RingReceiver& in, std::size_t head,
                     std::size_t answers) {
  std::size_t data = 0;
  EXPECT_TRUE(out.commit(head, 0));
  const auto limit = Deadline::in(std::chrono::seconds(60));
  while (answers != 0 && !client.link.endpoint->failure() && !limit.passed()) {
    std::array<transport::Completion, 16> done;
    client.fabric->progress();
    while (client.link.endpoint->poll(done) != 0) {
    }
    const auto batch = in.next();
    EXPECT_TRUE(batch);
    if (!batch) return 0;
    if (!*batch) {
      (void)client.fabric->wait(Deadline::in(std::chrono::milliseconds(20)), nullptr, "answers");
      continue;
    }
    for (auto rest = (*batch)->commands; !rest.empty();) {
      const auto size = command_size(rest).value();
      const auto command = decode(rest.first(size)).value();
      rest = rest.subspan(size);
      if (std::holds_alternative<Answered>(command)) --answers;
      if (const auto* bulk = std::get_if<DataBulk>(&command)) {
        EXPECT_LE(bulk->offset + bulk->count, (*batch)->bulk.size()) << "its bytes left with another batch";
        data += bulk->count;
      }
    }
    in.release((*batch)->number);
    EXPECT_TRUE(in.pay());
  }
  EXPECT_EQ(answers, 0U);
  return data;
}

TEST_F(Hostile, DataAndTheCommandThatNamesItLeaveTogetherHoweverFullTheBatchIs) {
  Attacker attacker(*driver);
  ASSERT_TRUE(attacker.greet());
  RingSender out(*attacker.link.endpoint, attacker.key, {0, 0, 0});
  std::vector<std::byte> heads(ring_slots * ring_head_bytes);
  RingReceiver in(*attacker.link.endpoint, attacker.region->bytes(), heads, attacker.key,
                  {0, max_lanes, max_lanes});
  const auto plain = encoded_size(Answered{});
  const auto refused = encoded_size(Answered{0, 0, 0, 0, "no such stream"});
  const auto data = encoded_size(DataBulk{});
  std::uint64_t request = 0;
  int tried = 0;
  // Small answers of two sizes, so many that less is left of their batch than the data's command needs.
  for (std::size_t refusals = 0; refusals < 12; ++refusals) {
    const auto fill = (batch_capacity - refusals * refused) / plain;
    if (batch_capacity - refusals * refused - fill * plain >= data) continue;
    ++tried;
    std::size_t head = 0;
    const auto add = [&](auto command) {
      command.request = ++request;
      head += encode(command, out.head().subspan(head));
    };
    for (std::size_t i = 0; i < refusals; ++i) add(StreamSync{0, 1000});
    for (std::size_t i = 0; i < fill; ++i) add(MemInfo{});
    add(DeviceInfo{});
    ASSERT_LE(head, batch_capacity);
    ASSERT_GT(exchange(attacker, out, in, head, refusals + fill + 1), 0U);
  }
  EXPECT_GT(tried, 0);
  attacker.link.endpoint->close("done");
  EXPECT_FALSE(attacker.worker->join());
}

TEST_F(Hostile, ACollectiveOfNoKnownTypeOrOperationFailsWithoutEndingTheSession) {
  Attacker attacker(*driver);
  ASSERT_TRUE(attacker.greet());
  RingSender out(*attacker.link.endpoint, attacker.key, {0, 0, 0});
  std::vector<std::byte> heads(ring_slots * ring_head_bytes);
  RingReceiver in(*attacker.link.endpoint, attacker.region->bytes(), heads, attacker.key,
                  {0, max_lanes, max_lanes});
  std::size_t head = 0;
  const auto add = [&](const auto& command) { head += encode(command, out.head().subspan(head)); };
  add(CommCreate{1, 1, 0, 1, 1000, "nobody's"});
  add(CommAllreduce{1, 0, 0, 1, CENOTE_FLOAT32, 9, 0});
  add(CommAllreduce{1, 0, 0, 1, 99, CENOTE_SUM, 0});
  add(CommBroadcast{1, 0, 1, 99, 0, 0});
  add(MemInfo{2});
  exchange(attacker, out, in, head, 2);
  EXPECT_FALSE(attacker.link.endpoint->failure());
  attacker.link.endpoint->close("done");
  EXPECT_FALSE(attacker.worker->join());
}

}  // namespace
}  // namespace cenote::pool::remote
