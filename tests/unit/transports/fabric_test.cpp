#include "transports/fabric.h"

#include <algorithm>

#include "runtime/host_identity.h"
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

/// As if another machine had published it: the same address, another kernel.
Bytes of_other_host(Bytes address) {
  const auto id = HostIdentity::read().value().boot_id;
  const auto is_char = [](std::byte byte, char c) { return byte == static_cast<std::byte>(c); };
  auto at = address.begin();
  while ((at = std::search(at, address.end(), id.begin(), id.end(), is_char)) != address.end())
    *at++ = static_cast<std::byte>(id.front() == '0' ? '1' : '0');
  return address;
}

TEST(Fabric, NamesTheSettingThatLetsAnotherHostBeReached) {
  const auto a = fabric({"shm", "tcp"}), b = fabric({"shm", "tcp"});
  const auto there = of_other_host(b->address());
  const auto none = a->choice(there);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().cause.find("shm refused: "), std::string::npos) << none.error().cause;
  EXPECT_NE(none.error().cause.find("tcp refused: "), std::string::npos) << none.error().cause;
  EXPECT_NE(none.error().remedy.find("tcp.host"), std::string::npos) << none.error().message();
  const auto link = a->connect(there, "b", 0, soon());
  ASSERT_FALSE(link);
  EXPECT_NE(link.error().remedy.find("tcp.host"), std::string::npos) << link.error().message();
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
