// A stream of checked puts and messages, for tests in which the way breaks in its midst.
#pragma once

#include <random>
#include <vector>

#include "tests/unit/transports/pair.h"

namespace cenote::transport::test {

/// Puts of all sizes from one side to the other, each checked when its signal counts, then wiped; messages in
/// between. What a late copy wrote into a wiped cell is found when the cells are looked at again.
class Stream {
 public:
  static constexpr std::size_t cell = 400'000, cells = 6;
  Stream(Endpoint& from, Endpoint& to, Transport& there, std::uint64_t seed)
      : from_(from), to_(to), memory_(region(there, cell * cells)), random_(seed), before_(to.signal(7)) {}

  void begin(std::uint64_t puts) { target_ += puts; }
  [[nodiscard]] bool done() const {
    return checked_ == target_ && completed_ == target_ && taken_ == messages_ && from_.drained();
  }
  void step() {
    Completion done[16];
    for (std::size_t i = from_.poll(done); i > 0; --i) {
      ASSERT_FALSE(done[i - 1].error) << done[i - 1].error->message();
      ++completed_;
      busy_[done[i - 1].tag % cells] = false;
    }
    if (posted_ < target_ && posted_ < checked_ + cells && !busy_[posted_ % cells]) post();
    while (arrived() > checked_ && !testing::Test::HasFatalFailure()) check();
    std::byte buffer[64];
    for (auto got = to_.receive(buffer); got && *got; got = to_.receive(buffer)) {
      std::uint64_t number = 0;
      std::memcpy(&number, buffer, sizeof number);
      ASSERT_EQ(number, taken_);
      ASSERT_GE(arrived(), sent_after_[number]) << "a message overtook a put before it";
      ++taken_;
    }
  }
  void expect_wiped() const {
    for (const std::byte byte : memory_->bytes()) {
      if (byte != std::byte{0}) FAIL() << "something was written late";
    }
  }

 private:
  [[nodiscard]] std::uint64_t arrived() const { return to_.signal(7) - before_; }
  /// Whose bytes stand there.
  [[nodiscard]] std::string what_is_at(std::span<const std::byte> bytes, std::size_t at,
                                       std::size_t size) const {
    std::size_t zeros = 0;
    while (at + zeros < size && bytes[at + zeros] == std::byte{0}) ++zeros;
    if (zeros > 8) return std::to_string(zeros) + " zeros: never written, or wiped";
    for (std::uint64_t put = checked_ % cells; put < posted_; put += cells) {
      const Bytes other = pattern(size, put);
      if (same(bytes.subspan(at, std::min<std::size_t>(16, size - at)),
               std::span(other).subspan(at, std::min<std::size_t>(16, size - at))))
        return "those of put " + std::to_string(put);
    }
    return "those of no put";
  }
  void post() {
    const std::size_t sizes[] = {8, 200, 9000, 60'000, 250'000, cell};
    Bytes& source = sources_[posted_ % cells];
    source = pattern(sizes[random_() % std::size(sizes)], posted_);
    size_of_[posted_ % cells] = source.size();
    ASSERT_TRUE(from_.put(source, {&memory_->key(), posted_ % cells * cell}, 7, posted_));
    busy_[posted_++ % cells] = true;
    if (random_() % 3 != 0) return;
    // Sent after `posted_` puts, so it must not come before their signals.
    if (!from_.send(std::as_bytes(std::span(&messages_, 1)))) return;
    sent_after_.push_back(posted_);
    ++messages_;
  }
  void check() {
    const auto bytes = memory_->bytes().subspan(checked_ % cells * cell, cell);
    const std::size_t size = size_of_[checked_ % cells];
    const Bytes wanted = pattern(size, checked_);
    const auto wrong = static_cast<std::size_t>(
        std::mismatch(wanted.begin(), wanted.end(), bytes.begin()).first - wanted.begin());
    if (wrong != size)
      FAIL() << "put " << checked_ << " of " << size << " bytes differs from byte " << wrong << ": "
             << what_is_at(bytes, wrong, size);
    std::memset(bytes.data(), 0, bytes.size());
    ++checked_;
  }

  Endpoint& from_;
  Endpoint& to_;
  std::unique_ptr<Region> memory_;
  std::mt19937_64 random_;
  std::uint64_t before_;  ///< signals of earlier streams
  Bytes sources_[cells];
  std::size_t size_of_[cells] = {};
  bool busy_[cells] = {};  ///< its put is not complete: the source must not change
  std::vector<std::uint64_t> sent_after_;
  std::uint64_t target_ = 0, posted_ = 0, completed_ = 0, checked_ = 0, messages_ = 0, taken_ = 0;
};

}  // namespace cenote::transport::test
