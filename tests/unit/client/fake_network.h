// A broker and agents in this process, for the pool's client: each kind of call answers, refuses, hangs or
// finds nobody, as the test says. Holds the client to its side of network.h.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pool/client/calls.h"
#include "pool/client/network.h"

namespace cenote::pool::client::testing {

inline Deadline patience() { return Deadline::in(std::chrono::seconds(60)); }

inline Error network_error(int native) {
  Error error{native == kNetworkDeadline ? ErrorCode::deadline_exceeded : ErrorCode::peer_failed, "call",
              "the fake network says so"};
  error.native = native;
  return error;
}

/// How one kind of call goes.
struct Behaviour {
  enum class Kind : std::uint8_t { answers, refuses, hangs, away } kind = Kind::answers;
  Error refusal{};
};
inline Behaviour answers() { return {}; }
inline Behaviour refuses(ErrorCode code) {
  return {Behaviour::Kind::refuses, Error{code, "ask", "the fake peer refuses"}};
}
/// Until the behaviour changes, or the call is ended.
inline Behaviour hangs() { return {Behaviour::Kind::hangs, {}}; }
inline Behaviour away() { return {Behaviour::Kind::away, {}}; }

/// Calls that wait for the ends of sessions. The test ends them.
class FakeEnds {
 public:
  struct Asked {
    std::uint64_t id;
    AwaitCall call;
  };

  /// Waits for a call for that session that is in flight.
  Asked asked(std::uint32_t channel) {
    std::unique_lock lock(mutex_);
    const auto find = [&] {
      return std::ranges::find_if(flights_, [&](auto& f) { return f.second.channel == channel; });
    };
    EXPECT_TRUE(changed_.wait_until(lock, patience().when(), [&] { return find() != flights_.end(); }))
        << "nobody asks for session " << channel;
    const auto found = find();
    return found == flights_.end() ? Asked{} : Asked{found->first, found->second};
  }
  /// False: it was cancelled before.
  bool answer(std::uint64_t id, Result<AwaitedEnd> end) {
    const std::lock_guard lock(mutex_);
    return answer_locked(id, std::move(end));
  }
  /// What died said nothing more: two calls in a row fail.
  void die(std::uint32_t channel) {
    answer(asked(channel).id, fail(network_error(kNetworkUnavailable)));
    const auto last = asked(channel);
    EXPECT_TRUE(last.call.connect);
    answer(last.id, fail(network_error(kNetworkUnavailable)));
  }
  /// Until the client's thread has taken all answers and waits for the next.
  void settle() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_until(lock, patience().when(), [&] { return waiting_ && answers_.empty(); }));
  }
  /// Until the client has begun to end.
  void await_shut() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_until(lock, patience().when(), [&] { return shut_; }));
  }
  [[nodiscard]] std::size_t in_flight() {
    const std::lock_guard lock(mutex_);
    return flights_.size();
  }

 private:
  friend class FakeAwaitCalls;
  bool answer_locked(std::uint64_t id, Result<AwaitedEnd> end) {
    if (flights_.erase(id) == 0) return false;
    answers_.push_back({id, std::move(end)});
    changed_.notify_all();
    return true;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, AwaitCall> flights_;
  std::set<std::uint64_t> ids_;
  std::deque<AwaitAnswer> answers_;
  bool shut_ = false, waiting_ = false;
};

/// The client's side of FakeEnds.
class FakeAwaitCalls final : public AwaitCalls {
 public:
  explicit FakeAwaitCalls(std::shared_ptr<FakeEnds> ends) : ends_(std::move(ends)) {}
  ~FakeAwaitCalls() override {
    const std::lock_guard lock(ends_->mutex_);
    EXPECT_TRUE(ends_->shut_);
    EXPECT_TRUE(ends_->flights_.empty());
    EXPECT_TRUE(ends_->answers_.empty()) << "the client left answers behind";
  }
  void start(std::uint64_t id, AwaitCall call) override {
    const std::lock_guard lock(ends_->mutex_);
    EXPECT_FALSE(ends_->shut_) << "a call after shut()";
    EXPECT_TRUE(ends_->ids_.insert(id).second) << "id " << id << " twice";
    EXPECT_NE(call.line, nullptr);
    ends_->flights_.emplace(id, std::move(call));
    ends_->changed_.notify_all();
  }
  void cancel(std::uint64_t id) override {
    const std::lock_guard lock(ends_->mutex_);
    ends_->answer_locked(id, fail(ErrorCode::cancelled, "await", "cancelled"));
  }
  void shut() override {
    const std::lock_guard lock(ends_->mutex_);
    ends_->shut_ = true;
    while (!ends_->flights_.empty()) {
      ends_->answer_locked(ends_->flights_.begin()->first, fail(ErrorCode::cancelled, "await", "cancelled"));
    }
    ends_->changed_.notify_all();
  }
  std::optional<AwaitAnswer> next() override {
    std::unique_lock lock(ends_->mutex_);
    ends_->waiting_ = true;
    ends_->changed_.notify_all();
    ends_->changed_.wait(lock, [&] { return ends_->shut_ || !ends_->answers_.empty(); });
    ends_->waiting_ = false;
    if (ends_->answers_.empty()) return std::nullopt;
    auto answer = std::move(ends_->answers_.front());
    ends_->answers_.pop_front();
    return answer;
  }

 private:
  const std::shared_ptr<FakeEnds> ends_;
};

class FakeNetwork final : public Network, public std::enable_shared_from_this<FakeNetwork> {
 public:
  void grants(Behaviour behaviour) { set(grant_, std::move(behaviour)); }
  void renewals(Behaviour behaviour) { set(renew_, std::move(behaviour)); }
  void releases(Behaviour behaviour) { set(release_, std::move(behaviour)); }
  void openings(Behaviour behaviour) { set(open_, std::move(behaviour)); }

  /// Until so many of a kind were begun; answered or not.
  struct Count {
    int begun = 0, answered = 0, in_flight = 0;
  };
  template <class Condition>
  bool eventually(const Condition& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, patience().when(), [&] { return condition(*this); });
  }
  Count grant_count, renew_count, release_count, open_count;  ///< in eventually() only

  /// With the lock that guards the counts.
  template <class Read>
  auto read(const Read& read_one) {
    const std::lock_guard lock(mutex_);
    return read_one(*this);
  }

  Result<Granted> grant(const CallTerms& terms, const GrantCall& call) override {
    return carry<Granted>(terms, grant_, grant_count, [&] {
      key = call.key;
      return Granted{lease, Bytes{}, "because"};
    });
  }
  Result<Renewed> renew(const CallTerms& terms, const RenewCall& call) override {
    admit("renew", "broker", call.lease_id, call.proof);
    return carry<Renewed>(terms, renew_, renew_count, [&] {
      const auto text = "token " + std::to_string(renew_count.answered);
      const auto token = as_bytes(text);
      return Renewed{lease.expires_unix_ms + renew_count.answered, Bytes(token.begin(), token.end())};
    });
  }
  Result<void> release(const CallTerms& terms, const ReleaseCall& call) override {
    admit("release", "broker", call.lease_id, call.proof);
    const auto done = carry<int>(terms, release_, release_count, [] { return 0; });
    if (!done) return fail(done.error());
    return {};
  }
  Result<std::vector<LeaseInfo>> leases(const CallTerms&) override { return std::vector{lease}; }
  Result<PoolState> top(const CallTerms&) override { return PoolState{}; }
  std::shared_ptr<AgentLine> line(const std::string& agent, const std::string&) override {
    return std::make_shared<Line>(shared_from_this(), agent);
  }
  std::unique_ptr<AwaitCalls> await_calls() override { return std::make_unique<FakeAwaitCalls>(ends); }

  LeaseInfo lease{.id = "L1",
                  .client = "alice",
                  .note = {},
                  .devices = {{"gpu-0", "H200", 1, "a", "a:1", 1}, {"gpu-1", "A100", 1, "b", "b:1", 1}},
                  .granted_unix_ms = 1'000'000,
                  .expires_unix_ms = 1'000'060};
  PublicKey key{};  ///< the holder's
  const std::shared_ptr<FakeEnds> ends = std::make_shared<FakeEnds>();

 private:
  class Line final : public AgentLine {
   public:
    Line(std::shared_ptr<FakeNetwork> network, std::string agent)
        : network_(std::move(network)), agent_(std::move(agent)) {}
    Result<Opened> open(const CallTerms& terms, const OpenCall& call) override {
      network_->admit("open", agent_, network_->lease.id, call.proof);
      return network_->carry<Opened>(terms, network_->open_, network_->open_count, [&] {
        return Opened{call.client_fabric_address, 1, ++network_->last_channel_};
      });
    }

   private:
    const std::shared_ptr<FakeNetwork> network_;
    const std::string agent_;
  };

  void set(Behaviour& which, Behaviour behaviour) {
    const std::lock_guard lock(mutex_);
    which = std::move(behaviour);
    changed_.notify_all();
  }

  // As a verifier does: the holder's signature, and no proof twice.
  void admit(const std::string& purpose, const std::string& audience, const std::string& lease_id,
             const Proof& proof) {
    EXPECT_EQ(lease_id, lease.id);
    const std::lock_guard lock(mutex_);
    auto& guard = guards_.try_emplace(audience, audience).first->second;
    const auto admitted = guard.admit(key, purpose, lease_id, proof, proof.unix_ms);
    EXPECT_TRUE(admitted) << admitted.error().message();
  }

  template <class T, class Answer>
  Result<T> carry(const CallTerms& terms, const Behaviour& behaviour, Count& count, const Answer& answer) {
    bool ended = false;
    const CallGate::Call call(terms.gate, [&] {
      const std::lock_guard lock(mutex_);
      ended = true;
      changed_.notify_all();
    });
    if (!call) return fail(ErrorCode::cancelled, terms.stage, "the call was cancelled");
    std::unique_lock lock(mutex_);
    ++count.begun;
    ++count.in_flight;
    changed_.notify_all();
    auto result = outcome<T>(lock, terms, behaviour, ended, [&] {
      ++count.answered;
      return answer();
    });
    --count.in_flight;
    changed_.notify_all();
    return result;
  }

  template <class T, class Answer>
  Result<T> outcome(std::unique_lock<std::mutex>& lock, const CallTerms& terms, const Behaviour& behaviour,
                    const bool& ended, const Answer& answer) {
    using Kind = Behaviour::Kind;
    while (behaviour.kind == Kind::hangs) {
      if (ended || (terms.cancel != nullptr && terms.cancel->raised()))
        return fail(ErrorCode::cancelled, terms.stage, "the call was cancelled");
      if (terms.deadline.passed()) return fail(network_error(kNetworkDeadline));
      changed_.wait_for(lock,
                        std::min<Clock::duration>(terms.deadline.left(), std::chrono::milliseconds(20)));
    }
    if (behaviour.kind == Kind::away) return fail(network_error(kNetworkUnavailable));
    if (behaviour.kind == Kind::refuses) return fail(behaviour.refusal);
    return answer();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Behaviour grant_, renew_, release_, open_;
  std::map<std::string, ProofGuard> guards_;
  std::uint32_t last_channel_ = 0;
};

}  // namespace cenote::pool::client::testing
