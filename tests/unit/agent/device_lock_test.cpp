// One agent a GPU.
#include "pool/agent/device_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace cenote::pool::agent {
namespace {

std::string unique(const std::string& name) { return name + "-" + std::to_string(::getpid()); }

TEST(DeviceLocks, ASecondAgentIsRefusedAndToldWhichDevice) {
  const auto first = DeviceLocks::take({unique("x"), unique("y")});
  ASSERT_TRUE(first);
  const auto second = DeviceLocks::take({unique("z"), unique("y")});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::already_exists);
  EXPECT_THAT(second.error().message(), ::testing::HasSubstr(unique("y")));
}

TEST(DeviceLocks, AreFreeAgainWhenTheirHolderIsGone) {
  { ASSERT_TRUE(DeviceLocks::take({unique("x")})); }
  EXPECT_TRUE(DeviceLocks::take({unique("x")}));
}

TEST(DeviceLocks, ARefusedTakeKeepsNothing) {
  const auto held = DeviceLocks::take({unique("y")});
  ASSERT_TRUE(held);
  ASSERT_FALSE(DeviceLocks::take({unique("x"), unique("y")}));
  EXPECT_TRUE(DeviceLocks::take({unique("x")}));
}

}  // namespace
}  // namespace cenote::pool::agent
