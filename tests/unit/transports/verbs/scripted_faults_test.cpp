// The double itself: what a test may make go wrong.
#include <thread>

#include "tests/unit/transports/verbs/scripted_pair.h"

namespace cenote::transport::verbs::test {
namespace {

// --- Faults that a test asks for ---

TEST(ScriptedFaults, EveryCallThatReturnsSomethingCanBeRefused) {
  ScriptedFabric fabric;
  fabric.add_device(roce_device("x", "10.0.0.1"));
  auto process = fabric.process("p", {"x"});
  const auto api = process.api();
  End end(process);
  const auto errno_of = [](const void* made) { return made == nullptr ? errno : 0; };
  ibv_device* device = end.context->device;
  ibv_send_wr send{};
  ibv_recv_wr receive{};
  ibv_send_wr* bad_send = nullptr;
  ibv_recv_wr* bad_receive = nullptr;
  ibv_qp_attr attributes{};
  ibv_qp_init_attr init{};
  ibv_srq_init_attr srq{};
  ibv_device_attr device_attributes{};
  ibv_port_attr port{};
  ibv_gid_entry gid{};
  ibv_async_event event{};
  ibv_wc wc{};
  ibv_cq* cq = nullptr;
  void* user = nullptr;
  __be16 pkey = 0;
  const std::vector<std::pair<Call, std::function<int()>>> calls = {
      {Call::get_device_list, [&] { return errno_of(api->get_device_list(nullptr)); }},
      {Call::get_device_name, [&] { return errno_of(api->get_device_name(device)); }},
      {Call::open_device, [&] { return errno_of(api->open_device(device)); }},
      {Call::close_device, [&] { return api->close_device(end.context); }},
      {Call::query_device, [&] { return api->query_device(end.context, &device_attributes); }},
      {Call::query_port, [&] { return api->query_port(end.context, 1, &port); }},
      {Call::query_gid_table, [&] { return static_cast<int>(-api->query_gid_table(end.context, &gid, 1)); }},
      {Call::query_pkey, [&] { return api->query_pkey(end.context, 1, 0, &pkey) == -1 ? errno : 0; }},
      {Call::get_async_event, [&] { return api->get_async_event(end.context, &event) == -1 ? errno : 0; }},
      {Call::alloc_pd, [&] { return errno_of(api->alloc_pd(end.context)); }},
      {Call::dealloc_pd, [&] { return api->dealloc_pd(end.pd); }},
      {Call::reg_mr, [&] { return errno_of(api->reg_mr(end.pd, end.memory.data(), 8, 0)); }},
      {Call::reg_dmabuf_mr, [&] { return errno_of(api->reg_dmabuf_mr(end.pd, 0, 8, 0, 3, 0)); }},
      {Call::dereg_mr, [&] { return api->dereg_mr(end.mr); }},
      {Call::create_comp_channel, [&] { return errno_of(api->create_comp_channel(end.context)); }},
      {Call::destroy_comp_channel, [&] { return api->destroy_comp_channel(end.channel); }},
      {Call::create_cq, [&] { return errno_of(api->create_cq(end.context, 1, nullptr, nullptr, 0)); }},
      {Call::destroy_cq, [&] { return api->destroy_cq(end.cq); }},
      {Call::poll_cq, [&] { return -api->poll_cq(end.cq, 1, &wc); }},
      {Call::req_notify_cq, [&] { return api->req_notify_cq(end.cq, 0); }},
      {Call::get_cq_event, [&] { return api->get_cq_event(end.channel, &cq, &user) == -1 ? errno : 0; }},
      {Call::create_srq, [&] { return errno_of(api->create_srq(end.pd, &srq)); }},
      {Call::destroy_srq, [&] { return api->destroy_srq(end.srq); }},
      {Call::post_srq_recv, [&] { return api->post_srq_recv(end.srq, &receive, &bad_receive); }},
      {Call::create_qp, [&] { return errno_of(api->create_qp(end.pd, &init)); }},
      {Call::modify_qp, [&] { return api->modify_qp(end.qp, &attributes, 0); }},
      {Call::destroy_qp, [&] { return api->destroy_qp(end.qp); }},
      {Call::post_send,
       [&] {
         EXPECT_EQ(bring_up(*api, end.qp, wiring(end.qp->qp_num, gid_of_ipv4("10.0.0.1"), 3)), 0);
         return api->post_send(end.qp, &send, &bad_send);
       }},
  };
  EXPECT_EQ(calls.size(), static_cast<std::size_t>(kCalls) - 3);  // three return nothing
  for (const auto& [call, run] : calls) {
    process.refuse(name_of(call), EXDEV);
    EXPECT_EQ(run(), EXDEV) << name_of(call);
  }
  EXPECT_EQ(bad_send, &send);
  EXPECT_EQ(bad_receive, &receive);
  EXPECT_THROW(process.refuse(Call::ack_cq_events, EXDEV), std::logic_error);
  EXPECT_THROW(process.refuse("no_such_call", EXDEV), std::logic_error);
}

TEST(ScriptedFaults, TheNthCallIsRefusedAsOftenAsAsked) {
  Pair pair;
  pair.a.process.refuse(Call::reg_mr, ENOMEM, 2, 2);
  std::vector<ibv_mr*> made;
  made.reserve(4);
  for (int i = 0; i < 4; ++i) made.push_back(pair.a.api->reg_mr(pair.a.pd, pair.a.memory.data(), 8, 0));
  EXPECT_NE(made[0], nullptr);
  EXPECT_EQ(made[1], nullptr);
  EXPECT_EQ(made[2], nullptr);
  EXPECT_NE(made[3], nullptr);
  pair.a.api->dereg_mr(made[0]);
  pair.a.api->dereg_mr(made[3]);
}

TEST(ScriptedFaults, TheMiddleOfAListCanBeRefused) {
  Pair pair;
  pair.connect();
  pair.a.process.refuse(Call::post_send, ENOMEM, 2);
  ibv_sge sge = pair.a.sge(0, 8);
  std::array<ibv_send_wr, 2> list = {request(IBV_WR_RDMA_WRITE, 0, &sge, pair.b, 0),
                                     request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0)};
  list[0].next = &list[1];
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(pair.a.api->post_send(pair.a.qp, list.data(), &bad), ENOMEM);
  EXPECT_EQ(bad, &list[1]);
  EXPECT_EQ(statuses(pair.a), Statuses{IBV_WC_SUCCESS});
}

TEST(ScriptedFaults, AHookRunsBeforeTheNthCallAndMayChangeTheFabric) {
  Pair pair;
  pair.connect();
  pair.a.process.before(
      Call::post_send, [&] { pair.fabric.link_down("a0"); }, 2);
  EXPECT_EQ(write_word(pair), IBV_WC_SUCCESS);
  EXPECT_EQ(write_word(pair), IBV_WC_LOC_QP_OP_ERR);
}

TEST(ScriptedFaults, TheOwnLinkDownEndsRequestsInTheDevicesManner) {
  for (const ibv_wc_status manner : {IBV_WC_LOC_QP_OP_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_RETRY_EXC_ERR}) {
    ScriptedFabric fabric;
    auto spec = roce_device("x", "10.0.0.1");
    spec.own_port_down = manner;
    fabric.add_device(spec);
    fabric.add_device(roce_device("y", "10.0.0.2"));
    const End a(fabric.process("a", {"x"})), b(fabric.process("b", {"y"}));
    ASSERT_EQ(bring_up(*a.api, a.qp, wiring(b.qp->qp_num, gid_of_ipv4("10.0.0.2"), 3)), 0);
    ASSERT_EQ(bring_up(*b.api, b.qp, wiring(a.qp->qp_num, gid_of_ipv4("10.0.0.1"), 3)), 0);
    fabric.link_down("x");
    ibv_port_attr port{};
    ASSERT_EQ(a.api->query_port(a.context, 1, &port), 0);
    EXPECT_EQ(port.state, IBV_PORT_DOWN);
    EXPECT_EQ(next_event(a), IBV_EVENT_PORT_ERR);
    ibv_sge sge = a.sge(0, 8);
    for (std::uint64_t i = 0; i < 2; ++i) ASSERT_EQ(a.post(request(IBV_WR_RDMA_WRITE, i, &sge, b, 0)), 0);
    EXPECT_EQ(statuses(a), (Statuses{manner, IBV_WC_WR_FLUSH_ERR}));
    fabric.link_up("x");
    EXPECT_EQ(next_event(a), IBV_EVENT_QP_LAST_WQE_REACHED);
    EXPECT_EQ(next_event(a), IBV_EVENT_PORT_ACTIVE);
  }
}

TEST(ScriptedFaults, ThePeersLinkDownIsSilenceThenRetryExceeded) {
  Pair pair;
  pair.connect();
  pair.fabric.link_down("b0");
  EXPECT_EQ(next_event(pair.b), IBV_EVENT_PORT_ERR);
  ibv_sge sge = pair.a.sge(0, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0)), 0);
  EXPECT_TRUE(pair.a.poll().empty());
  EXPECT_EQ(pair.a.next().status, IBV_WC_RETRY_EXC_ERR);
}

TEST(ScriptedFaults, ALinkThatComesBackBeforeTheLastTryLosesNothing) {
  Pair pair;
  pair.connect();
  pair.a.set_word(0, 3);
  pair.fabric.link_down("b0");
  ibv_sge sge = pair.a.sge(0, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0)), 0);
  pair.fabric.step(3);
  pair.fabric.link_up("b0");
  EXPECT_EQ(pair.a.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(pair.b.word(0), 3u);
}

TEST(ScriptedFaults, TriesAreCountedInSteps) {
  Pair pair;
  pair.connect();
  pair.fabric.steps_per_try(5);
  pair.fabric.drop("a0", "b0");
  ibv_sge sge = pair.a.sge(0, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0)), 0);  // the first step
  pair.fabric.step(18);  // retry_cnt 3: four tries of five
  EXPECT_EQ(pair.a.state(), IBV_QPS_RTS);
  pair.fabric.step(1);
  EXPECT_EQ(pair.a.state(), IBV_QPS_ERR);
}

TEST(ScriptedFaults, WithoutATimeOutSilenceLastsForEver) {
  Pair pair;
  Wiring a = pair.a_wiring();
  a.rts.timeout = 0;
  pair.connect(a, pair.b_wiring());
  pair.fabric.drop("a0", "b0");
  ibv_sge sge = pair.a.sge(0, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0)), 0);
  pair.fabric.step(1000);
  EXPECT_EQ(pair.a.state(), IBV_QPS_RTS);
}

TEST(ScriptedFaults, ALostAcknowledgementLeavesADoneAtomicUnknown) {
  Pair pair;
  pair.connect();
  pair.fabric.drop("b0", "a0");
  ibv_sge sge = pair.a.sge(0, 8);
  ibv_send_wr add = request(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, &sge, pair.b, 0);
  add.wr.atomic.compare_add = 1;
  ASSERT_EQ(pair.a.post(add), 0);
  EXPECT_EQ(pair.a.next().status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(pair.b.word(0), 1u);  // once: retries do not add again
}

TEST(ScriptedFaults, HeldPacketsWaitAndAreDelivered) {
  Pair pair;
  pair.connect();
  pair.fabric.hold("a0", "b0");
  pair.a.set_word(0, 8);
  ibv_sge sge = pair.a.sge(0, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0)), 0);
  EXPECT_EQ(statuses(pair.a), Statuses{});
  EXPECT_EQ(pair.b.word(0), 0u);
  pair.fabric.deliver("a0", "b0");
  EXPECT_EQ(statuses(pair.a), Statuses{IBV_WC_SUCCESS});
  EXPECT_EQ(pair.b.word(0), 8u);
}

TEST(ScriptedFaults, ACompletionCanBeMadeToFail) {
  Pair pair;
  pair.connect();
  pair.fabric.fail_next({"a0", pair.a.qp->qp_num, IBV_WR_RDMA_READ}, IBV_WC_REM_OP_ERR);
  pair.a.set_word(0, 4);
  EXPECT_EQ(write_word(pair), IBV_WC_SUCCESS);  // not a read
  ibv_sge sge = pair.a.sge(8, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_READ, 2, &sge, pair.b, 0)), 0);
  EXPECT_EQ(pair.a.next().status, IBV_WC_REM_OP_ERR);
  EXPECT_EQ(pair.a.word(8), 0u);
}

TEST(ScriptedFaults, AFailureAfterTheEffectIsSeenByTheTarget) {
  Pair pair;
  pair.connect();
  pair.fabric.fail_next({"a0"}, IBV_WC_RETRY_EXC_ERR, 2, true);
  EXPECT_EQ(write_word(pair), IBV_WC_SUCCESS);
  pair.a.set_word(0, 4);
  EXPECT_EQ(write_word(pair, 64), IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(pair.b.word(64), 4u);
}

TEST(ScriptedFaults, ARemovedDeviceSaysSoAndThenNothing) {
  Pair pair;
  pair.connect();
  pair.fabric.remove("b0");
  EXPECT_EQ(next_event(pair.b), IBV_EVENT_DEVICE_FATAL);
  ibv_async_event event{};
  EXPECT_EQ(pair.b.api->get_async_event(pair.b.context, &event), -1);
  EXPECT_EQ(errno, EIO);
  ibv_wc wc{};
  EXPECT_EQ(pair.b.api->poll_cq(pair.b.cq, 1, &wc), -EIO);
  EXPECT_EQ(pair.b.api->alloc_pd(pair.b.context), nullptr);
  EXPECT_EQ(errno, EIO);
  EXPECT_EQ(pair.b.api->destroy_qp(pair.b.qp), EIO);
  EXPECT_EQ(pair.b.process.alive(), (Alive{.contexts = 1}));
  int count = 1;
  ibv_device** list = pair.b.api->get_device_list(&count);
  EXPECT_EQ(count, 0);
  pair.b.api->free_device_list(list);
  EXPECT_EQ(write_word(pair), IBV_WC_RETRY_EXC_ERR);
}

TEST(ScriptedFaults, AKilledProcessIsGoneWithoutAWord) {
  Pair pair;
  pair.connect();
  EXPECT_EQ(write_word(pair), IBV_WC_SUCCESS);
  pair.b.process.kill();
  EXPECT_EQ(pair.b.process.alive(), Alive{});
  EXPECT_EQ(pair.b.api->alloc_pd(pair.b.context), nullptr);
  EXPECT_EQ(errno, EIO);
  pair.a.set_word(0, 1);
  EXPECT_EQ(write_word(pair), IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(pair.b.word(0), 0u);
  EXPECT_EQ(pair.fabric.violations(), std::vector<std::string>{});
}

TEST(ScriptedFaults, ASleeperOnTheChannelOfARemovedDeviceWakes) {
  Pair pair;
  ibv_cq* cq = nullptr;
  void* user = nullptr;
  int outcome = 0, error = 0;
  std::thread sleeper([&] {
    outcome = pair.a.api->get_cq_event(pair.a.channel, &cq, &user);
    error = errno;
  });
  pair.fabric.remove("a0");
  sleeper.join();
  EXPECT_EQ(outcome, -1);
  EXPECT_EQ(error, EIO);
}

TEST(ScriptedFaults, EveryRequestCompletesOnceWhileOtherThreadsBreakLinks) {
  for (const bool lagging : {false, true}) {
    ScriptedFabric fabric;
    fabric.add_device(roce_device("a0", "10.0.0.1"));
    fabric.add_device(roce_device("b0", "10.0.0.2"));
    if (lagging) fabric.lagging(23);
    {
      const End a(fabric.process("a", {"a0"})), b(fabric.process("b", {"b0"}));
      ASSERT_EQ(bring_up(*a.api, a.qp, wiring(b.qp->qp_num, gid_of_ipv4("10.0.0.2"), 3)), 0);
      ASSERT_EQ(bring_up(*b.api, b.qp, wiring(a.qp->qp_num, gid_of_ipv4("10.0.0.1"), 3)), 0);
      const auto side = [](const End& me, const End& peer) {
        std::uint64_t posted = 0, completed = 0;
        while (completed < 500) {
          ibv_sge sge = me.sge(0, 4096);
          if (posted < 500 && me.post(request(IBV_WR_RDMA_WRITE, posted, &sge, peer, 8192)) == 0) ++posted;
          for (const ibv_wc& wc : me.poll()) EXPECT_EQ(wc.wr_id, completed++);
          if (completed < posted) std::this_thread::yield();
        }
      };
      std::thread one([&] { side(a, b); });
      std::thread two([&] { side(b, a); });
      for (int i = 0; i < 50; ++i) {
        fabric.hold("a0", "b0");
        fabric.link_down("b0");
        std::this_thread::yield();
        fabric.link_up("b0");
        fabric.deliver("a0", "b0");
      }
      one.join();
      two.join();
      events(a);
      events(b);
    }
    EXPECT_EQ(fabric.alive(), Alive{});
    EXPECT_EQ(fabric.violations(), std::vector<std::string>{});
  }
}

TEST(ScriptedFaults, QueuePairsShowHowTheyWereSetUp) {
  Pair pair;
  Wiring a = pair.a_wiring();
  a.rtr.ah_attr.grh.flow_label = 0x12345;
  a.rtr.ah_attr.grh.traffic_class = 106;
  pair.connect(a, pair.b_wiring());
  const auto views = pair.fabric.queue_pairs();
  ASSERT_EQ(views.size(), 2u);
  EXPECT_EQ(views[0].process, "a");
  EXPECT_EQ(views[0].device, "a0");
  EXPECT_EQ(views[0].state, IBV_QPS_RTS);
  EXPECT_EQ(views[0].attributes.ah_attr.grh.flow_label, 0x12345u);
  EXPECT_EQ(views[0].attributes.ah_attr.grh.traffic_class, 106);
  EXPECT_EQ(views[0].attributes.timeout, 14);
}

TEST(ScriptedFaults, AThousandQueuePairsLeaveNothing) {
  Pair pair;
  for (int i = 0; i < 1000; ++i) {
    ibv_qp* qp = pair.a.make_qp();
    ASSERT_NE(qp, nullptr);
    ASSERT_EQ(pair.a.api->destroy_qp(qp), 0);
  }
  EXPECT_EQ(pair.fabric.alive().qps, 2);
  EXPECT_EQ(pair.fabric.queue_pairs().size(), 2u);
}

}  // namespace
}  // namespace cenote::transport::verbs::test
