// The conformance suite over shared memory and TCP that are treated as badly as the contract allows: every
// transport of a case has a plan of its own. Queues are never said to be full without need: the suite asserts
// that they are not. The seeds are run_seeds()'s.
#include <deque>

#include "tests/fault_seeds.h"
#include "tests/unit/transports/pair.h"
#include "transports/fault/fault_transport.h"
#include "transports/shm/shm.h"
#include "transports/tcp/tcp.h"

namespace cenote::transport::test {
namespace {

/// How many transports the case has made, and what they did.
struct Made : testing::EmptyTestEventListener {
  std::uint32_t count = 0;
  std::deque<FaultTally> tallies;
  void OnTestStart(const testing::TestInfo& /*test*/) override { count = 0; }
  void end_seed() {
    FaultTally sum;
    for (const auto& tally : tallies) sum += tally;
    tallies.clear();
    cenote::test::FaultRecord::of("Conformance").add(plan(), sum, true);
  }
  static FaultPlan plan() {
    FaultPlan plan = FaultPlan::draw_habits(cenote::test::seed());
    plan.habits &= ~(1U << static_cast<unsigned>(Fault::refuse));
    return plan;
  }
};

Made& made() {
  static Made* const one = [] {
    auto* const listener = new Made;
    testing::UnitTest::GetInstance()->listeners().Append(listener);
    cenote::test::after_each_seed([listener] { listener->end_seed(); });
    return listener;
  }();
  return *one;
}

std::unique_ptr<Transport> wrapped(std::unique_ptr<Transport> inside) {
  auto& all = made();
  all.tallies.emplace_back();
  return FaultMember(Made::plan().of(all.count++), &all.tallies.back()).wrap(std::move(inside));
}

template <class Make>
Kind kind(std::string name, Make make) {
  return {std::move(name),
          [make]() -> Result<std::unique_ptr<Transport>> {
            CENOTE_ASSIGN(auto inside, make());
            return wrapped(std::move(inside));
          },
          [](FabricOptions& options) { options.wrap = wrapped; }};
}

}  // namespace

std::vector<Kind> kinds() {
  (void)made();
  return {kind("shm", [] { return make_shm_transport(); }), kind("tcp", [] { return make_tcp_transport(); })};
}

}  // namespace cenote::transport::test

int main(int argc, char** argv) { return cenote::test::run_seeds(argc, argv); }
