// A BrokerCore for tests: on a clock that is turned by hand, and a disk that may be full or hang.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "pool/broker/core.h"
#include "runtime/log.h"

namespace cenote::pool {

inline constexpr std::uint64_t kGiB = 1ULL << 30U;

class TurnedClock final : public BrokerClock {
 public:
  [[nodiscard]] std::int64_t unix_ms() const override { return now_.load(); }
  [[nodiscard]] std::int64_t monotonic_ms() const override { return now_.load(); }
  void turn(std::int64_t ms) { now_ += ms; }

 private:
  std::atomic<std::int64_t> now_{1'000'000};
};

/// Remembers like a disk that outlives its broker, and may be full.
struct Disk {
  Recovered kept;
  bool full = false;
  bool full_for_snapshots = false;
  std::uint64_t appends = 0;

  /// From here on an append hangs in the disk until let_go().
  void hang() {
    const std::lock_guard lock(mutex);
    hanging = true;
  }
  void let_go() {
    const std::lock_guard lock(mutex);
    hanging = false;
    changed.notify_all();
  }
  bool wait_for_waiters(int count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(60), [&] { return waiting >= count; });
  }
  void pass() {
    std::unique_lock lock(mutex);
    ++waiting;
    changed.notify_all();
    changed.wait(lock, [&] { return !hanging; });
    --waiting;
  }

  std::mutex mutex;
  std::condition_variable changed;
  bool hanging = false;
  int waiting = 0;
};

class DiskStore final : public Store {
 public:
  explicit DiskStore(Disk& disk) : disk_(disk) {}
  Result<Recovered> recover() override { return disk_.kept; }
  Result<void> append(std::span<const Record> records) override {
    if (disk_.full) return fail(ErrorCode::system_error, "write to the disk", "No space left on device");
    disk_.pass();
    disk_.kept.records.insert(disk_.kept.records.end(), records.begin(), records.end());
    ++disk_.appends;
    return {};
  }
  Result<void> snapshot(std::uint64_t sequence, std::span<const std::byte> state) override {
    if (disk_.full || disk_.full_for_snapshots) {
      return fail(ErrorCode::system_error, "write a snapshot", "No space left on device");
    }
    disk_.kept = {sequence, Bytes(state.begin(), state.end()), {}};
    return {};
  }

 private:
  Disk& disk_;
};

class BrokerCoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    policy_.agent_timeout_ms = 3'000;
    policy_.agent_dead_ms = 10'000;
    policy_.grace_ms = 30'000;
    policy_.drift_ms = 1'000;
    start();
  }
  void start() {
    core_.reset();
    std::array<std::uint8_t, 32> secret{};
    secret.fill(5);
    auto core = BrokerCore::open(std::make_unique<DiskStore>(disk_), *KeyPair::from_private(secret), clock_,
                                 *log_, policy_);
    ASSERT_TRUE(core) << core.error().message();
    core_ = std::move(*core);
  }

  static AgentHello hello(const std::string& name, std::uint32_t gpus, const std::string& instance = "1") {
    AgentHello hello{name, name + ":1", instance, {}, {}};
    for (std::uint32_t i = 0; i < gpus; ++i)
      hello.devices.push_back({name + std::to_string(i), "H200", 8 * kGiB, i});
    return hello;
  }
  AgentWelcome enrol(const std::string& name, std::uint32_t gpus, const std::string& instance = "1") {
    const auto welcome = core_->register_agent(hello(name, gpus, instance));
    EXPECT_TRUE(welcome) << welcome.error().message();
    return welcome.value_or(AgentWelcome{});
  }
  PulseAnswer pulse(const std::string& name, std::vector<LiveLease> live = {},
                    std::vector<EndedLease> ended = {}) {
    const auto answer = core_->heartbeat({name, "1", std::move(live), std::move(ended), {}});
    EXPECT_TRUE(answer) << answer.error().message();
    return answer.value_or(PulseAnswer{});
  }
  LeaseAsk ask(std::uint32_t gpus, const std::string& request_id = "") const {
    return {.client = "alice",
            .gpus = gpus,
            .model = {},
            .client_key = key_.public_key(),
            .note = {},
            .request_id = request_id};
  }
  LeaseView lease(std::uint32_t gpus, const std::string& request_id = "") {
    const auto granted = core_->request(ask(gpus, request_id));
    EXPECT_TRUE(granted) << granted.error().message();
    return granted.value_or(LeaseView{});
  }
  /// A new term is counted, and gives the leases in force time for their renewals.
  static void expect_same_but_for_the_term(State after, const State& before) {
    after.term = before.term;
    for (auto& [id, lease] : after.leases) lease.hold_ms = 0;
    EXPECT_EQ(after, before);
  }
  Proof proof(std::string_view purpose, const std::string& id) {
    clock_.turn(1);
    return *make_proof(key_, purpose, id, "broker", clock_.unix_ms());
  }

  TurnedClock clock_;
  Disk disk_;
  std::unique_ptr<Logger> log_ = Logger::silent();
  BrokerPolicy policy_;
  KeyPair key_ = *KeyPair::generate();
  std::unique_ptr<BrokerCore> core_;
};

}  // namespace cenote::pool
