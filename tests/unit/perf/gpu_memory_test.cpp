// The tools to and from the memory of cards, over a scripted RDMA fabric: every byte is checked in the card.
#include <gmock/gmock.h>

#include "tests/unit/perf/two_ends.h"
#include "tests/unit/transports/verbs/scripted_provider.h"

namespace cenote::perf::test {
namespace {

using transport::verbs::test::roce_device;
using transport::verbs::test::ScriptedFabric;

/// Two machines with a port each.
struct Machines {
  Machines() {
    fabric.add_device(roce_device("card0", "10.0.0.1"));
    fabric.add_device(roce_device("card1", "10.0.0.2"));
    apis = {fabric.process("client", {"card0"}).api(), fabric.process("server", {"card1"}).api()};
  }
  Setup end(const Tool& tool, std::size_t which, const std::string& memory) {
    Setup out = setup(tool, "verbs");
    out.fabric.verbs.api = apis[which].get();
    out.memory = memory;
    return out;
  }
  ScriptedFabric fabric;
  std::vector<std::shared_ptr<const transport::verbs::VerbsApi>> apis;
};

class MemoryOfACard : public ::testing::TestWithParam<std::tuple<const Tool*, bool>> {
 protected:
  const Tool& tool = *std::get<0>(GetParam());
  const bool here_too = std::get<1>(GetParam());
};

TEST_P(MemoryOfACard, HasEveryByteThatWasMeasured) {
  Machines machines;
  Work work;
  work.iterations = 30;
  work.depth = 8;
  work.validate = true;
  work.sizes = {13, 4096, 300'000};
  if (tool.verb == Verb::send) work.sizes = {300'000};  // shorter ones are copied by the CPU
  std::atomic<std::uint64_t> looked = 0;
  Hooks hooks;
  hooks.before_check = [&](std::span<std::byte> bytes) { looked += bytes.size(); };
  const auto outcome = run_both(machines.end(tool, 0, here_too ? "emulated:H200" : "host"),
                                machines.end(tool, 1, "emulated:A100"), work, hooks, hooks);
  ASSERT_FALSE(outcome.client_error) << outcome.client_error->message();
  ASSERT_FALSE(outcome.server_error) << outcome.server_error->message();
  ASSERT_EQ(outcome.client.size(), work.sizes.size());
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < work.sizes.size(); ++i) {
    const Figures& figures = outcome.client[i];
    EXPECT_EQ(tool.latency ? figures.latency->samples : figures.bandwidth->messages, 30U);
    bytes += work.sizes[i];
  }
  EXPECT_GE(looked, 30 * bytes);
}

INSTANTIATE_TEST_SUITE_P(, MemoryOfACard,
                         ::testing::Combine(::testing::Values(&write_bw, &write_lat, &read_bw, &read_lat,
                                                              &send_bw),
                                            ::testing::Bool()),
                         [](const auto& kind) {
                           return std::string(std::get<0>(kind.param)->name) +
                                  (std::get<1>(kind.param) ? "_card_to_card" : "_host_to_card");
                         });

TEST(AtomicsInACard, ThatIsReachedThroughStagingAreRefusedWithTheReason) {
  Machines machines;
  Work work;
  work.sizes = {8};
  work.iterations = 10;
  const auto outcome =
      run_both(machines.end(atomic_lat, 0, "host"), machines.end(atomic_lat, 1, "emulated"), work);
  ASSERT_TRUE(outcome.client_error);
  EXPECT_EQ(outcome.client_error->code, ErrorCode::not_supported);
  EXPECT_THAT(outcome.client_error->message(), ::testing::HasSubstr("staging"));
}

}  // namespace
}  // namespace cenote::perf::test
