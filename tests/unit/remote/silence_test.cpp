// When silence counts.
#include "pool/remote/silence.h"

#include <gtest/gtest.h>

namespace cenote::pool::remote {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Clock::time_point begin{std::chrono::hours(1)};

/// Looks every `step` from `from` until `to`.
void watch(Silence& silence, Clock::time_point from, Clock::time_point to,
           Clock::duration step = milliseconds(100)) {
  for (auto now = from; now <= to; now += step) silence.look(now);
}

TEST(Silence, IsOverAfterItsLimitOfWatchedTime) {
  Silence silence(seconds(10));
  watch(silence, begin, begin + milliseconds(9900));
  EXPECT_FALSE(silence.over());
  silence.look(begin + seconds(10));
  EXPECT_TRUE(silence.over());
  EXPECT_EQ(silence.text(), "did not answer for 10.0 s");
}

TEST(Silence, AWordEndsIt) {
  Silence silence(seconds(10));
  watch(silence, begin, begin + seconds(9));
  silence.heard();
  watch(silence, begin + seconds(9), begin + seconds(18));
  EXPECT_FALSE(silence.over());
  EXPECT_EQ(silence.so_far(), seconds(9));
}

TEST(Silence, AWatcherThatWasAwayItselfBlamesNobody) {
  Silence silence(seconds(10));
  silence.look(begin);
  silence.look(begin + std::chrono::hours(1));
  EXPECT_LT(silence.so_far(), seconds(1));
}

TEST(Silence, ALookIsEnoughForWhoComesSeldom) {
  // Calls that lie far apart still find a peer that never speaks.
  Silence silence(seconds(10));
  for (int call = 0; call <= 16; ++call) silence.look(begin + call * std::chrono::minutes(1));
  EXPECT_TRUE(silence.over());
}

}  // namespace
}  // namespace cenote::pool::remote
