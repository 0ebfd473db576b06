// Whose memory it is: UCX may read a put's until the put is complete, or its endpoint has ended.
#include "tests/unit/transports/pair.h"

namespace cenote::transport::test {
namespace {

class UcxMemory : public Conformance {};
CENOTE_CONFORMANCE(UcxMemory);

constexpr std::size_t large = 16 << 20;  // more than a peer that does not look is given

// The peer reads on after the end: it may find what was put there, or nothing yet, but nothing of what its
// sender did with the memory afterwards.
TEST_P(UcxMemory, IsTheCallersAgainWhenHisEndpointHasEnded) {
  const Pair pair(GetParam());
  pair.settle();
  const auto memory = region(*pair.right, large);
  Bytes source = pattern(large, 1);
  const Bytes original = source;
  ASSERT_TRUE(pair.to_right->put(source, {&memory->key(), 0}, 0, 7));
  for (int i = 0; i < 1000; ++i) pair.left->progress();
  pair.to_right->close("enough");
  Completion done;
  ASSERT_EQ(pair.to_right->poll(std::span(&done, 1)), 1U);
  ASSERT_TRUE(done.error) << "the peer took all of it: nothing is tested";
  std::ranges::fill(source, std::byte{0xee});
  ASSERT_TRUE(pair.until([&] { return pair.to_left->failure().has_value(); }));
  const auto came = memory->bytes();
  std::size_t wrong = 0, arrived = 0;
  for (std::size_t i = 0; i < large; ++i) {
    if (came[i] == original[i]) ++arrived;
    if (came[i] != original[i] && came[i] != std::byte{0}) ++wrong;
  }
  EXPECT_EQ(wrong, 0U) << "bytes came that were never put, beside " << arrived << " that were";
}

TEST_P(UcxMemory, OfAnEndpointThatEndsCostsTheOthersNothing) {
  const Pair pair(GetParam());
  const auto other_there = pair.left->connect(pair.right->address(), "right", 1, soon());
  const auto other_back = pair.right->connect(pair.left->address(), "left", 1, soon());
  ASSERT_TRUE(other_there && other_back);
  pair.settle();
  const auto memory = region(*pair.right, large);
  const Bytes source = pattern(large, 2);
  ASSERT_TRUE(pair.to_right->put(source, {&memory->key(), 0}, 0, 7));
  for (int i = 0; i < 1000; ++i) pair.left->progress();
  pair.to_right->close("enough");
  const Bytes few = pattern(64, 3);
  ASSERT_TRUE((*other_there)->put(few, {&memory->key(), 0}, 5, 8));
  EXPECT_TRUE(pair.until([&] { return (*other_back)->signal(5) == 1 || (*other_there)->failure(); }));
  EXPECT_FALSE((*other_there)->failure()) << (*other_there)->failure()->message();
  EXPECT_EQ((*other_back)->signal(5), 1U);
}

}  // namespace
}  // namespace cenote::transport::test
