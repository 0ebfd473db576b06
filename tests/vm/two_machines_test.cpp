// Two VMs on one network: what the devices of one do to the memory of the other.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>

#include "tests/vm/faults.h"
#include "tests/vm/rendezvous.h"
#include "tests/vm/verbs_pair.h"

namespace cenote::test::vm {
namespace {

using namespace std::chrono_literals;

Deadline soon() { return Deadline::in(120s); }

class TwoMachines : public TwoVmTest {
 protected:
  /// This VM's end of a connection over the k-th device of both.
  struct Side {
    End end;
    Card peer;
  };
  Side side(std::size_t k, Patience patience = {}) {
    Side made{End(environment().devices.at(k), 65536), {}};
    made.peer = other().exchange(made.end.card());
    made.end.connect(made.peer, patience);
    other().barrier("connected");
    return made;
  }
};

TEST_F(TwoMachines, AWriteFromOneArrivesInTheOther) {
  for (std::size_t k = 0; k < environment().devices.size(); ++k) {
    Side here = side(k);
    std::vector<std::uint8_t> sent(here.end.memory.size());
    std::iota(sent.begin(), sent.end(), std::uint8_t{3});
    if (first()) {
      std::ranges::copy(sent, here.end.memory.begin());
      here.end.post(IBV_WR_RDMA_WRITE_WITH_IMM, here.peer, sent.size());
      EXPECT_EQ(here.end.completion(soon()).status, IBV_WC_SUCCESS);
    } else {
      EXPECT_EQ(here.end.completion(soon()).opcode, IBV_WC_RECV_RDMA_WITH_IMM);
      EXPECT_EQ(here.end.memory, sent);
    }
    other().barrier("written");
  }
}

TEST_F(TwoMachines, ACutWireExceedsTheRetriesOfBothAndCarriesDataAgainWhenItIsMended) {
  {
    Side here = side(0, Patience{14, 5});
    std::optional<LinkDown> cut;
    if (first()) cut.emplace("eth0");
    other().barrier("cut");
    here.end.post(IBV_WR_RDMA_WRITE, here.peer, 4096);
    EXPECT_EQ(here.end.completion(soon()).status, IBV_WC_RETRY_EXC_ERR);
    EXPECT_EQ(here.end.port_state(), IBV_PORT_ACTIVE) << "a cut between switches is no event at the port";
    other().barrier("noticed");
  }
  other().barrier("mended");
  Side again = side(0);
  again.end.post(IBV_WR_RDMA_WRITE, again.peer, 4096);
  EXPECT_EQ(again.end.completion(soon()).status, IBV_WC_SUCCESS);
  other().barrier("written");
}

}  // namespace
}  // namespace cenote::test::vm
