// The demo with nothing but verbs between its processes: gradients among the workers, commands of the client.
#include <gmock/gmock.h>

#include "tests/multi/agent/demo_process.h"
#include "tests/vm/environment.h"

namespace cenote::test::vm {
namespace {

using Demo = VmTest;

// One epoch of a narrow network, for the processor is emulated: what is learnt is not the point here.
TEST_F(Demo, TrainsToTheSameBitsOverVerbsAlone) {
  pool::testing::DemoProcess demo({"--set", "verbs.timeout=" + std::to_string(patient_timeout),
                                   "--transports", "verbs", "--epochs", "1", "--hidden", "16"});
  EXPECT_EQ(demo.end(), 1) << "one epoch is too few";
  EXPECT_THAT(demo.error(), ::testing::HasSubstr("less than 0.95"));
  const auto figures = demo.figures();
  ASSERT_TRUE(figures.is_object()) << demo.error();
  EXPECT_EQ(figures["weights_bit_equal"], true);
  EXPECT_THAT(figures["client_transports"], ::testing::ElementsAre("verbs", "verbs", "verbs"));
  std::uint64_t exchanged = 0;
  for (const auto& pair : figures["pairs"]) {
    EXPECT_EQ(pair["transport"], "verbs") << pair;
    exchanged += pair["bytes"].get<std::uint64_t>();
  }
  const std::uint64_t gradients =
      figures["steps"].get<std::uint64_t>() * figures["gradient_bytes"].get<std::uint64_t>();
  EXPECT_GE(exchanged, 2 * 3 * gradients) << "2 (n - 1) / n of it from each of n ranks";
}

}  // namespace
}  // namespace cenote::test::vm
