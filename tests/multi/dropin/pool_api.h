// A pool with four GPUs, and programs in C that use it.
#pragma once

#include "tests/multi/dropin/pool_driver.h"

namespace cenote::pool::testing {

class PoolApi : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { cluster = Cluster::start().release(); }
  static void TearDownTestSuite() { delete std::exchange(cluster, nullptr); }
  void SetUp() override { ASSERT_NE(cluster, nullptr); }
  void TearDown() override {
    EXPECT_TRUE(eventually([] { return cluster->idle(); })) << "something of this test is still leased";
  }
  static std::string config() { return cluster->processes().config_file(); }
  static std::string connect(const std::string& more = {}) { return "connect 0 " + config() + " " + more; }
  static inline Cluster* cluster = nullptr;
};

}  // namespace cenote::pool::testing
