// The helper process's side: whatever one program does, and however it ends, its leases are kept, told of and
// given back, and the helper ends soon after it.
#include "pool/dropin/helper_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pool/dropin/helper_channel.h"

namespace cenote::pool::dropin {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

Deadline patience() { return Deadline::in(seconds(60)); }

// A pool of any number of GPUs. The test holds calls back, and loses leases.
class FakePool {
 public:
  using Tell = std::function<void(const Error&)>;

  void hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  /// The next release too; those after it are answered.
  void hold_next_release() {
    const std::lock_guard lock(mutex_);
    next_release_held_ = true;
  }
  /// A call of the client: counted, and held back until let go, its deadline, or its cancel.
  Result<void> call(Deadline deadline, const CancelFlag* cancel, bool release = false) {
    std::unique_lock lock(mutex_);
    if (release && !std::exchange(next_release_held_, false)) return {};
    ++waiting_;
    changed_.notify_all();
    while (held_ && !deadline.passed() && !(cancel != nullptr && cancel->raised()))
      changed_.wait_for(lock, milliseconds(20));
    --waiting_;
    if (held_) return fail(ErrorCode::cancelled, "ask the fake pool", "ended while it was held back");
    return {};
  }
  void await_calls(int count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_until(lock, patience().when(), [&] { return waiting_ >= count; }));
  }
  std::string grant() {
    const std::lock_guard lock(mutex_);
    return "L" + std::to_string(++granted_);
  }
  void release(const std::string& id) {
    const std::lock_guard lock(mutex_);
    released_.insert(id);
  }
  void listen(const std::string& id, Tell tell) {
    const std::lock_guard lock(tell_mutex_);
    tells_[id] = std::move(tell);
  }
  /// As a lease does: whoever destroys it waits for who is being told.
  void unlisten(const std::string& id) {
    const std::lock_guard lock(tell_mutex_);
    tells_.erase(id);
  }
  bool lose(const std::string& id) {
    const std::lock_guard lock(tell_mutex_);
    const auto found = tells_.find(id);
    if (found == tells_.end() || !found->second) return false;
    found->second(Error{ErrorCode::not_found, "renew lease " + id, "it is over"});
    return true;
  }
  /// Whether the broker's list has it.
  void list(const std::string& id, bool held) {
    const std::lock_guard lock(mutex_);
    if (held)
      listed_.insert(id);
    else
      listed_.erase(id);
  }
  std::vector<client::LeaseInfo> leases() {
    const std::lock_guard lock(mutex_);
    std::vector<client::LeaseInfo> all;
    for (const auto& id : listed_) all.emplace_back().id = id;
    return all;
  }
  std::multiset<std::string> released() {
    const std::lock_guard lock(mutex_);
    return released_;
  }
  int granted() {
    const std::lock_guard lock(mutex_);
    return granted_;
  }

 private:
  std::mutex mutex_, tell_mutex_;
  std::condition_variable changed_;
  bool held_ = false, next_release_held_ = false;
  int waiting_ = 0, granted_ = 0;
  std::multiset<std::string> released_;
  std::set<std::string> listed_;
  std::map<std::string, Tell> tells_;
};

class FakeLease final : public client::Lease {
 public:
  FakeLease(FakePool& pool, std::string id) : pool_(pool) {
    info_.id = std::move(id);
    info_.devices.push_back({"gpu-0", "H200", 1024, "a", "a:1", 1});
  }
  ~FakeLease() override { pool_.unlisten(info_.id); }
  [[nodiscard]] client::LeaseInfo info() const override { return info_; }
  [[nodiscard]] const std::string& reason() const override { return info_.note; }
  [[nodiscard]] std::optional<Error> lost() const override { return std::nullopt; }
  [[nodiscard]] std::optional<Error> session_lost() const override { return std::nullopt; }
  [[nodiscard]] client::LeaseFile file() const override { return {}; }
  Result<std::vector<remote::WorkerAddress>> open_workers(std::span<const std::byte> address,
                                                          Deadline deadline,
                                                          const CancelFlag* cancel) override {
    CENOTE_TRY(pool_.call(deadline, cancel));
    return std::vector<remote::WorkerAddress>{
        {Bytes(address.begin(), address.end()), 7, "a (a:1)", {info_.id + " gpu 0"}}};
  }
  Result<std::unique_ptr<remote::RemoteDriver>> open(Deadline, const CancelFlag*) override {
    return fail(ErrorCode::internal, "open", "the helper opens no devices");
  }
  Result<void> release(Deadline deadline, const CancelFlag* cancel) override {
    CENOTE_TRY(pool_.call(deadline, cancel, true));
    pool_.release(info_.id);
    return {};
  }
  void on_loss(std::function<void(const Error&)> tell) override { pool_.listen(info_.id, std::move(tell)); }
  void on_session_loss(std::function<void(const Error&)>) override {}

 private:
  FakePool& pool_;
  client::LeaseInfo info_;
};

class FakeClient final : public client::PoolClient {
 public:
  explicit FakeClient(FakePool& pool) : pool_(pool) {}
  Result<std::unique_ptr<client::Lease>> lease(const client::LeaseSpec& spec, Deadline deadline,
                                               const CancelFlag* cancel) override {
    // "late": answered though it was cancelled, as a broker may.
    const auto called = pool_.call(deadline, cancel);
    if (!called && spec.note != "late") return fail(called.error());
    return std::make_unique<FakeLease>(pool_, pool_.grant());
  }
  Result<std::unique_ptr<client::Lease>> adopt(const client::LeaseFile& file, bool renew) override {
    EXPECT_FALSE(renew);
    return std::make_unique<FakeLease>(pool_, file.lease.id);
  }
  Result<std::vector<client::LeaseInfo>> leases(Deadline, const CancelFlag*) override {
    return pool_.leases();
  }
  Result<client::PoolState> top(Deadline, const CancelFlag*) override { return client::PoolState(); }

 private:
  FakePool& pool_;
};

class HelperServer : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    program.reset(ends[0]);
    alive.reset(::eventfd(0, EFD_CLOEXEC));
    ASSERT_TRUE(alive);
    make = [this](const std::vector<std::string>&) -> Result<std::unique_ptr<client::PoolClient>> {
      return std::make_unique<FakeClient>(pool);
    };
    // The helper has a descriptor of its own for the program, as it has in its own process.
    serving = std::async(std::launch::async, [this, socket = ends[1], watched = ::dup(alive.get())] {
      return serve_program(UniqueFd(socket), UniqueFd(watched), make);
    });
  }
  void TearDown() override {
    program.reset();
    pool.hold(false);
    if (serving.valid()) serving.wait();
  }

  void say(std::uint64_t id, Ask ask, std::uint32_t timeout_ms = 60'000) const {
    ASSERT_TRUE(send_frame(program.get(), encode(Request{id, timeout_ms, std::move(ask)}), patience()));
  }
  Reply hear() const {
    const auto frame = receive_frame(program.get(), patience());
    EXPECT_TRUE(frame) << frame.error().message();
    auto reply = frame ? decode_helper_reply(*frame) : Result<Reply>(Reply{});
    EXPECT_TRUE(reply) << reply.error().message();
    return reply ? std::move(*reply) : Reply{};
  }
  ReplyBody ask(Ask what) {
    say(++last_id, std::move(what));
    auto reply = hear();
    EXPECT_EQ(reply.id, last_id);
    return std::move(reply.body);
  }
  void connect() { EXPECT_TRUE(std::holds_alternative<ReadyReply>(ask(ConnectAsk{}))); }
  LeaseReply lease() {
    auto body = ask(LeaseAsk{});
    const auto* granted = std::get_if<LeaseReply>(&body);
    EXPECT_NE(granted, nullptr);
    return granted == nullptr ? LeaseReply{} : *granted;
  }
  /// A failure of the test, not its hanging, where the helper goes on.
  ::testing::AssertionResult ends() {
    if (serving.wait_for(seconds(60)) == std::future_status::ready) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "the helper goes on without its program";
  }
  void dies() const {
    const std::uint64_t one = 1;
    ASSERT_EQ(::write(alive.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }

  FakePool pool;
  MakeClient make;
  UniqueFd program, alive;
  std::future<Result<void>> serving;
  std::uint64_t last_id = 0;
};

TEST_F(HelperServer, LeasesOpensAndReleasesForItsProgram) {
  connect();
  const auto granted = lease();
  EXPECT_EQ(granted.id, "L1");
  ASSERT_EQ(granted.gpus.size(), 1U);
  EXPECT_EQ(granted.gpus[0].model, "H200");
  const auto opened = ask(OpenAsk{granted.lease, {std::byte{5}}});
  ASSERT_TRUE(std::holds_alternative<WorkersReply>(opened));
  EXPECT_EQ(std::get<WorkersReply>(opened).workers.at(0).fabric_address, Bytes{std::byte{5}});
  EXPECT_TRUE(std::holds_alternative<DoneReply>(ask(ReleaseAsk{granted.lease})));
  EXPECT_TRUE(std::holds_alternative<FailedReply>(ask(OpenAsk{granted.lease, {}})));
  program.reset();
  ASSERT_TRUE(ends());
  EXPECT_TRUE(serving.get());
  EXPECT_THAT(pool.released(), ElementsAre("L1")) << "once";
}

TEST_F(HelperServer, GivesBackWhatItsProgramNeitherReleasedNorForgot) {
  connect();
  lease();
  const auto forgotten = lease(), released = lease();
  lease();
  say(0, ForgetAsk{forgotten.lease});
  ask(ReleaseAsk{released.lease});
  program.reset();
  ASSERT_TRUE(ends());
  EXPECT_THAT(pool.released(), UnorderedElementsAre("L1", "L3", "L4"));
}

TEST_F(HelperServer, GivesBackNothingThatWasAdopted) {
  connect();
  client::LeaseFile file;
  file.broker = "head:4700";
  file.lease.id = "other";
  const auto adopted = ask(AdoptAsk{client::encode_lease_file(file)});
  ASSERT_TRUE(std::holds_alternative<LeaseReply>(adopted));
  program.reset();
  ASSERT_TRUE(ends());
  EXPECT_THAT(pool.released(), IsEmpty());
}

TEST_F(HelperServer, TellsOfAnAdoptedLeaseThatOthersHaveEnded) {
  connect();
  pool.list("other", true);
  client::LeaseFile file;
  file.broker = "head:4700";
  file.lease.id = "other";
  const auto adopted = ask(AdoptAsk{client::encode_lease_file(file)});
  const auto* number = std::get_if<LeaseReply>(&adopted);
  ASSERT_NE(number, nullptr);
  pool.list("other", false);
  const auto released = ask(ReleaseAsk{number->lease});
  const auto* refused = std::get_if<FailedReply>(&released);
  ASSERT_NE(refused, nullptr) << "a broker remembers what it ended, and would say yes once more";
  EXPECT_EQ(refused->error.code, ErrorCode::not_found);
  const auto told = hear();
  const auto* lost = std::get_if<LostReply>(&told.body);
  ASSERT_NE(lost, nullptr);
  EXPECT_EQ(lost->lease, number->lease);
  EXPECT_EQ(lost->error.code, ErrorCode::not_found);
  program.reset();
  ASSERT_TRUE(ends());
  EXPECT_THAT(pool.released(), IsEmpty());
}

TEST_F(HelperServer, AProgramThatDiesInMidFrameLosesNothingButItsLastWord) {
  connect();
  lease();
  Writer out;
  out.blob(encode(Request{9, 60'000, LeaseAsk{}}));
  const auto bytes = out.take();
  ASSERT_EQ(::send(program.get(), bytes.data(), bytes.size() / 2, 0), static_cast<ssize_t>(bytes.size() / 2));
  program.reset();
  ASSERT_TRUE(ends());
  EXPECT_TRUE(serving.get());
  EXPECT_EQ(pool.granted(), 1);
  EXPECT_THAT(pool.released(), ElementsAre("L1"));
}

TEST_F(HelperServer, NonsenseEndsItAndItsLeasesAreGivenBack) {
  connect();
  lease();
  ASSERT_TRUE(send_frame(program.get(), as_bytes(std::string_view("nonsense")), patience()));
  ASSERT_TRUE(ends());
  const auto served = serving.get();
  ASSERT_FALSE(served);
  EXPECT_EQ(served.error().code, ErrorCode::protocol_error);
  EXPECT_THAT(pool.released(), ElementsAre("L1"));
}

TEST_F(HelperServer, ALengthThatNobodySendsIsNonsense) {
  connect();
  const std::uint32_t length = 0xffffffff;
  ASSERT_EQ(::send(program.get(), &length, sizeof length, 0), static_cast<ssize_t>(sizeof length));
  ASSERT_TRUE(ends());
  EXPECT_FALSE(serving.get());
}

TEST_F(HelperServer, ManyThreadsLeaseOpenAndReleaseAtOnce) {
  constexpr int kThreads = 8, kRounds = 10;
  {
    HelperChannel channel(std::move(program), UniqueFd());
    ASSERT_TRUE(channel.call(ConnectAsk{}, patience()));
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&channel, t] {
        for (int round = 0; round < kRounds; ++round) {
          const auto granted = channel.call(LeaseAsk{}, patience());
          ASSERT_TRUE(granted) << granted.error().message();
          const auto number = std::get<LeaseReply>(*granted).lease;
          const Bytes mine{static_cast<std::byte>(t), static_cast<std::byte>(round)};
          const auto opened = channel.call(OpenAsk{number, mine}, patience());
          ASSERT_TRUE(opened) << opened.error().message();
          EXPECT_EQ(std::get<WorkersReply>(*opened).workers.at(0).fabric_address, mine);
          if (round % 2 == 0) {
            EXPECT_TRUE(channel.call(ReleaseAsk{number}, patience()));
          }
        }
      });
    }
    for (auto& thread : threads) thread.join();
  }
  ASSERT_TRUE(ends());
  const auto released = pool.released();
  EXPECT_EQ(released.size(), std::size_t{kThreads} * kRounds);
  EXPECT_EQ(std::set(released.begin(), released.end()).size(), released.size()) << "each once";
}

TEST_F(HelperServer, TooManyRequestsAtOnceAreRefusedAndTheOthersAnswered) {
  connect();
  pool.hold(true);
  for (std::uint64_t id = 1001; id <= 1256; ++id) say(id, LeaseAsk{});
  pool.await_calls(256);
  say(1257, LeaseAsk{});
  const auto refused = hear();
  EXPECT_EQ(refused.id, 1257U);
  ASSERT_TRUE(std::holds_alternative<FailedReply>(refused.body));
  EXPECT_EQ(std::get<FailedReply>(refused.body).error.code, ErrorCode::resource_exhausted);
  pool.hold(false);
  std::set<std::uint64_t> answered;
  while (answered.size() < 256) {
    const auto reply = hear();
    EXPECT_TRUE(std::holds_alternative<LeaseReply>(reply.body));
    EXPECT_TRUE(answered.insert(reply.id).second);
  }
  program.reset();
  ASSERT_TRUE(ends());
  EXPECT_EQ(pool.released().size(), 256U);
}

TEST_F(HelperServer, TellsOfALostLeaseUnderItsNumber) {
  connect();
  const auto first = lease();
  const auto second = lease();
  while (!pool.lose("L2")) std::this_thread::yield();  // it asks to be told after it has answered
  const auto told = hear();
  EXPECT_EQ(told.id, 0U);
  ASSERT_TRUE(std::holds_alternative<LostReply>(told.body));
  EXPECT_EQ(std::get<LostReply>(told.body).lease, second.lease);
  EXPECT_NE(first.lease, second.lease);
}

TEST_F(HelperServer, ALossWhileTheProgramForgetsOrLeavesIsNoRace) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) SetUp();
    connect();
    const auto before = pool.granted();
    std::vector<LeaseNumber> numbers;
    for (int i = 0; i < 8; ++i) numbers.push_back(lease().lease);
    std::thread broker([&] {
      for (int i = 1; i <= 8; ++i) pool.lose("L" + std::to_string(before + i));
    });
    for (std::size_t i = 0; i < 4; ++i) say(0, ForgetAsk{numbers[i]});
    program.reset();
    ASSERT_TRUE(ends());
    broker.join();
    EXPECT_TRUE(serving.get());
  }
}

TEST_F(HelperServer, ALeaseGrantedWhileItsProgramWentIsGivenBack) {
  connect();
  pool.hold(true);
  LeaseAsk late;
  late.note = "late";
  say(2, late, 3'600'000);
  pool.await_calls(1);
  program.reset();
  while (pool.granted() == 0) std::this_thread::yield();
  pool.hold(false);
  ASSERT_TRUE(ends());
  EXPECT_THAT(pool.released(), ElementsAre("L1"));
}

TEST_F(HelperServer, RequestsOfAnHourDoNotKeepItWhenItsProgramIsGone) {
  connect();
  const auto opened = lease(), released = lease();
  pool.hold(true);
  pool.hold_next_release();
  say(10, OpenAsk{opened.lease, {}}, 3'600'000);
  say(11, ReleaseAsk{released.lease}, 3'600'000);
  say(12, LeaseAsk{}, 3'600'000);
  pool.await_calls(3);
  program.reset();
  EXPECT_TRUE(ends());
  EXPECT_THAT(pool.released(), UnorderedElementsAre("L1", "L2"));
}

TEST_F(HelperServer, SeesItsProgramDieThoughAChildOfItHasTheSocketAndReadsNothing) {
  connect();
  lease();
  pool.hold(true);
  const int small = 1;
  ASSERT_EQ(::setsockopt(program.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
  for (std::uint64_t id = 1001; id <= 1256; ++id) say(id, LeaseAsk{}, 3'600'000);
  pool.await_calls(256);
  // From here on every request is refused; nobody reads, so the refusals fill the socket.
  const auto one = encode(Request{2000, 60'000, LeaseAsk{}});
  while (send_frame(program.get(), one, Deadline::in(milliseconds(200)))) {
  }
  dies();
  EXPECT_TRUE(ends());
}

}  // namespace
}  // namespace cenote::pool::dropin
