#include "tests/unit/transports/fault/traffic.h"

#include <array>
#include <random>

namespace cenote::transport::test {
namespace {

constexpr std::size_t cell = 1504;  ///< of the target's memory, for one put
constexpr std::uint32_t slots = 3;

/// What one side posts, and what it and its target know of it.
class Half {
 public:
  Half(Endpoint& from, Endpoint& to, Transport& there, std::uint64_t seed, std::uint32_t operations,
       std::string& wrong)
      : from_(from),
        to_(to),
        random_(seed),
        operations_(operations),
        memory_(region(there, cell * (operations + 2))),
        got_(operations),
        old_(operations),
        wrong_(wrong) {
    const Bytes fixed = pattern(cell, 99);
    std::memcpy(memory_->bytes().data() + cell * operations_, fixed.data(), fixed.size());
  }

  /// True when something was posted, told or has come.
  bool step() {
    bool any = false;
    while (posted() < operations_ && random_() % 5 != 0 && post()) any = true;
    any = complete() || any;
    any = arrive() || any;
    return any;
  }
  [[nodiscard]] bool all_came() const {
    return !failed_ && posted() == operations_ && completed_ == to_complete_ && messages_ == sent_.size() &&
           counted_ == signalled_;
  }
  [[nodiscard]] std::string state() const {
    return std::to_string(posted()) + " posted, " + std::to_string(completed_) + " of " +
           std::to_string(to_complete_) + " complete, " + std::to_string(counted_) + " of " +
           std::to_string(signalled_) + " signalled, " + std::to_string(messages_) + " of " +
           std::to_string(sent_.size()) + " messages" + (from_.failure() ? ", failed" : "");
  }
  /// All that was posted has ended, and the endpoint says why.
  [[nodiscard]] bool ended() const { return from_.failure() && completed_ == to_complete_; }
  void check_end(bool everything) {
    std::uint64_t sum = 0;
    std::memcpy(&sum, memory_->bytes().data() + cell * (operations_ + 1), sizeof sum);
    if (everything && sum != posted_sum_) broken("the sum of all atomics is wrong");
    if (sum < done_sum_ || sum > posted_sum_) broken("an atomic was done twice, or not at all");
    if (everything && (failed_ || from_.failure())) broken("an operation failed without a cause");
    const auto failure = from_.failure();
    if (failure && (failure->stage.empty() || failure->cause.empty() || failure->peer.empty()))
      broken("an error does not say whom, when or why: " + failure->message());
    if (everything) expect_cells(posted(), "at the end");
  }

 private:
  struct Put {
    std::uint64_t operation;
    std::uint32_t slot;
  };

  void broken(const std::string& what) {
    if (wrong_.empty()) wrong_ = from_.peer_name() + ": " + what;
  }
  [[nodiscard]] std::uint64_t posted() const { return kinds_.size(); }

  bool post() {
    const std::uint64_t number = posted();
    // The last one is a put with a signal: what nothing is signalled after may not have come.
    const std::uint64_t choice = number + 1 == operations_ ? 7 : random_();
    const RemoteKey& key = memory_->key();
    Result<void> done;
    switch (choice % 8) {
      case 0: {
        if (sources_.size() <= number) sources_.resize(number + 1);
        done = from_.send(pattern(number * 7 % 200, number));
        if (done) sent_.push_back(number);
        break;
      }
      case 1:
        got_[number].resize(1 + choice / 8 % cell);
        done = from_.get(got_[number], {&key, cell * operations_}, number);
        break;
      case 2:
        done = from_.atomic_add({&key, cell * (operations_ + 1)}, number + 1, &old_[number], number);
        if (done) posted_sum_ += number + 1;
        break;
      default: {
        const std::size_t size = choice % 8 == 3 ? 8 : choice / 8 % cell;
        const std::uint32_t slot =
            choice % 8 == 4 ? no_signal : static_cast<std::uint32_t>(choice / 64 % slots);
        if (sources_.size() <= number) sources_.resize(number + 1);
        sources_[number] = std::make_unique<Bytes>(pattern(size, number));
        done = from_.put(*sources_[number], {&key, cell * number}, slot, number);
        if (done && slot != no_signal) {
          by_slot_.at(slot).push_back(number);
          ++signalled_;
        }
      }
    }
    if (!done) return false;
    kinds_.push_back(static_cast<std::uint8_t>(choice % 8));
    told_.push_back(false);
    if (choice % 8 != 0) ++to_complete_;
    return true;
  }

  bool complete() {
    std::array<Completion, 8> some;
    const std::size_t count = from_.poll(some);
    for (const auto& one : std::span(some).first(count)) {
      if (one.tag >= posted() || kinds_[one.tag] == 0 || told_[one.tag])
        return broken("an operation was complete twice, or nobody's"), false;
      told_[one.tag] = true;
      ++completed_;
      if (one.error) {
        failed_ = true;
        if (one.error->peer.empty() || one.error->cause.empty() || one.error->stage.empty())
          broken("a completion does not say whom, when or why: " + one.error->message());
        continue;
      }
      if (kinds_[one.tag] == 1 &&
          !same(got_[one.tag], std::span<const std::byte>(pattern(cell, 99)).first(got_[one.tag].size())))
        broken("get " + std::to_string(one.tag) + " has other bytes");
      if (kinds_[one.tag] == 2) done_sum_ += one.tag + 1;
    }
    return count != 0;
  }

  /// Cells of the first `operations` hold what was put there.
  void expect_cells(std::uint64_t operations, const std::string& when) {
    for (; checked_ < operations; ++checked_) {
      if (kinds_[checked_] < 3) continue;
      const Bytes& source = *sources_[checked_];
      if (!same(memory_->bytes().subspan(cell * checked_, source.size()), source))
        broken("put " + std::to_string(checked_) + " has not arrived, or other bytes have, " + when);
    }
  }

  bool arrive() {
    bool any = false;
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      auto& arrived = arrived_.at(slot);
      const std::uint64_t now = to_.signal(slot);
      if (now > by_slot_.at(slot).size()) broken("signal " + std::to_string(slot) + " came too often");
      if (now < arrived) broken("signal " + std::to_string(slot) + " went back");
      for (; arrived < now && wrong_.empty(); any = true) {
        const std::uint64_t put = by_slot_.at(slot)[arrived++];
        ++counted_;
        expect_cells(put + 1, "though it, or a later one, was signalled");
      }
    }
    std::array<std::byte, 256> room;
    for (auto got = to_.receive(room); got && *got && wrong_.empty(); got = to_.receive(room)) {
      any = true;
      if (messages_ == sent_.size()) return broken("a message came that was not sent"), true;
      const std::uint64_t number = sent_[messages_++];
      if (!same(std::span(room).first(**got), pattern(number * 7 % 200, number)))
        broken("message " + std::to_string(number) + " has other bytes, or came out of turn");
      expect_cells(number, "though a later message came");
    }
    return any;
  }

  Endpoint& from_;
  Endpoint& to_;
  std::mt19937_64 random_;
  std::uint64_t operations_;
  std::unique_ptr<Region> memory_;  ///< a cell a put, one that gets read, one with the word of the atomics
  std::vector<Bytes> got_;
  std::vector<std::uint64_t> old_;
  std::vector<std::unique_ptr<Bytes>> sources_;
  std::vector<std::uint8_t> kinds_;  ///< of what was posted
  std::vector<bool> told_;
  std::vector<std::uint64_t> sent_;
  std::array<std::vector<std::uint64_t>, slots> by_slot_;
  std::array<std::uint64_t, slots> arrived_{};
  std::uint64_t to_complete_ = 0, completed_ = 0, signalled_ = 0, counted_ = 0, messages_ = 0, checked_ = 0;
  std::uint64_t posted_sum_ = 0, done_sum_ = 0;
  bool failed_ = false;
  std::string& wrong_;
};

std::string why(const Endpoint& left, const Endpoint& right) {
  const auto error = left.failure() ? left.failure() : right.failure();
  return error ? error->message() : "neither endpoint did";
}

}  // namespace

Outcome traffic(const Kind& inside, const FaultPlan& plan, std::uint32_t operations,
                Clock::duration connect_in) {
  Outcome outcome;
  FaultTally tallies[2];
  {
    std::unique_ptr<Transport> sides[2];
    for (std::uint32_t i = 0; i < 2; ++i) sides[i] = FaultMember(plan.of(i), &tallies[i]).wrap(make(inside));
    // Who waits for a peer that was killed before it dialed may do so until this deadline.
    const Deadline connected = plan.blow ? Deadline::in(connect_in) : soon();
    auto l = sides[0]->connect(sides[1]->address(), "member 1", 0, connected);
    auto r = sides[1]->connect(sides[0]->address(), "member 0", 0, connected);
    if (!l || !r) return {(l ? r : l).error().message(), false, {}};
    Half there(**l, **r, *sides[1], plan.seed * 2, operations, outcome.wrong);
    Half back(**r, **l, *sides[0], plan.seed * 2 + 1, operations, outcome.wrong);
    const bool freezes = plan.blow && plan.blow->fault == Fault::freeze;
    const Deadline deadline = plan.sabotage == Sabotage::none ? soon() : Deadline::in(100ms);
    constexpr int patience = 2000;  // steps in which nothing moves
    for (int idle = 0; outcome.wrong.empty() && (!freezes || idle < patience);) {
      bool moved = sides[0]->progress();
      moved = sides[1]->progress() || moved;
      moved = there.step() || moved;
      moved = back.step() || moved;
      idle = moved ? 0 : idle + 1;
      if (there.all_came() && back.all_came()) break;
      if (there.ended() && back.ended()) break;
      if (deadline.passed())
        outcome.wrong = "neither complete nor failed at the deadline; " + there.state() + "; " + back.state();
    }
    outcome.right = there.all_came() && back.all_came();
    there.check_end(outcome.right);
    back.check_end(outcome.right);
    const std::string cause = why(**l, **r);
    (*l)->close("the traffic is over");  // sources that are still in use go with the halves
    (*r)->close("the traffic is over");
    if (!plan.blow && !outcome.right && outcome.wrong.empty())
      outcome.wrong = "it failed without a blow: " + cause;
  }
  for (const auto& tally : tallies) outcome.did += tally;
  return outcome;
}

}  // namespace cenote::transport::test
