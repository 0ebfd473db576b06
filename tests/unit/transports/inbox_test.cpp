#include "transports/inbox.h"

#include <gtest/gtest.h>

namespace cenote::transport::test {
namespace {

Bytes message(std::size_t size, std::uint8_t fill) { return Bytes(size, std::byte{fill}); }

TEST(Inbox, GivesMessagesInOrderAndKeepsOneThatDoesNotFit) {
  Inbox inbox;
  inbox.add(message(3, 1)), inbox.add({}), inbox.add(message(2, 3));
  Bytes small(2), fits(3);
  EXPECT_FALSE(inbox.take(small));
  EXPECT_EQ(inbox.take(fits).value(), 3U);
  EXPECT_EQ(fits, message(3, 1));
  EXPECT_EQ(inbox.take(fits).value(), 0U);
  EXPECT_EQ(inbox.take(small).value(), 2U);
  EXPECT_EQ(small, message(2, 3));
  EXPECT_TRUE(inbox.empty());
}

TEST(Inbox, NeverGrowsBeyondTheWindowThoughItIsNeverEmpty) {
  Inbox inbox;
  Bytes out(1000);
  inbox.add(message(1000, 0));
  for (int i = 0; i < 10'000; ++i) {
    inbox.add(message(1000, 0));
    ASSERT_TRUE(inbox.take(out));
    ASSERT_LT(inbox.held(), 2 * message_window) << i;
  }
}

TEST(Inbox, HoldsThePeerToItsWindowAndGivesRoomBackInQuarters) {
  Inbox inbox;
  const std::size_t size = message_window / 8 - message_charge;
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(inbox.charge(size)) << i;
    inbox.add(message(size, 0));
  }
  EXPECT_FALSE(inbox.charge(0)) << "not even an empty one";
  Bytes out(size);
  ASSERT_TRUE(inbox.take(out));
  EXPECT_EQ(inbox.credit(), 0U);
  ASSERT_TRUE(inbox.take(out));
  EXPECT_EQ(inbox.credit(), message_window / 4);
  EXPECT_EQ(inbox.credit(), 0U) << "said once";
}

}  // namespace
}  // namespace cenote::transport::test
