// Which cards need a flush, and of which kind: the table, by the cards it is for.
#include "cuda/nic_writes.h"

#include <gmock/gmock.h>

namespace cenote::cuda {
namespace {

using testing::HasSubstr;

constexpr int ordering_none = 0, ordering_owner = 100, ordering_all = 200, host_flush = 1, memops_only = 2;

struct Card {
  const char* name;
  WritesFacts facts;
  WritesSeen expected;
};

class NicWrites : public testing::TestWithParam<Card> {};

TEST_P(NicWrites, AreSeenAfterWhatTheTableSays) {
  const WritesRule& rule = writes_rule(GetParam().facts);
  EXPECT_EQ(rule.seen, GetParam().expected) << in_words(rule);
  EXPECT_FALSE(rule.why.empty());
  EXPECT_FALSE(rule.source.empty());
}

INSTANTIATE_TEST_SUITE_P(
    Cards, NicWrites,
    testing::Values(
        Card{"PascalWithAnOldDriver", {6, 0, -1, -1}, WritesSeen::after_read_back},
        Card{"Pascal", {6, 0, ordering_none, host_flush}, WritesSeen::after_flush},
        Card{"VoltaWithAnOldDriver", {7, 0, -1, -1}, WritesSeen::after_read_back},
        Card{"Volta", {7, 0, ordering_none, host_flush}, WritesSeen::after_flush},
        Card{"VoltaAtPower9", {7, 0, ordering_none, host_flush, true}, WritesSeen::after_read_back},
        Card{"Turing", {7, 5, ordering_none, host_flush}, WritesSeen::after_flush},
        Card{"AmpereWithoutTheCall", {8, 0, ordering_none, 0}, WritesSeen::after_read_back},
        Card{"AmpereWithStreamFlushesOnly", {8, 0, ordering_none, memops_only}, WritesSeen::after_read_back},
        Card{"Ampere", {8, 0, ordering_none, host_flush}, WritesSeen::after_flush},
        Card{"AmpereThatOrders", {8, 0, ordering_owner, host_flush}, WritesSeen::at_once},
        Card{"Ada", {8, 9, ordering_none, host_flush}, WritesSeen::after_flush},
        Card{"HopperAsItsDriverSays", {9, 0, ordering_all, host_flush}, WritesSeen::at_once},
        Card{"HopperThatOrdersNothing", {9, 0, ordering_none, host_flush}, WritesSeen::after_flush},
        Card{"HopperThatSaysNothing", {9, 0, -1, -1}, WritesSeen::at_once},
        Card{"GraceHopper", {9, 0, ordering_all, host_flush, true}, WritesSeen::after_read_back},
        Card{"GraceHopperThatSaysNothing", {9, 0, -1, -1, true}, WritesSeen::after_read_back},
        Card{"Blackwell", {10, 0, ordering_all, host_flush}, WritesSeen::at_once},
        Card{"BlackwellWorkstation", {12, 0, ordering_none, host_flush}, WritesSeen::after_flush},
        Card{"GraceBlackwell", {10, 0, ordering_owner, host_flush, true}, WritesSeen::after_read_back},
        Card{"SomethingElse", {200, 0, ordering_owner, host_flush}, WritesSeen::after_read_back}),
    [](const auto& card) { return std::string(card.param.name); });

TEST(NicWritesRule, SaysItselfWithItsSource) {
  EXPECT_THAT(in_words(writes_rule({8, 0, ordering_none, host_flush})),
              testing::AllOf(HasSubstr("flush call: "), HasSubstr("cuFlushGPUDirectRDMAWrites")));
  EXPECT_THAT(in_words(writes_rule({9, 0, ordering_all, host_flush, true})), HasSubstr("read back: "));
}

}  // namespace
}  // namespace cenote::cuda
