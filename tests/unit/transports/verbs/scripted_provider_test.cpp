// The double itself: what it carries when nothing is wrong.
#include <fcntl.h>

#include <numeric>
#include <thread>

#include "tests/unit/transports/verbs/scripted_pair.h"

namespace cenote::transport::verbs::test {
namespace {

TEST(ScriptedFabric, ListsTheDevicesOfEachProcessInItsOrder) {
  ScriptedFabric fabric;
  fabric.add_device(roce_device("x", "10.0.0.1"));
  fabric.add_device(infiniband_device("y", 7));
  const auto one = fabric.process("one", {"y", "x"}).api();
  const auto two = fabric.process("two", {"x"}).api();
  int count = 0;
  ibv_device** list = one->get_device_list(&count);
  ASSERT_EQ(count, 2);
  EXPECT_STREQ(one->get_device_name(list[0]), "y");
  EXPECT_STREQ(one->get_device_name(list[1]), "x");
  EXPECT_EQ(list[2], nullptr);
  EXPECT_EQ(fabric.alive().lists, 1);
  one->free_device_list(list);
  list = two->get_device_list(&count);
  ASSERT_EQ(count, 1);
  EXPECT_STREQ(two->get_device_name(list[0]), "x");
  two->free_device_list(list);
  EXPECT_EQ(fabric.alive(), Alive{});
}

TEST(ScriptedFabric, DescribesDeviceAndPorts) {
  Pair pair;
  ibv_device_attr device{};
  ASSERT_EQ(pair.a.api->query_device(pair.a.context, &device), 0);
  EXPECT_EQ(device.phys_port_cnt, 1);
  EXPECT_EQ(device.max_qp_wr, 8192);
  EXPECT_EQ(device.atomic_cap, IBV_ATOMIC_HCA);
  ibv_port_attr port{};
  ASSERT_EQ(pair.a.api->query_port(pair.a.context, 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(pair.a.api->query_port(pair.a.context, 2, &port), EINVAL);
  std::array<ibv_gid_entry, 8> gids{};
  ASSERT_EQ(pair.a.api->query_gid_table(pair.a.context, gids.data(), gids.size()), 4);
  EXPECT_EQ(gids[3].gid_type, static_cast<std::uint32_t>(IBV_GID_TYPE_ROCE_V2));
  EXPECT_EQ(std::memcmp(gids[3].gid.raw, gid_of_ipv4("10.0.0.1").raw, 16), 0);
  EXPECT_EQ(pair.a.api->query_gid_table(pair.a.context, gids.data(), 3), -EINVAL);
  __be16 pkey = 0;
  EXPECT_EQ(pair.a.api->query_pkey(pair.a.context, 1, 0, &pkey), 0);
  EXPECT_EQ(pkey, 0xffff);
  EXPECT_EQ(pair.a.api->query_pkey(pair.a.context, 1, 1, &pkey), -1);
}

TEST(ScriptedFabric, HolesInTheGidTableAreNotListed) {
  ScriptedFabric fabric;
  auto spec = roce_device("x", "10.0.0.1");
  spec.ports[0].gids[1].valid = false;
  fabric.add_device(spec);
  const End end(fabric.process("p", {"x"}));
  std::array<ibv_gid_entry, 8> gids{};
  ASSERT_EQ(end.api->query_gid_table(end.context, gids.data(), gids.size()), 3);
  EXPECT_EQ(gids[1].gid_index, 2u);
}

TEST(ScriptedFabric, CountsWhatIsAliveAndWhatWasCalled) {
  ScriptedFabric fabric;
  fabric.add_device(roce_device("x", "10.0.0.1"));
  {
    const End end(fabric.process("p", {"x"}));
    EXPECT_EQ(fabric.alive(),
              (Alive{.contexts = 1, .pds = 1, .mrs = 1, .channels = 1, .cqs = 1, .srqs = 1, .qps = 1}));
    EXPECT_EQ(end.process.calls(Call::create_qp), 1u);
  }
  EXPECT_EQ(fabric.alive(), Alive{});
  EXPECT_EQ(fabric.calls(Call::destroy_qp), 1u);
  EXPECT_EQ(fabric.violations(), std::vector<std::string>{});
}

TEST(ScriptedFabric, WriteArrivesAtOnce) {
  Pair pair;
  pair.connect();
  pair.a.set_word(0, 42);
  ibv_sge sge = pair.a.sge(0, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 7, &sge, pair.b, 64)), 0);
  EXPECT_EQ(pair.b.word(64), 42u);
  const auto done = pair.a.poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].wr_id, 7u);
  EXPECT_EQ(done[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(done[0].opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(done[0].qp_num, pair.a.qp->qp_num);
  EXPECT_TRUE(pair.b.poll().empty());
  EXPECT_EQ(pair.fabric.counters().doorbells, 1u);
  EXPECT_EQ(pair.fabric.counters().work_requests, 1u);
  EXPECT_EQ(pair.fabric.counters().completions, 1u);
}

TEST(ScriptedFabric, WriteOfSeveralPiecesOfOddLengthsArrivesWhole) {
  Pair pair;
  pair.connect();
  std::vector<std::byte> expected(5001);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<std::byte>(i * 31 + 7);
  std::memcpy(pair.a.memory.data() + 3, expected.data(), 1000);
  std::memcpy(pair.a.memory.data() + 20001, expected.data() + 1000, 4001);
  std::array<ibv_sge, 2> sges = {pair.a.sge(3, 1000), pair.a.sge(20001, 4001)};
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, 1, sges.data(), pair.b, 5);
  wr.num_sge = 2;
  ASSERT_EQ(pair.a.post(wr), 0);
  EXPECT_EQ(std::memcmp(pair.b.memory.data() + 5, expected.data(), expected.size()), 0);
  EXPECT_EQ(pair.a.next().status, IBV_WC_SUCCESS);
}

TEST(ScriptedFabric, WriteWithImmediateTakesAReceive) {
  Pair pair;
  pair.connect();
  ASSERT_EQ(pair.b.receive(91, 0, 0), 0);
  pair.a.set_word(0, 5);
  ibv_sge sge = pair.a.sge(0, 8);
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE_WITH_IMM, 1, &sge, pair.b, 64);
  wr.imm_data = 0xabcd;
  ASSERT_EQ(pair.a.post(wr), 0);
  const ibv_wc got = pair.b.next();
  EXPECT_EQ(got.wr_id, 91u);
  EXPECT_EQ(got.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(got.imm_data, 0xabcdu);
  EXPECT_EQ(got.wc_flags, static_cast<unsigned>(IBV_WC_WITH_IMM));
  EXPECT_EQ(got.byte_len, 8u);
  EXPECT_EQ(got.qp_num, pair.b.qp->qp_num);
  EXPECT_EQ(pair.b.word(64), 5u);
}

TEST(ScriptedFabric, SendFillsTheReceivesInOrder) {
  Pair pair;
  pair.connect();
  ASSERT_EQ(pair.b.receive(1, 0, 64), 0);
  ASSERT_EQ(pair.b.receive(2, 64, 64), 0);
  for (std::uint64_t i = 0; i < 2; ++i) {
    pair.a.set_word(0, 100 + i);
    ibv_sge sge = pair.a.sge(0, 8);
    ASSERT_EQ(pair.a.post(request(IBV_WR_SEND, i, &sge, pair.b, 0)), 0);
  }
  EXPECT_EQ(pair.b.next().wr_id, 1u);
  EXPECT_EQ(pair.b.next().wr_id, 2u);
  EXPECT_EQ(pair.b.word(0), 100u);
  EXPECT_EQ(pair.b.word(64), 101u);
}

TEST(ScriptedFabric, ReadFetches) {
  Pair pair;
  pair.connect();
  pair.b.set_word(256, 99);
  ibv_sge sge = pair.a.sge(8, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_READ, 1, &sge, pair.b, 256)), 0);
  const ibv_wc done = pair.a.next();
  EXPECT_EQ(done.opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(done.byte_len, 8u);
  EXPECT_EQ(pair.a.word(8), 99u);
}

TEST(ScriptedFabric, AtomicsReturnWhatWasThere) {
  Pair pair;
  pair.connect();
  pair.b.set_word(0, 10);
  ibv_sge sge = pair.a.sge(0, 8);
  ibv_send_wr add = request(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, &sge, pair.b, 0);
  add.wr.atomic.compare_add = 5;
  ASSERT_EQ(pair.a.post(add), 0);
  EXPECT_EQ(pair.a.next().opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(pair.a.word(0), 10u);
  EXPECT_EQ(pair.b.word(0), 15u);
  ibv_send_wr swap = request(IBV_WR_ATOMIC_CMP_AND_SWP, 2, &sge, pair.b, 0);
  swap.wr.atomic.compare_add = 15;
  swap.wr.atomic.swap = 77;
  ASSERT_EQ(pair.a.post(swap), 0);
  EXPECT_EQ(pair.a.next().opcode, IBV_WC_COMP_SWAP);
  EXPECT_EQ(pair.b.word(0), 77u);
  ASSERT_EQ(pair.a.post(swap), 0);  // no longer equal
  EXPECT_EQ(pair.a.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(pair.a.word(0), 77u);
  EXPECT_EQ(pair.b.word(0), 77u);
}

TEST(ScriptedFabric, InfiniBandReachesByLidAndPathBits) {
  ScriptedFabric fabric;
  auto a_spec = infiniband_device("a0", 4), b_spec = infiniband_device("b0", 8);
  b_spec.ports[0].lmc = 2;
  fabric.add_device(a_spec);
  fabric.add_device(b_spec);
  End a(fabric.process("a", {"a0"}));
  End b(fabric.process("b", {"b0"}));
  ASSERT_EQ(bring_up(*a.api, a.qp, wiring(b.qp->qp_num, {}, 0, 10)), 0);  // path 2 of 4
  ASSERT_EQ(bring_up(*b.api, b.qp, wiring(a.qp->qp_num, {}, 0, 4)), 0);
  ibv_sge sge = a.sge(0, 8);
  ASSERT_EQ(a.post(request(IBV_WR_RDMA_WRITE, 1, &sge, b, 0)), 0);
  EXPECT_EQ(a.next().status, IBV_WC_SUCCESS);
}

TEST(ScriptedFabric, InlineDataIsCopiedWhenPosted) {
  Pair pair;
  pair.connect();
  pair.fabric.lagging(1);
  std::uint64_t local = 5;  // not registered
  ibv_sge sge{reinterpret_cast<std::uint64_t>(&local), 8, 0};
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0);
  wr.send_flags |= IBV_SEND_INLINE;
  ASSERT_EQ(pair.a.post(wr), 0);
  local = 6;
  EXPECT_EQ(pair.a.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(pair.b.word(0), 5u);
  std::array<std::byte, 65> large{};
  sge = {reinterpret_cast<std::uint64_t>(large.data()), 65, 0};
  EXPECT_EQ(pair.a.post(wr), EINVAL);
}

TEST(ScriptedFabric, SlotsOfUnsignaledRequestsComeFreeWithALaterPolledCompletion) {
  Pair pair({.send_slots = 4});
  pair.connect();
  ibv_sge sge = pair.a.sge(0, 8);
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0);
  wr.send_flags = 0;
  for (int i = 0; i < 3; ++i) ASSERT_EQ(pair.a.post(wr), 0);
  EXPECT_TRUE(pair.a.poll().empty());
  wr.wr_id = 4;
  wr.send_flags = IBV_SEND_SIGNALED;
  ASSERT_EQ(pair.a.post(wr), 0);
  EXPECT_EQ(pair.a.post(wr), ENOMEM);  // done, but nobody has polled
  EXPECT_EQ(pair.a.poll().size(), 1u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(pair.a.post(wr), 0);
  EXPECT_EQ(pair.a.post(wr), ENOMEM);
}

TEST(ScriptedFabric, AListIsPostedUpToTheBadRequest) {
  Pair pair({.send_slots = 2});
  pair.connect();
  ibv_sge sge = pair.a.sge(0, 8);
  std::array<ibv_send_wr, 3> list{};
  for (std::size_t i = 0; i < 3; ++i) list[i] = request(IBV_WR_RDMA_WRITE, i, &sge, pair.b, 8 * i);
  list[0].next = &list[1];
  list[1].next = &list[2];
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(pair.a.api->post_send(pair.a.qp, list.data(), &bad), ENOMEM);
  EXPECT_EQ(bad, &list[2]);
  EXPECT_EQ(pair.a.poll().size(), 2u);
  EXPECT_EQ(pair.fabric.counters().doorbells, 1u);
  EXPECT_EQ(pair.fabric.counters().work_requests, 2u);
}

TEST(ScriptedFabric, RegionsTakeTheRelaxedOrderingFlag) {
  Pair pair;
  ibv_mr* mr =
      pair.a.api->reg_mr(pair.a.pd, pair.a.memory.data(), 64, kAllRights | IBV_ACCESS_RELAXED_ORDERING);
  ASSERT_NE(mr, nullptr);
  EXPECT_NE(mr->lkey, mr->rkey);
  EXPECT_NE(mr->rkey, pair.a.mr->rkey);
  EXPECT_EQ(pair.a.api->dereg_mr(mr), 0);
}

TEST(ScriptedFabric, RegionsMustBeMappedAndHaveConsistentRights) {
  Pair pair;
  EXPECT_EQ(pair.a.api->reg_mr(pair.a.pd, reinterpret_cast<void*>(0x10000), 64, kAllRights), nullptr);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(pair.a.api->reg_mr(pair.a.pd, pair.a.memory.data(), 0, kAllRights), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(pair.a.api->reg_mr(pair.a.pd, pair.a.memory.data(), 64, IBV_ACCESS_REMOTE_WRITE), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST(ScriptedFabric, DmaBufsAreBackedByTheHook) {
  Pair pair;
  pair.connect();
  ASSERT_EQ(pair.a.api->reg_dmabuf_mr(pair.a.pd, 0, 4096, 0x7000, 9, kAllRights), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  alignas(8) std::array<std::byte, 8192> backing{};
  pair.b.process.on_dmabuf([&](int fd, std::uint64_t offset, std::size_t) -> void* {
    return fd == 9 ? backing.data() + offset : nullptr;
  });
  ibv_mr* mr = pair.b.api->reg_dmabuf_mr(pair.b.pd, 4096, 4096, 0x70000, 9, kAllRights);
  ASSERT_NE(mr, nullptr);
  pair.a.set_word(0, 12);
  ibv_sge sge = pair.a.sge(0, 8);
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0);
  wr.wr.rdma.remote_addr = 0x70008;
  wr.wr.rdma.rkey = mr->rkey;
  ASSERT_EQ(pair.a.post(wr), 0);
  EXPECT_EQ(pair.a.next().status, IBV_WC_SUCCESS);
  std::uint64_t word = 0;
  std::memcpy(&word, backing.data() + 4096 + 8, 8);
  EXPECT_EQ(word, 12u);
  EXPECT_EQ(pair.b.api->reg_dmabuf_mr(pair.b.pd, 4096, 4096, 0x70008, 9, kAllRights), nullptr);
  EXPECT_EQ(errno, EINVAL);  // offset and address differ within the page
  EXPECT_EQ(pair.b.api->dereg_mr(mr), 0);
  EXPECT_EQ(pair.b.process.api_without_dmabuf()->reg_dmabuf_mr, nullptr);
}

TEST(ScriptedChannel, WakesOnceForWhatComesAfterTheRequest) {
  Pair pair;
  pair.connect();
  const int fd = pair.a.channel->fd;
  ASSERT_EQ(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
  ibv_cq* cq = nullptr;
  void* user = nullptr;
  EXPECT_EQ(pair.a.api->get_cq_event(pair.a.channel, &cq, &user), -1);
  EXPECT_EQ(errno, EAGAIN);
  ibv_sge sge = pair.a.sge(0, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0)), 0);
  ASSERT_EQ(pair.a.api->req_notify_cq(pair.a.cq, 0), 0);
  EXPECT_FALSE(readable(fd));  // armed after the completion came
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 2, &sge, pair.b, 0)), 0);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 3, &sge, pair.b, 0)), 0);
  EXPECT_TRUE(readable(fd));
  ASSERT_EQ(pair.a.api->get_cq_event(pair.a.channel, &cq, &user), 0);
  EXPECT_EQ(cq, pair.a.cq);
  EXPECT_EQ(user, &pair.a);
  EXPECT_FALSE(readable(fd));
  pair.a.api->ack_cq_events(cq, 1);
  EXPECT_EQ(pair.fabric.counters().events, 1u);
}

TEST(ScriptedChannel, SolicitedOnlySleepsThroughTheRest) {
  Pair pair;
  pair.connect();
  for (std::uint64_t i = 0; i < 2; ++i) ASSERT_EQ(pair.b.receive(i, 0, 64), 0);
  ASSERT_EQ(pair.b.api->req_notify_cq(pair.b.cq, 1), 0);
  ibv_sge sge = pair.a.sge(0, 8);
  ibv_send_wr wr = request(IBV_WR_SEND, 1, &sge, pair.b, 0);
  ASSERT_EQ(pair.a.post(wr), 0);
  EXPECT_FALSE(readable(pair.b.channel->fd));
  wr.send_flags |= IBV_SEND_SOLICITED;
  ASSERT_EQ(pair.a.post(wr), 0);
  EXPECT_TRUE(readable(pair.b.channel->fd));
}

TEST(ScriptedChannel, ABlockingReaderSleepsUntilTheEvent) {
  Pair pair;
  pair.connect();
  ASSERT_EQ(pair.b.receive(1, 0, 64), 0);
  ASSERT_EQ(pair.b.api->req_notify_cq(pair.b.cq, 0), 0);
  ibv_cq* cq = nullptr;
  std::thread reader([&] {
    void* user = nullptr;
    if (pair.b.api->get_cq_event(pair.b.channel, &cq, &user) == 0) pair.b.api->ack_cq_events(cq, 1);
  });
  ibv_sge sge = pair.a.sge(0, 8);
  EXPECT_EQ(pair.a.post(request(IBV_WR_SEND, 1, &sge, pair.b, 0)), 0);
  reader.join();
  EXPECT_EQ(cq, pair.b.cq);
}

TEST(ScriptedLag, NothingMovesBeforeAStepAndThePayloadIsReadThen) {
  Pair pair;
  pair.connect();
  pair.fabric.lagging(3);
  pair.a.set_word(0, 1);
  ibv_sge sge = pair.a.sge(0, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0)), 0);
  EXPECT_EQ(pair.b.word(0), 0u);
  pair.a.set_word(0, 2);  // a transport that lets its caller do this is wrong, and is seen to be
  pair.fabric.settle();
  EXPECT_EQ(pair.b.word(0), 2u);
  EXPECT_EQ(pair.a.poll().size(), 1u);
}

TEST(ScriptedLag, ALongWriteArrivesInPiecesAndCompletesAfterTheLast) {
  Pair pair;
  pair.connect();
  pair.fabric.lagging(3);
  std::memset(pair.a.memory.data(), 1, 16384);
  ibv_sge sge = pair.a.sge(0, 16384);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0)), 0);
  const auto arrived = [&] {
    return std::count(pair.b.memory.begin(), pair.b.memory.begin() + 16384, std::byte{1});
  };
  pair.fabric.step();
  EXPECT_GT(arrived(), 0);
  EXPECT_LT(arrived(), 16384);
  pair.fabric.settle();
  EXPECT_EQ(arrived(), 16384);
  EXPECT_EQ(pair.a.poll().size(), 1u);
}

TEST(ScriptedLag, KeepsTheOrderOfAQueuePairAndNoneBetweenTwo) {
  Pair pair;
  pair.connect();
  ibv_qp* second_a = pair.a.make_qp();
  ibv_qp* second_b = pair.b.make_qp();
  ASSERT_EQ(bring_up(*pair.a.api, second_a, wiring(second_b->qp_num, gid_of_ipv4("10.0.0.2"), 3)), 0);
  ASSERT_EQ(bring_up(*pair.b.api, second_b, wiring(second_a->qp_num, gid_of_ipv4("10.0.0.1"), 3)), 0);
  pair.fabric.lagging(11);
  bool overtaken = false;
  for (std::uint64_t round = 0; round < 20; ++round) {
    ibv_sge sge = pair.a.sge(0, 8);
    for (std::uint64_t i = 0; i < 3; ++i) {
      ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, i, &sge, pair.b, 0);
      ASSERT_EQ(pair.a.post(wr), 0);
      wr.wr_id = 100 + i;
      ibv_send_wr* bad = nullptr;
      ASSERT_EQ(pair.a.api->post_send(second_a, &wr, &bad), 0);
    }
    pair.fabric.settle();
    std::vector<std::uint64_t> first, second;
    for (const ibv_wc& wc : pair.a.poll()) {
      if (wc.wr_id >= 100)
        second.push_back(wc.wr_id);
      else if (first.push_back(wc.wr_id); second.size() >= first.size())
        overtaken = true;  // the first queue pair had been posted to first
    }
    EXPECT_EQ(first, (std::vector<std::uint64_t>{0, 1, 2}));
    EXPECT_EQ(second, (std::vector<std::uint64_t>{100, 101, 102}));
  }
  EXPECT_TRUE(overtaken);
  EXPECT_EQ(pair.a.api->destroy_qp(second_a), 0);
  EXPECT_EQ(pair.b.api->destroy_qp(second_b), 0);
}

TEST(ScriptedLag, AClockworkMovesWhatNobodyPolls) {
  Pair pair;
  pair.connect();
  pair.fabric.lagging(5);
  ASSERT_EQ(pair.a.api->req_notify_cq(pair.a.cq, 0), 0);
  const Clockwork clockwork(pair.fabric);
  ibv_sge sge = pair.a.sge(0, 8);
  ASSERT_EQ(pair.a.post(request(IBV_WR_RDMA_WRITE, 1, &sge, pair.b, 0)), 0);
  ibv_cq* cq = nullptr;
  void* user = nullptr;
  ASSERT_EQ(pair.a.api->get_cq_event(pair.a.channel, &cq, &user), 0);
  pair.a.api->ack_cq_events(cq, 1);
  EXPECT_EQ(pair.a.next().status, IBV_WC_SUCCESS);
}

TEST(ScriptedFabric, TwoThreadsExchangeThroughPolledMemory) {
  for (const bool lagging : {false, true}) {
    Pair pair;
    pair.connect();
    if (lagging) pair.fabric.lagging(17);
    constexpr std::uint64_t kRounds = 50;
    const auto side = [](End& me, End& peer, std::uint64_t first) {
      for (std::uint64_t round = 0; round < kRounds; ++round) {
        if (first == 0 || round > 0) {
          const std::uint64_t awaited = first == 0 ? round + 1 : round;
          const auto* flag = reinterpret_cast<const std::uint64_t*>(me.memory.data() + 128);
          while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) < awaited)
            if (me.poll().empty()) std::this_thread::yield();
        }
        std::uint64_t next = round + 1;
        ibv_sge sge{reinterpret_cast<std::uint64_t>(&next), 8, 0};
        ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, round, &sge, peer, 128);
        wr.send_flags |= IBV_SEND_INLINE;
        if (me.post(wr) != 0) return;
        if (me.next().status != IBV_WC_SUCCESS) return;
      }
    };
    std::thread other([&] { side(pair.b, pair.a, 0); });
    side(pair.a, pair.b, 1);
    other.join();
    EXPECT_EQ(pair.b.word(128), kRounds);
    EXPECT_EQ(pair.a.word(128), kRounds);
  }
}

}  // namespace
}  // namespace cenote::transport::verbs::test
