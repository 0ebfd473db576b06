// Traffic under every fault there is, a seed an iteration: what is told is true, and what cannot be done ends
// in time with its cause. And the traffic itself is tested: it sees what no layer below may do.
#include "tests/unit/transports/fault/traffic.h"

#include "tests/fault_seeds.h"
#include "transports/shm/shm.h"
#include "transports/tcp/tcp.h"

namespace cenote::transport::test {
namespace {

constexpr std::uint32_t operations = 60;  ///< of each side; a blow falls on one of the first half

const std::vector<Kind>& insides() {
  static const std::vector<Kind> all{{"shm", [] { return make_shm_transport(); }},
                                     {"tcp", [] { return make_tcp_transport(); }}};
  return all;
}

class FaultTraffic : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Over, FaultTraffic, testing::ValuesIn(insides()), kind_name);

TEST_P(FaultTraffic, IsRightOrEndsInTimeWithTheCause) {
  const auto plan = FaultPlan::draw(cenote::test::seed(), 2, operations / 2);
  const auto struck = [&](const Outcome& outcome) {
    return plan.blow && outcome.did.of[static_cast<std::size_t>(plan.blow->fault)] == 1;
  };
  auto outcome = traffic(GetParam(), plan, operations);
  // On a busy machine they may not have connected in time.
  if (plan.blow && !struck(outcome)) outcome = traffic(GetParam(), plan, operations, 10s);
  EXPECT_EQ(outcome.wrong, "");
  EXPECT_EQ(struck(outcome), plan.blow.has_value()) << "the blow did not fall";
  EXPECT_EQ(outcome.right, !plan.blow.has_value());
  cenote::test::FaultRecord::of("Traffic over " + GetParam().name).add(plan, outcome.did, outcome.right);
}

TEST_P(FaultTraffic, SeesWhatNoLayerBelowMayDo) {
  if (cenote::test::seed() % 10 != 0) return;  // a few seeds show it
  for (const auto sabotage : {Sabotage::damage, Sabotage::early_signal, Sabotage::vanish, Sabotage::repeat}) {
    FaultPlan plan = FaultPlan::draw_habits(cenote::test::seed());
    plan.sabotage = sabotage;
    plan.sabotage_at = cenote::test::seed() % 7;
    const auto outcome = traffic(GetParam(), plan, operations);
    EXPECT_NE(outcome.wrong, "") << "sabotage " << static_cast<int>(sabotage) << " was not seen";
  }
}

}  // namespace
}  // namespace cenote::transport::test

int main(int argc, char** argv) { return cenote::test::run_seeds(argc, argv); }
