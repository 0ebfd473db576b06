#include "transports/fabric.h"

#include "tests/unit/transports/pair.h"

namespace cenote::transport::test {
namespace {

std::unique_ptr<Fabric> fabric(std::vector<std::string> transports) {
  FabricOptions options;
  options.transports = std::move(transports);
  return std::move(Fabric::create(options).value());
}

TEST(Fabric, TakesSharedMemoryOnOneHost) {
  const auto a = fabric({"shm", "tcp"}), b = fabric({"shm", "tcp"});
  EXPECT_EQ(a->choice(b->address()).value(), "shm: same boot id and namespaces");
  EXPECT_LE(a->address().size(), 1024U);
  auto link_a = a->connect(b->address(), "b", 0, soon()).value();
  auto link_b = b->connect(a->address(), "a", 0, soon()).value();
  EXPECT_EQ(link_a.endpoint->transport_name(), "shm");
  const auto memory = region(*link_b.transport, 64);
  const Bytes data = pattern(64, 1);
  ASSERT_TRUE(link_a.endpoint->put(data, {&memory->key(), 0}, 0, 0));
  const Deadline deadline = soon();
  while (link_b.endpoint->signal(0) == 0 && !deadline.passed()) {
    a->progress();
    b->progress();
  }
  EXPECT_TRUE(same(memory->bytes(), data));
}

TEST(Fabric, BothSidesChooseAlikeWhenTheyPreferDifferently) {
  for (int i = 0; i < 8; ++i) {
    const auto a = fabric({"shm", "tcp"}), b = fabric({"tcp", "shm"});
    EXPECT_EQ(a->choice(b->address()).value().substr(0, 3), b->choice(a->address()).value().substr(0, 3));
  }
}

TEST(Fabric, FallsBackAndSaysWhy) {
  const auto a = fabric({"shm", "tcp"}), b = fabric({"tcp"});
  EXPECT_EQ(a->choice(b->address()).value().substr(0, 3), "tcp");
  EXPECT_EQ(b->choice(a->address()).value().substr(0, 3), "tcp");
}

TEST(Fabric, SaysWhyThereIsNone) {
  const auto a = fabric({"shm"}), b = fabric({"tcp"});
  const auto none = a->choice(b->address());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::not_supported);
  FabricOptions unknown;
  unknown.transports = {"pigeon"};
  const auto refused = Fabric::create(unknown);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("pigeon"), std::string::npos);
}

}  // namespace
}  // namespace cenote::transport::test
