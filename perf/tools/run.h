// Run: one measurement of one end, and what every tool's loop is made of. A loop is: post, turn(), look.
//
// turn() moves the transport, answers the peer and, now and then, sees whether the peer lives, whether a
// person has had enough and what the endpoint says. It, and all that returns bool here, is false when the run
// is over for a reason that is in error(). Nothing of it allocates as long as all is well.
#pragma once

#include <sched.h>

#include <array>
#include <functional>

#include "perf/tools/buffer.h"
#include "perf/tools/control.h"
#include "perf/tools/pattern.h"
#include "perf/tools/plan.h"
#include "transports/transport.h"

namespace cenote::perf {

/// Signal counters of an endpoint, by their use.
enum Slot : std::uint32_t {
  slot_data = 0,     ///< a message is there
  slot_credit = 1,   ///< messages were taken
  slot_done = 2,     ///< nothing more will come in this run
  slot_confirm = 3,  ///< the answer to done: everything has arrived
  slots_used = 4,
};

/// Two ends of one connection, for all its runs.
struct Ends {
  transport::Transport& transport;
  transport::Endpoint& endpoint;
  Control& control;
  Buffer& shared;  ///< the peer writes it and reads it
  Buffer& own;     ///< this side's sources and destinations
  transport::RemoteKey peer_key;
  std::array<std::uint64_t, slots_used> seen{};  ///< signals that were taken notice of, of all runs
  /// What --validate is about to look at. For tests, that damage it.
  std::function<void(std::span<std::byte>)> before_check{};
  /// Called now and then with the messages done, for a line about it; or null.
  std::function<void(std::uint64_t done, Clock::time_point now)> progress{};
};

class Run {
 public:
  static constexpr std::uint64_t aside = ~std::uint64_t{0};  ///< tag of what is not measured

  Run(Ends& ends, const Plan& what) : plan(what), ends_(ends), scratch_(ends.own.is_host() ? 0 : what.size) {}

  const Plan& plan;
  std::uint64_t done = 0;       ///< messages, for the progress line
  std::uint64_t completed = 0;  ///< operations with another tag than `aside` that reap() took
  bool answered = false;        ///< the peer's done was confirmed
  bool placed = false;          ///< messages are too long to be sent: they are put, and signalled
  std::function<bool()> step;   ///< this side's part in what the peer measures, while this one waits; or null

  [[nodiscard]] transport::Endpoint& endpoint() { return ends_.endpoint; }
  [[nodiscard]] const Error& error() const { return error_; }
  bool fail_with(Error error);
  bool failed_by(Result<void>& result) { return fail_with(std::move(result).error()); }

  bool turn() {
    if (step && !take_step()) [[unlikely]]
      return false;
    if (ends_.transport.progress()) {
      idle_ = 0;
    } else if (++idle_ > turns_before_yield) {
      ::sched_yield();
      if (idle_ % 1024 == 0) return look();
    }
    return (++turns_ % 256) != 0 || look();
  }

  /// Whether the peer gave this signal `count` times beyond those that were taken.
  [[nodiscard]] bool has(Slot slot, std::uint64_t count = 1) const {
    return ends_.endpoint.signal(slot) >= ends_.seen[slot] + count;
  }
  /// Signals that came and were not taken.
  [[nodiscard]] std::uint64_t waiting(Slot slot) const {
    return ends_.endpoint.signal(slot) - ends_.seen[slot];
  }
  void take(Slot slot, std::uint64_t count = 1) { ends_.seen[slot] += count; }
  bool await(Slot slot, std::uint64_t count = 1) {
    while (!has(slot, count)) {
      if (!turn()) return false;
    }
    take(slot, count);
    return true;
  }

  /// One of put, get and atomic_add, made by `post() -> Result<void>`; again while the queue is full.
  template <class Post>
  bool post(Post&& post) {
    while (true) {
      Result<void> posted = post();
      if (posted) [[likely]]
        return true;
      if (posted.error().code != ErrorCode::resource_exhausted) return failed_by(posted);
      if (!turn() || !reap()) return false;
    }
  }
  bool signal(Slot slot) {
    return post([&] { return endpoint().put({}, {}, slot, aside); });
  }
  /// Takes finished operations and counts those that are measured.
  bool reap() {
    while (true) {
      const std::size_t count = ends_.endpoint.poll(finished_);
      for (std::size_t i = 0; i < count; ++i) {
        if (finished_[i].error) [[unlikely]]
          return fail_with(std::move(*finished_[i].error));
        completed += finished_[i].tag == aside ? 0 : 1;
      }
      if (count < finished_.size()) return true;
    }
  }

  [[nodiscard]] std::uint64_t place(std::uint64_t message) const {
    return plan.slots == 1 ? 0 : message % plan.slots * plan.stride();
  }
  [[nodiscard]] std::span<std::byte> own(std::uint64_t message) const {
    return ends_.own.at(place(message), plan.size);
  }
  [[nodiscard]] transport::RemoteSlice theirs(std::uint64_t message) const {
    return {&ends_.peer_key, place(message)};
  }
  // --validate
  bool fill(const Buffer& buffer, std::uint64_t at, std::uint64_t message);
  bool check(const Buffer& buffer, std::uint64_t at, std::uint64_t message);
  bool check_bytes(std::span<std::byte> bytes, std::uint64_t message);
  [[nodiscard]] const Buffer& own_buffer() const { return ends_.own; }
  [[nodiscard]] const Buffer& shared_buffer() const { return ends_.shared; }

  /// Tells the peer that nothing more comes, and waits until it has it all. Meanwhile answers the peer.
  bool conclude();
  /// Confirms the peer's done once it is there: the last part of every step().
  bool answer_done();
  /// For who only answers: until the peer is done and has its confirmation.
  bool serve();
  /// Until everything posted has left: who falls silent then holds nobody up.
  bool drain();

 private:
  static constexpr std::uint64_t turns_before_yield = 512;
  static constexpr auto longest_rest = std::chrono::milliseconds(100);
  bool look();
  bool rest();
  bool take_step() {
    if (stepping_) return true;  // it waits for room itself
    stepping_ = true;
    const bool well = step();
    stepping_ = false;
    return well;
  }

  Ends& ends_;
  Error error_;
  Bytes scratch_;  ///< through which memory of a card is filled and checked
  std::array<transport::Completion, 16> finished_{};
  std::uint64_t turns_ = 0, idle_ = 0;
  bool stepping_ = false;
};

inline std::int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

}  // namespace cenote::perf
