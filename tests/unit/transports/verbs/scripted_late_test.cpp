// The double itself: what arrives late.
#include <algorithm>

#include "tests/unit/transports/verbs/scripted_pair.h"

namespace cenote::transport::verbs::test {
namespace {

void write_word_held(Pair& pair) {
  pair.connect();
  pair.fabric.hold("a0", "b0");
  pair.a.set_word(0, 6);
  ibv_sge sge = pair.a.sge(0, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0)), 0);
}

TEST(ScriptedGhosts, AWriteLandsAfterItsQueuePairWasDestroyed) {
  Pair pair;
  write_word_held(pair);
  ASSERT_EQ(pair.a.api->destroy_qp(pair.a.qp), 0);
  pair.a.qp = nullptr;
  EXPECT_EQ(pair.b.word(0), 0u);
  pair.fabric.deliver("a0", "b0");
  EXPECT_EQ(pair.b.word(0), 6u);
}

TEST(ScriptedGhosts, AWriteLandsAfterItsProcessWasKilled) {
  Pair pair;
  write_word_held(pair);
  pair.a.process.kill();
  pair.fabric.deliver("a0", "b0");
  EXPECT_EQ(pair.b.word(0), 6u);
}

TEST(ScriptedGhosts, NothingLandsOnceTheTargetsEndIsDestroyed) {
  Pair pair;
  write_word_held(pair);
  ASSERT_EQ(pair.a.api->destroy_qp(pair.a.qp), 0);
  pair.a.qp = nullptr;
  ASSERT_EQ(pair.b.api->destroy_qp(pair.b.qp), 0);
  pair.b.qp = nullptr;
  pair.fabric.deliver("a0", "b0");
  EXPECT_EQ(pair.b.word(0), 0u);
}

TEST(ScriptedGhosts, NothingLandsOnATargetThatStartedAnew) {
  Pair pair;
  Wiring anew = pair.b_wiring();
  anew.rtr.rq_psn += 100;
  write_word_held(pair);
  ASSERT_EQ(pair.a.api->destroy_qp(pair.a.qp), 0);
  pair.a.qp = nullptr;
  ibv_qp_attr reset{};
  reset.qp_state = IBV_QPS_RESET;
  ASSERT_EQ(pair.b.api->modify_qp(pair.b.qp, &reset, IBV_QP_STATE), 0);
  ASSERT_EQ(bring_up(*pair.b.api, pair.b.qp, anew), 0);
  pair.fabric.deliver("a0", "b0");
  EXPECT_EQ(pair.b.word(0), 0u);
}

TEST(ScriptedGhosts, WhatIsDroppedInTheNetworkDoesNotLand) {
  Pair pair;
  write_word_held(pair);
  ASSERT_EQ(pair.a.api->destroy_qp(pair.a.qp), 0);
  pair.a.qp = nullptr;
  pair.fabric.drop("a0", "b0");
  pair.fabric.settle();
  pair.fabric.deliver("a0", "b0");
  EXPECT_EQ(pair.b.word(0), 0u);
}

TEST(ScriptedGhosts, OnALaggingFabricSomeWritesLandLate) {
  int landed = 0, lost = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Pair pair;
    pair.connect();
    pair.fabric.lagging(seed);
    pair.a.set_word(0, 6);
    ibv_sge sge = pair.a.sge(0, 8);
    ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0)), 0);
    ASSERT_EQ(pair.a.api->destroy_qp(pair.a.qp), 0);
    pair.a.qp = nullptr;
    EXPECT_EQ(pair.b.word(0), 0u);
    pair.fabric.settle();
    ++(pair.b.word(0) == 6 ? landed : lost);
  }
  EXPECT_GT(landed, 0);
  EXPECT_GT(lost, 0);
}

/// a reads a word of b and writes what it got back to b: whether the write carried the word.
bool write_carries_what_was_read(std::uint64_t seed, unsigned fence) {
  Pair pair;
  pair.connect();
  pair.fabric.lagging(seed);
  pair.b.set_word(0, 6);
  ibv_sge sge = pair.a.sge(0, 8);
  EXPECT_EQ(pair.a.post(request(IBV_WR_RDMA_READ, 1, &sge, pair.b, 0)), 0);
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, 2, &sge, pair.b, 64);
  wr.send_flags |= fence;
  EXPECT_EQ(pair.a.post(wr), 0);
  pair.fabric.settle();
  EXPECT_EQ(pair.a.poll().size(), 2u);
  return pair.b.word(64) == 6;
}

TEST(ScriptedFence, AWriteOvertakesTheAnswerOfAReadUnlessItIsFenced) {
  int carried = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_TRUE(write_carries_what_was_read(seed, IBV_SEND_FENCE)) << seed;
    carried += write_carries_what_was_read(seed, 0) ? 1 : 0;
  }
  EXPECT_LT(carried, 20);
}

/// Data into a relaxed region of b, then a flag into `flag_region`; whether a poller of the flag ever saw
/// stale data.
bool flag_overtakes(std::uint64_t seed, unsigned flag_rights) {
  Pair pair;
  pair.connect();
  pair.fabric.lagging(seed);
  pair.fabric.relaxed_writes_linger(true);
  const unsigned relaxed = kAllRights | IBV_ACCESS_RELAXED_ORDERING;
  ibv_mr* data = pair.b.api->reg_mr(pair.b.pd, pair.b.memory.data(), 4096, relaxed);
  ibv_mr* flag = pair.b.api->reg_mr(pair.b.pd, pair.b.memory.data() + 4096, 8, flag_rights);
  std::memset(pair.a.memory.data(), 1, 2048);
  ibv_sge sge = pair.a.sge(0, 1024), word = pair.a.sge(0, 8);
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0);
  wr.wr.rdma.rkey = data->rkey;
  EXPECT_EQ(pair.a.post(wr), 0);
  wr = request(IBV_WR_RDMA_WRITE, 2, &word, pair.b, 4096);
  wr.wr.rdma.rkey = flag->rkey;
  EXPECT_EQ(pair.a.post(wr), 0);
  while (pair.b.word(4096) == 0)
    if (pair.fabric.step() == 0 && pair.fabric.step(64) == 0) break;
  EXPECT_NE(pair.b.word(4096), 0u);
  const bool stale = std::count(pair.b.memory.begin(), pair.b.memory.begin() + 1024, std::byte{1}) != 1024;
  pair.fabric.settle();
  EXPECT_EQ(std::count(pair.b.memory.begin(), pair.b.memory.begin() + 1024, std::byte{1}), 1024);
  pair.b.api->dereg_mr(data);
  pair.b.api->dereg_mr(flag);
  return stale;
}

TEST(ScriptedRelaxedOrder, AFlagInARelaxedRegionOvertakesItsData) {
  int overtaken = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    overtaken += flag_overtakes(seed, kAllRights | IBV_ACCESS_RELAXED_ORDERING) ? 1 : 0;
  EXPECT_GT(overtaken, 0);
}

TEST(ScriptedRelaxedOrder, AFlagInAnOrderedRegionDoesNot) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) EXPECT_FALSE(flag_overtakes(seed, kAllRights)) << seed;
}

TEST(ScriptedRelaxedOrder, ACompletionComesAfterTheDataOfItsCard) {
  Pair pair;
  pair.connect();
  pair.fabric.lagging(4);
  pair.fabric.relaxed_writes_linger(true);
  ibv_mr* data =
      pair.b.api->reg_mr(pair.b.pd, pair.b.memory.data(), 4096, kAllRights | IBV_ACCESS_RELAXED_ORDERING);
  ASSERT_EQ(pair.b.receive(1, 0, 0), 0);
  std::memset(pair.a.memory.data(), 1, 1024);
  ibv_sge sge = pair.a.sge(0, 1024);
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE_WITH_IMM, 1, &sge, pair.b, 0);
  wr.wr.rdma.rkey = data->rkey;
  ASSERT_EQ(pair.a.post(wr), 0);
  EXPECT_EQ(pair.b.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::count(pair.b.memory.begin(), pair.b.memory.begin() + 1024, std::byte{1}), 1024);
  pair.b.api->dereg_mr(data);
}

}  // namespace
}  // namespace cenote::transport::verbs::test
