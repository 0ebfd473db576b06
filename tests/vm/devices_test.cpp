// What the test VM promises to every test that runs in it: two RDMA devices that do what RDMA devices do, and
// faults that look like those of real hardware.
#include <arpa/inet.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <numeric>
#include <stdexcept>

#include "tests/vm/environment.h"
#include "tests/vm/faults.h"
#include "tests/vm/verbs_pair.h"

namespace cenote::test::vm {
namespace {

using namespace std::chrono_literals;

// Generous: the processor is emulated, and shared.
Deadline soon() { return Deadline::in(120s); }
/// Gives up on a silent peer within seconds: 67 ms, five times over.
constexpr Patience impatient{14, 5};
/// Never gives up (what Soft-RoCE makes of 7 retries), and tries again soon.
constexpr Patience stubborn{14, 7};

void fill(std::vector<std::uint8_t>& memory) { std::iota(memory.begin(), memory.end(), std::uint8_t{1}); }

/// Waits for one kind of event and passes over others.
void await_event(End& end, ibv_event_type wanted) {
  const Deadline deadline = soon();
  while (end.event(deadline) != wanted) {
  }
}

class Devices : public VmTest {
 protected:
  static Pair pair(std::size_t size = 65536, Patience patience = {}) {
    return {environment().devices.at(0), environment().devices.at(1), size, patience};
  }
};

class Faults : public Devices {
 protected:
  /// A fault that is over leaves nothing: both directions carry data.
  static void expect_healthy() {
    Pair fresh = pair();
    fill(fresh.left.memory);
    fresh.left.post(IBV_WR_RDMA_WRITE_WITH_IMM, fresh.right.card(), 4096);
    ASSERT_EQ(fresh.left.completion(soon()).status, IBV_WC_SUCCESS);
    ASSERT_EQ(fresh.right.completion(soon()).status, IBV_WC_SUCCESS);
    fresh.right.post(IBV_WR_RDMA_WRITE_WITH_IMM, fresh.left.card(), 4096);
    ASSERT_EQ(fresh.right.completion(soon()).status, IBV_WC_SUCCESS);
    ASSERT_EQ(fresh.left.completion(soon()).status, IBV_WC_SUCCESS);
  }
};

/// A figure that `tc -s qdisc show` has for the queue of this device: "dropped 12".
int queue_figure(const std::string& device, const std::string& name) {
  const std::string shown = run_tool("tc -s qdisc show dev " + device);
  const auto at = shown.find(name + " ");
  return at == std::string::npos ? -1 : std::stoi(shown.substr(at + name.size() + 1));
}

TEST_F(Devices, TwoPortsAreActiveWithALinkLocalAndAnIpv4Gid) {
  ASSERT_GE(environment().devices.size(), 2U);
  for (std::size_t k = 0; k < 2; ++k) {
    const Device device = open_device(environment().devices[k]);
    ibv_port_attr port{};
    ASSERT_EQ(ibv_query_port(device.get(), 1, &port), 0);
    EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
    EXPECT_EQ(port.active_mtu, IBV_MTU_4096);
    EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
    ibv_gid link_local{}, ipv4{};
    ASSERT_EQ(::ibv_query_gid(device.get(), 1, 0, &link_local), 0);
    ASSERT_EQ(::ibv_query_gid(device.get(), 1, 1, &ipv4), 0);
    EXPECT_EQ(link_local.raw[0], 0xfe);
    EXPECT_EQ(link_local.raw[1], 0x80);
    char text[INET_ADDRSTRLEN] = {};
    ::inet_ntop(AF_INET, &ipv4.raw[12], text, sizeof text);
    EXPECT_EQ(text, environment().addresses[k]);
  }
}

TEST_F(Devices, AWriteWithImmediateArrivesBehindItsData) {
  Pair both = pair();
  fill(both.left.memory);
  both.left.post(IBV_WR_RDMA_WRITE_WITH_IMM, both.right.card(), both.left.memory.size());
  const ibv_wc arrived = both.right.completion(soon());
  ASSERT_EQ(arrived.status, IBV_WC_SUCCESS);
  EXPECT_EQ(arrived.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(arrived.imm_data, 0x1234U);
  EXPECT_EQ(both.right.memory, both.left.memory);
  EXPECT_EQ(both.left.completion(soon()).status, IBV_WC_SUCCESS);
}

TEST_F(Devices, WhatCrossesDevicesCrossesTheBridge) {
  Pair both = pair();
  const auto received = [] {
    std::ifstream file("/sys/class/net/rnet1/statistics/rx_bytes");
    std::uint64_t bytes = 0;
    file >> bytes;
    return bytes;
  };
  const auto before = received();
  both.left.post(IBV_WR_RDMA_WRITE, both.right.card(), both.left.memory.size());
  ASSERT_EQ(both.left.completion(soon()).status, IBV_WC_SUCCESS);
  EXPECT_GE(received() - before, both.left.memory.size());
}

TEST_F(Devices, AReadFetchesThePeersBytes) {
  Pair both = pair();
  fill(both.right.memory);
  both.left.post(IBV_WR_RDMA_READ, both.right.card(), both.left.memory.size());
  ASSERT_EQ(both.left.completion(soon()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(both.left.memory, both.right.memory);
}

TEST_F(Devices, AnAtomicAddsAtThePeerAndReturnsWhatWasThere) {
  Pair both = pair();
  both.right.memory[0] = 7;
  both.left.post(IBV_WR_ATOMIC_FETCH_AND_ADD, both.right.card(), 8);
  ASSERT_EQ(both.left.completion(soon()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(both.left.memory[0], 7);
  EXPECT_EQ(both.right.memory[0], 12);
}

TEST_F(Devices, AWrongRemoteKeyIsARemoteAccessError) {
  Pair both = pair();
  fill(both.left.memory);
  both.left.post(IBV_WR_RDMA_WRITE, both.right.card(), 4096, both.right.card().key ^ 0x5500U);
  EXPECT_EQ(both.left.completion(soon()).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(both.left.state(), IBV_QPS_ERR);
  EXPECT_TRUE(std::ranges::all_of(both.right.memory, [](auto byte) { return byte == 0; }));
}

TEST_F(Faults, APeersCableThatIsPulledExceedsTheRetriesAndIsAnEventThere) {
  Pair both = pair(65536, impatient);
  {
    const LinkDown cable("rnet1p");
    await_event(both.right, IBV_EVENT_PORT_ERR);
    EXPECT_NE(both.right.port_state(), IBV_PORT_ACTIVE);
    both.left.post(IBV_WR_RDMA_WRITE, both.right.card(), 4096);
    both.left.post(IBV_WR_RDMA_WRITE, both.right.card(), 4096);
    EXPECT_EQ(both.left.completion(soon()).status, IBV_WC_RETRY_EXC_ERR);
    EXPECT_EQ(both.left.completion(soon()).status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(both.left.state(), IBV_QPS_ERR);
  }
  await_event(both.right, IBV_EVENT_PORT_ACTIVE);
  EXPECT_EQ(both.right.port_state(), IBV_PORT_ACTIVE);
  expect_healthy();
}

TEST_F(Faults, TheOwnCableThatIsPulledEndsTheConnectionAtOnceAndIsAnEventHere) {
  Pair both = pair();
  {
    const LinkDown cable("rnet0");
    await_event(both.left, IBV_EVENT_PORT_ERR);
    both.left.post(IBV_WR_RDMA_WRITE, both.right.card(), 4096);
    EXPECT_NE(both.left.completion(soon()).status, IBV_WC_SUCCESS);
  }
  await_event(both.left, IBV_EVENT_PORT_ACTIVE);
  ibv_gid gid{};
  const Device device = open_device(environment().devices[0]);
  ASSERT_EQ(::ibv_query_gid(device.get(), 1, 0, &gid), 0);
  EXPECT_EQ(gid.raw[0], 0xfe) << "the link-local GID did not come back";
  expect_healthy();
}

TEST_F(Faults, AFewLostPacketsAreRepairedWithoutAnErrorAndCounted) {
  Pair both = pair(1U << 20U, stubborn);
  fill(both.left.memory);
  const auto repairs = [&] {
    return both.left.counter("completer_retry_err") + both.right.counter("rcvd_seq_err") +
           both.right.counter("out_of_seq_request");
  };
  const auto before = repairs();
  const PacketLoss loss("rnet0", 2);
  // 1,024 packets a write: that not one of them is lost has a chance of 1e-9.
  for (int i = 0; i < 3; ++i) {
    both.left.post(IBV_WR_RDMA_WRITE, both.right.card(), both.left.memory.size());
    ASSERT_EQ(both.left.completion(soon()).status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(both.right.memory, both.left.memory);
  EXPECT_GT(repairs(), before);
  EXPECT_GT(queue_figure("rnet0", "dropped"), 0);
}

TEST_F(Faults, AWireThatLosesAllExceedsTheRetriesWithoutAnEvent) {
  {
    Pair both = pair(65536, impatient);
    const PacketLoss loss("rnet0", 100);
    both.left.post(IBV_WR_RDMA_WRITE, both.right.card(), 4096);
    EXPECT_EQ(both.left.completion(soon()).status, IBV_WC_RETRY_EXC_ERR);
    EXPECT_EQ(both.left.port_state(), IBV_PORT_ACTIVE);
  }
  expect_healthy();
}

TEST_F(Faults, AShapedDeviceIsAsSlowAsItWasToldAndLosesNothing) {
  Pair both = pair(1U << 20U);
  fill(both.left.memory);
  {
    const Shaped narrow("rnet0", 4'000'000);
    const auto started = Clock::now();
    both.left.post(IBV_WR_RDMA_WRITE, both.right.card(), both.left.memory.size());
    ASSERT_EQ(both.left.completion(soon()).status, IBV_WC_SUCCESS);
    // 8 Mbit at 4 Mbit/s, less what the bucket held; there is no upper bound on a busy machine.
    EXPECT_GT(Clock::now() - started, 1900ms);
    EXPECT_EQ(queue_figure("rnet0", "dropped"), 0);
  }
  EXPECT_EQ(both.right.memory, both.left.memory);
  EXPECT_EQ(run_tool("tc qdisc show dev rnet0").find("tbf"), std::string::npos);
}

TEST_F(Faults, ALatePacketArrivesAfterItsDelay) {
  Pair both = pair();
  const Delay late("rnet0", 200);
  const auto started = Clock::now();
  both.left.post(IBV_WR_RDMA_WRITE, both.right.card(), 8);
  ASSERT_EQ(both.left.completion(soon()).status, IBV_WC_SUCCESS);
  EXPECT_GE(Clock::now() - started, 200ms);
}

TEST_F(Faults, WithoutLockableMemoryNothingCanBeRegistered) {
  {
    const MemlockLimit none(65536);
    try {
      const End refused(environment().devices[0], 1U << 20U);
      FAIL() << "1 MiB was registered under a limit of 64 KiB";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "ibv_reg_mr: Cannot allocate memory");
    }
  }
  const End accepted(environment().devices[0], 1U << 20U);
}

}  // namespace
}  // namespace cenote::test::vm
