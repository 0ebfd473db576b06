// The double itself: what goes wrong by itself on a card.
#include "tests/unit/transports/verbs/scripted_pair.h"

namespace cenote::transport::verbs::test {
namespace {

// --- Setting up ---

TEST(ScriptedQueuePair, StatesComeInOrderAndWithTheirMasks) {
  Pair pair;
  Wiring w = pair.a_wiring();
  const VerbsApi& api = *pair.a.api;
  EXPECT_EQ(api.modify_qp(pair.a.qp, &w.rtr, kRtrMask), EINVAL);
  EXPECT_EQ(api.modify_qp(pair.a.qp, &w.init, kInitMask & ~IBV_QP_ACCESS_FLAGS), EINVAL);
  EXPECT_EQ(api.modify_qp(pair.a.qp, &w.init, kInitMask | IBV_QP_AV), EINVAL);
  EXPECT_EQ(api.modify_qp(pair.a.qp, &w.init, kInitMask), 0);
  EXPECT_EQ(api.modify_qp(pair.a.qp, &w.rts, kRtsMask), EINVAL);
  for (const int bit : {IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, IBV_QP_RQ_PSN, IBV_QP_MAX_DEST_RD_ATOMIC,
                        IBV_QP_MIN_RNR_TIMER})
    EXPECT_EQ(api.modify_qp(pair.a.qp, &w.rtr, kRtrMask & ~bit), EINVAL) << bit;
  EXPECT_EQ(api.modify_qp(pair.a.qp, &w.rtr, kRtrMask), 0);
  for (const int bit :
       {IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_SQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC})
    EXPECT_EQ(api.modify_qp(pair.a.qp, &w.rts, kRtsMask & ~bit), EINVAL) << bit;
  ibv_sge sge = pair.a.sge(0, 8);
  EXPECT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0)), EINVAL);  // not yet
  EXPECT_EQ(api.modify_qp(pair.a.qp, &w.rts, kRtsMask), 0);
  EXPECT_EQ(pair.a.state(), IBV_QPS_RTS);
  ibv_qp_attr reset{};
  reset.qp_state = IBV_QPS_RESET;
  EXPECT_EQ(api.modify_qp(pair.a.qp, &reset, IBV_QP_STATE), 0);
  EXPECT_EQ(bring_up(api, pair.a.qp, w), 0);
}

TEST(ScriptedQueuePair, RefusesAttributesThatTheDeviceOrPortLacks) {
  const auto refused = [](auto bend) {
    Pair pair;
    Wiring w = pair.a_wiring();
    bend(w);
    return bring_up(*pair.a.api, pair.a.qp, w) == EINVAL;
  };
  EXPECT_FALSE(refused([](Wiring&) {}));
  EXPECT_TRUE(refused([](Wiring& w) { w.init.port_num = 2; }));
  EXPECT_TRUE(refused([](Wiring& w) { w.init.pkey_index = 1; }));
  EXPECT_TRUE(refused([](Wiring& w) { w.rtr.ah_attr.is_global = 0; }));  // RoCE has no LIDs
  EXPECT_TRUE(refused([](Wiring& w) { w.rtr.ah_attr.grh.sgid_index = 4; }));
  EXPECT_TRUE(refused([](Wiring& w) { w.rtr.ah_attr.port_num = 2; }));
  EXPECT_TRUE(refused([](Wiring& w) { w.rtr.max_dest_rd_atomic = 17; }));
  EXPECT_TRUE(refused([](Wiring& w) { w.rts.max_rd_atomic = 17; }));
  ScriptedFabric fabric;
  auto spec = roce_device("x", "10.0.0.1");
  spec.ports[0].active_mtu = IBV_MTU_512;
  fabric.add_device(spec);
  const End end(fabric.process("p", {"x"}));
  EXPECT_EQ(bring_up(*end.api, end.qp, wiring(1, gid_of_ipv4("10.0.0.2"), 3)), EINVAL);
}

TEST(ScriptedQueuePair, RefusesSizesBeyondTheDevice) {
  Pair pair;
  EXPECT_EQ(pair.a.make_qp({.send_slots = 8193}), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(pair.a.make_qp({.inline_data = 257}), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(pair.a.api->create_cq(pair.a.context, 65537, nullptr, nullptr, 0), nullptr);
}

TEST(ScriptedQueuePair, SilenceWhereTheTwoEndsDoNotFit) {
  const auto outcome = [](auto bend) {
    Pair pair;
    Wiring a = pair.a_wiring(), b = pair.b_wiring();
    bend(a, b);
    pair.connect(a, b);
    return write_word(pair);
  };
  EXPECT_EQ(outcome([](Wiring&, Wiring&) {}), IBV_WC_SUCCESS);
  EXPECT_EQ(outcome([](Wiring& a, Wiring&) { a.rts.sq_psn ^= 1; }), IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(outcome([](Wiring& a, Wiring&) { a.rtr.dest_qp_num ^= 0x100; }), IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(outcome([](Wiring&, Wiring& b) { b.rtr.dest_qp_num ^= 0x100; }), IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(outcome([](Wiring& a, Wiring&) { a.rtr.ah_attr.grh.dgid = gid_of_ipv4("10.0.0.9"); }),
            IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(outcome([](Wiring& a, Wiring&) { a.rtr.ah_attr.grh.sgid_index = 2; }),
            IBV_WC_RETRY_EXC_ERR);  // v1
}

TEST(ScriptedQueuePair, AnMtuThatDiffersShowsWithTheFirstLongMessage) {
  Pair pair;
  Wiring a = pair.a_wiring();
  a.rtr.path_mtu = IBV_MTU_2048;
  pair.connect(a, pair.b_wiring());
  EXPECT_EQ(write_word(pair), IBV_WC_SUCCESS);
  ibv_sge sge = pair.a.sge(0, 1025);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0)), 0);
  EXPECT_EQ(pair.a.next().status, IBV_WC_REM_INV_REQ_ERR);
}

TEST(ScriptedQueuePair, PartitionsMustMatchAndOneBeFullMember) {
  const auto outcome = [](std::uint16_t a_key, std::uint16_t b_key) {
    ScriptedFabric fabric;
    auto a_spec = roce_device("a0", "10.0.0.1"), b_spec = roce_device("b0", "10.0.0.2");
    a_spec.ports[0].pkeys = {a_key};
    b_spec.ports[0].pkeys = {b_key};
    fabric.add_device(a_spec);
    fabric.add_device(b_spec);
    const End a(fabric.process("a", {"a0"})), b(fabric.process("b", {"b0"}));
    EXPECT_EQ(bring_up(*a.api, a.qp, wiring(b.qp->qp_num, gid_of_ipv4("10.0.0.2"), 3)), 0);
    EXPECT_EQ(bring_up(*b.api, b.qp, wiring(a.qp->qp_num, gid_of_ipv4("10.0.0.1"), 3)), 0);
    ibv_sge sge = a.sge(0, 8);
    EXPECT_EQ(a.post(request(IBV_WR_RDMA_WRITE, 1, &sge, b, 0)), 0);
    return a.next().status;
  };
  EXPECT_EQ(outcome(0x8005, 0x0005), IBV_WC_SUCCESS);
  EXPECT_EQ(outcome(0x0005, 0x0005), IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(outcome(0x8005, 0x8006), IBV_WC_RETRY_EXC_ERR);
}

TEST(ScriptedQueuePair, AGidThatDoesNotRouteIsSilenceAndAnotherWorks) {
  Pair pair;
  pair.fabric.break_gid("b0", 1, 3);
  pair.connect();
  EXPECT_EQ(write_word(pair), IBV_WC_RETRY_EXC_ERR);
}

TEST(ScriptedQueuePair, AChangedGidIsAnEventAndSilence) {
  Pair pair;
  pair.connect();
  pair.fabric.set_gid("b0", 1, 3, {gid_of_ipv4("10.0.0.77")});
  EXPECT_EQ(events(pair.b), std::vector<int>{IBV_EVENT_GID_CHANGE});
  EXPECT_EQ(write_word(pair), IBV_WC_RETRY_EXC_ERR);
}

// --- Protection ---

TEST(ScriptedProtection, AWrongLocalKeyEndsTheOwnQueuePairOnly) {
  Pair pair;
  pair.connect();
  ibv_sge sge = pair.a.sge(0, 8);
  sge.lkey = pair.a.mr->rkey;
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 5, &sge, pair.b, 0)), 0);
  const ibv_wc wc = pair.a.next();
  EXPECT_EQ(wc.status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(wc.wr_id, 5u);
  EXPECT_NE(wc.opcode, IBV_WC_RDMA_WRITE);  // of an error only id, status, number and vendor's word are valid
  EXPECT_EQ(pair.a.state(), IBV_QPS_ERR);
  EXPECT_EQ(pair.b.state(), IBV_QPS_RTS);
}

TEST(ScriptedProtection, BoundsOfTheLocalRegionHold) {
  Pair pair;
  pair.connect();
  ibv_sge sge = pair.a.sge(pair.a.memory.size() - 7, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 5, &sge, pair.b, 0)), 0);
  EXPECT_EQ(pair.a.next().status, IBV_WC_LOC_PROT_ERR);
}

ibv_wc_status remote_outcome(const std::function<void(Pair&, ibv_send_wr&)>& bend, Pair& pair,
                             ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE) {
  pair.connect();
  ibv_sge sge = pair.a.sge(0, 8);
  ibv_send_wr wr = request(opcode, 1, &sge, pair.b, 0);
  bend(pair, wr);
  EXPECT_EQ(pair.a.post(wr), 0);
  return pair.a.next().status;
}

TEST(ScriptedProtection, RemoteAccessErrorsEndBothQueuePairs) {
  Pair pair;
  EXPECT_EQ(remote_outcome([](Pair&, ibv_send_wr& wr) { wr.wr.rdma.rkey ^= 1; }, pair),
            IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(pair.a.state(), IBV_QPS_ERR);
  EXPECT_EQ(pair.b.state(), IBV_QPS_ERR);
  EXPECT_EQ(events(pair.b), (std::vector<int>{IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_LAST_WQE_REACHED}));
}

TEST(ScriptedProtection, RemoteBoundsKeysDomainsAndRightsHold) {
  {
    Pair pair;
    EXPECT_EQ(remote_outcome([](Pair& p, ibv_send_wr& wr) { wr.wr.rdma.remote_addr = p.b.at(0) - 1; }, pair),
              IBV_WC_REM_ACCESS_ERR);
  }
  {
    Pair pair;
    EXPECT_EQ(
        remote_outcome(
            [](Pair& p, ibv_send_wr& wr) { wr.wr.rdma.remote_addr = p.b.at(p.b.memory.size() - 7); }, pair),
        IBV_WC_REM_ACCESS_ERR);
  }
  {
    Pair pair;
    EXPECT_EQ(remote_outcome([](Pair& p, ibv_send_wr& wr) { wr.wr.rdma.rkey = p.b.mr->lkey; }, pair),
              IBV_WC_REM_ACCESS_ERR);
  }
  {
    Pair pair;
    ibv_mr* reads_only = pair.b.api->reg_mr(pair.b.pd, pair.b.memory.data(), 64, IBV_ACCESS_REMOTE_READ);
    EXPECT_EQ(remote_outcome([&](Pair&, ibv_send_wr& wr) { wr.wr.rdma.rkey = reads_only->rkey; }, pair),
              IBV_WC_REM_ACCESS_ERR);
    pair.b.api->dereg_mr(reads_only);
  }
  {
    Pair pair;
    ibv_pd* other = pair.b.api->alloc_pd(pair.b.context);
    ibv_mr* elsewhere = pair.b.api->reg_mr(other, pair.b.memory.data(), 64, kAllRights);
    EXPECT_EQ(remote_outcome([&](Pair&, ibv_send_wr& wr) { wr.wr.rdma.rkey = elsewhere->rkey; }, pair),
              IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(pair.b.api->dealloc_pd(other), EBUSY);
    pair.b.api->dereg_mr(elsewhere);
    EXPECT_EQ(pair.b.api->dealloc_pd(other), 0);
  }
}

TEST(ScriptedProtection, AKeyOfAGoneRegionNamesNothingThoughItsPlaceIsTakenAgain) {
  Pair pair;
  ibv_mr* gone = pair.b.api->reg_mr(pair.b.pd, pair.b.memory.data(), 64, kAllRights);
  const std::uint32_t stale = gone->rkey;
  for (int i = 0; i < 200; ++i) {
    pair.b.api->dereg_mr(gone);
    gone = pair.b.api->reg_mr(pair.b.pd, pair.b.memory.data(), 64, kAllRights);
    ASSERT_NE(gone->rkey, stale);
  }
  EXPECT_EQ(remote_outcome([&](Pair&, ibv_send_wr& wr) { wr.wr.rdma.rkey = stale; }, pair),
            IBV_WC_REM_ACCESS_ERR);
  pair.b.api->dereg_mr(gone);
}

TEST(ScriptedProtection, WhatTheQueuePairDoesNotAllowIsAnInvalidRequest) {
  Pair pair;
  Wiring b = pair.b_wiring();
  b.init.qp_access_flags = IBV_ACCESS_REMOTE_READ;
  pair.connect(pair.a_wiring(), b);
  EXPECT_EQ(write_word(pair), IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(events(pair.b), (std::vector<int>{IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_LAST_WQE_REACHED}));
}

TEST(ScriptedProtection, AtomicsMustBeAlignedAndEightBytes) {
  {
    Pair pair;
    EXPECT_EQ(remote_outcome([](Pair& p, ibv_send_wr& wr) { wr.wr.atomic.remote_addr = p.b.at(4); }, pair,
                             IBV_WR_ATOMIC_FETCH_AND_ADD),
              IBV_WC_REM_INV_REQ_ERR);
  }
  {
    Pair pair;
    EXPECT_EQ(remote_outcome([](Pair&, ibv_send_wr& wr) { wr.sg_list->length = 4; }, pair,
                             IBV_WR_ATOMIC_FETCH_AND_ADD),
              IBV_WC_LOC_LEN_ERR);
  }
}

TEST(ScriptedProtection, ADeviceWithoutAtomicsRefusesThem) {
  ScriptedFabric fabric;
  auto spec = roce_device("x", "10.0.0.1");
  spec.atomics = IBV_ATOMIC_NONE;
  fabric.add_device(spec);
  const End end(fabric.process("p", {"x"}));
  EXPECT_EQ(bring_up(*end.api, end.qp, wiring(end.qp->qp_num, gid_of_ipv4("10.0.0.1"), 3)), EINVAL);
}

TEST(ScriptedProtection, MoreReadsThanThePeerServesIsAnInvalidRequest) {
  Pair pair;
  Wiring b = pair.b_wiring();
  b.rtr.max_dest_rd_atomic = 3;
  pair.connect(pair.a_wiring(), b);
  ibv_sge sge = pair.a.sge(0, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_READ, 1, &sge, pair.b, 0)), 0);
  EXPECT_EQ(pair.a.next().status, IBV_WC_REM_INV_REQ_ERR);
}

// --- Errors and their train ---

TEST(ScriptedErrors, WhatFollowsAnErrorIsFlushedSignaledOrNot) {
  Pair pair;
  pair.connect();
  pair.fabric.lagging(1);
  ibv_sge sge = pair.a.sge(0, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0)), 0);
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, 2, &sge, pair.b, 0);
  wr.wr.rdma.rkey ^= 1;
  ASSERT_EQ(pair.a.post(wr), 0);
  wr.wr_id = 3;
  wr.send_flags = 0;
  ASSERT_EQ(pair.a.post(wr), 0);
  EXPECT_EQ(statuses(pair.a), (Statuses{IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR}));
  ASSERT_EQ(pair.a.post(wr), 0);  // into the error state: accepted, flushed
  EXPECT_EQ(statuses(pair.a), Statuses{IBV_WC_WR_FLUSH_ERR});
}

TEST(ScriptedErrors, MovingToErrorFlushes) {
  Pair pair;
  pair.connect();
  pair.fabric.hold("a0", "b0");
  ibv_sge sge = pair.a.sge(0, 8);
  for (std::uint64_t i = 0; i < 2; ++i)
    ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, i, &sge, pair.b, 0)), 0);
  EXPECT_EQ(statuses(pair.a), Statuses{});
  ibv_qp_attr error{};
  error.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(pair.a.api->modify_qp(pair.a.qp, &error, IBV_QP_STATE), 0);
  EXPECT_EQ(statuses(pair.a), (Statuses{IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR}));
}

TEST(ScriptedErrors, WithoutAReceiveASendWaitsForEverWhereRnrRetryIsSeven) {
  Pair pair;
  pair.connect();
  ibv_sge sge = pair.a.sge(0, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_SEND, 1, &sge, pair.b, 0)), 0);
  EXPECT_EQ(statuses(pair.a), Statuses{});
  ASSERT_EQ(pair.b.receive(1, 0, 64), 0);
  EXPECT_EQ(statuses(pair.a), Statuses{IBV_WC_SUCCESS});
  EXPECT_EQ(statuses(pair.b), Statuses{IBV_WC_SUCCESS});
}

TEST(ScriptedErrors, WithoutAReceiveASendFailsAfterItsRnrRetries) {
  Pair pair;
  Wiring a = pair.a_wiring();
  a.rts.rnr_retry = 2;
  pair.connect(a, pair.b_wiring());
  ibv_sge sge = pair.a.sge(0, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_SEND, 1, &sge, pair.b, 0)), 0);
  EXPECT_TRUE(pair.a.poll().empty());
  EXPECT_EQ(pair.a.next().status, IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_EQ(pair.b.state(), IBV_QPS_RTS);
}

TEST(ScriptedErrors, AReceiveTooShortFailsBothSides) {
  Pair pair;
  pair.connect();
  ASSERT_EQ(pair.b.receive(4, 0, 7), 0);
  ibv_sge sge = pair.a.sge(0, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_SEND, 1, &sge, pair.b, 0)), 0);
  EXPECT_EQ(pair.a.next().status, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(pair.b.next().status, IBV_WC_LOC_LEN_ERR);
}

TEST(ScriptedErrors, TheSharedReceiveQueueIsBounded) {
  Pair pair({.receives = 2});
  EXPECT_EQ(pair.b.receive(1, 0, 8), 0);
  EXPECT_EQ(pair.b.receive(2, 0, 8), 0);
  EXPECT_EQ(pair.b.receive(3, 0, 8), ENOMEM);
}

TEST(ScriptedErrors, AnOverrunCompletionQueueIsAnEventAndTheEndOfItsQueuePairs) {
  Pair pair({.completions = 2});
  pair.connect();
  ibv_sge sge = pair.a.sge(0, 8);
  for (std::uint64_t i = 0; i < 3; ++i)
    ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, i, &sge, pair.b, 0)), 0);
  const auto seen = events(pair.a);
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen[0], IBV_EVENT_CQ_ERR);
  EXPECT_EQ(pair.a.state(), IBV_QPS_ERR);
}

TEST(ScriptedErrors, CompletionsOfADestroyedQueuePairGoOrStayAsTheDeviceHasIt) {
  for (const bool keeps : {false, true}) {
    ScriptedFabric fabric;
    auto spec = roce_device("x", "10.0.0.1");
    spec.keeps_completions_of_destroyed_qps = keeps;
    fabric.add_device(spec);
    End end(fabric.process("p", {"x"}));
    ASSERT_EQ(bring_up(*end.api, end.qp, wiring(end.qp->qp_num, gid_of_ipv4("10.0.0.1"), 3)), 0);
    ibv_sge sge = end.sge(0, 8);
    ASSERT_EQ(end.post(request(IBV_WR_RDMA_WRITE, 1, &sge, end, 64)), 0);
    ASSERT_EQ(end.api->destroy_qp(end.qp), 0);
    end.qp = nullptr;
    EXPECT_EQ(end.poll().size(), keeps ? 1u : 0u);
  }
}

// --- Misuse ---

TEST(ScriptedMisuse, UseAfterDestroyIsWrittenDown) {
  Pair pair;
  ibv_qp* qp = pair.a.make_qp();
  EXPECT_EQ(pair.a.api->destroy_qp(qp), 0);
  EXPECT_EQ(pair.a.api->destroy_qp(qp), EINVAL);
  ASSERT_EQ(pair.fabric.violations().size(), 1u);
  EXPECT_NE(pair.fabric.violations()[0].find("destroy_qp on an object that was destroyed"),
            std::string::npos);
}

TEST(ScriptedMisuse, EventsMustBeAcknowledgedBeforeTheirObjectGoes) {
  Pair pair;
  pair.connect();
  ASSERT_EQ(pair.a.api->req_notify_cq(pair.a.cq, 0), 0);
  EXPECT_EQ(write_word(pair), IBV_WC_SUCCESS);
  ibv_cq* cq = nullptr;
  void* user = nullptr;
  ASSERT_EQ(pair.a.api->get_cq_event(pair.a.channel, &cq, &user), 0);
  EXPECT_EQ(pair.a.api->destroy_qp(pair.a.qp), 0);
  pair.a.qp = nullptr;
  EXPECT_EQ(pair.a.api->destroy_cq(pair.a.cq), EBUSY);
  EXPECT_EQ(pair.fabric.violations().size(), 1u);
  pair.a.api->ack_cq_events(cq, 1);
  pair.a.api->ack_cq_events(cq, 1);
  EXPECT_EQ(pair.fabric.violations().size(), 2u);
}

TEST(ScriptedMisuse, ObjectsInUseAreBusyAndAClosedDeviceTakesTheRestWithIt) {
  ScriptedFabric fabric;
  fabric.add_device(roce_device("x", "10.0.0.1"));
  const auto process = fabric.process("p", {"x"});
  {
    const End end(process);
    EXPECT_EQ(end.api->destroy_cq(end.cq), EBUSY);
    EXPECT_EQ(end.api->destroy_srq(end.srq), EBUSY);
    EXPECT_EQ(end.api->dealloc_pd(end.pd), EBUSY);
    EXPECT_EQ(end.api->destroy_comp_channel(end.channel), EBUSY);
    EXPECT_EQ(end.api->close_device(end.context), 0);
    EXPECT_EQ(fabric.alive(), Alive{});
    EXPECT_EQ(fabric.violations().size(), 1u);
  }
}

}  // namespace
}  // namespace cenote::transport::verbs::test
