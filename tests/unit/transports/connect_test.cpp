// How endpoints come to be, and who is refused.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "runtime/unique_fd.h"
#include "tests/unit/transports/pair.h"
#include "transports/handshake.h"

namespace cenote::transport::test {
namespace {

class Connect : public Conformance {};
CENOTE_CONFORMANCE(Connect);

/// An address with one field changed. Layout: kind, id, secret, host.
Bytes with_other_secret(const Bytes& address, const std::string& kind) {
  Bytes changed = address;
  changed[4 + kind.size() + 8] ^= std::byte{1};
  return changed;
}
Bytes of_other_host(const Bytes& address, const std::string& kind, bool other_namespace) {
  Reader in(address);
  auto header = AddressHeader::unpack(in, kind).value();
  if (other_namespace) {
    header.host.network_space ^= 1;
  } else {
    header.host.boot_id[0] = header.host.boot_id[0] == '0' ? '1' : '0';
  }
  Writer out;
  header.pack(out);
  out.raw(in.raw(in.left()));
  return out.take();
}

TEST_P(Connect, EitherSideMayBeFirst) {
  for (const bool left_first : {true, false}) {
    const auto left = make(GetParam()), right = make(GetParam());
    auto* first = left_first ? left.get() : right.get();
    auto* second = left_first ? right.get() : left.get();
    const auto early = first->connect(second->address(), "second", 4, soon());
    ASSERT_TRUE(early);
    for (int i = 0; i < 50; ++i) first->progress(), second->progress();
    ASSERT_TRUE((*early)->put({}, {}, 0, 1));  // kept until the connection stands
    ASSERT_TRUE((*early)->send(pattern(10, 1)));
    const auto late = second->connect(first->address(), "first", 4, soon());
    ASSERT_TRUE(late);
    ASSERT_TRUE(drive({first, second}, [&] { return (*late)->signal(0) == 1; }));
    Bytes buffer(10);
    ASSERT_TRUE(drive({first, second}, [&] { return (*late)->receive(buffer).value().has_value(); }));
    EXPECT_TRUE(same(buffer, pattern(10, 1)));
  }
}

TEST_P(Connect, BothAtOnceFromTwoThreads) {
  const auto left = make(GetParam()), right = make(GetParam());
  const auto run = [](Transport& mine, const Bytes& other, std::uint64_t& got) {
    auto endpoint = mine.connect(other, "peer", 0, soon());
    if (!endpoint) return;
    (void)(*endpoint)->put({}, {}, 9, 0);
    Transport* all[] = {&mine};
    while ((*endpoint)->signal(9) == 0 && wait(all, soon(), nullptr, "test")) {
    }
    got = (*endpoint)->signal(9);
    // The other side may still wait for what this side has not sent out yet.
    for (Completion done; (*endpoint)->poll(std::span(&done, 1)) == 0 && !(*endpoint)->failure();)
      mine.progress();
  };
  std::uint64_t got_left = 0, got_right = 0;
  std::thread other([&] { run(*right, left->address(), got_right); });
  run(*left, right->address(), got_left);
  other.join();
  EXPECT_EQ(got_left, 1U);
  EXPECT_EQ(got_right, 1U);
}

TEST_P(Connect, ChannelsAreKeptApart) {
  const auto left = make(GetParam()), right = make(GetParam());
  std::vector<std::unique_ptr<Endpoint>> ls, rs;
  for (std::uint32_t channel = 0; channel < 5; ++channel) {
    ls.push_back(left->connect(right->address(), "right", channel, soon()).value());
    rs.insert(rs.begin(), right->connect(left->address(), "left", 4 - channel, soon()).value());
  }
  std::reverse(rs.begin(), rs.end());
  for (std::uint32_t channel = 0; channel < 5; ++channel)
    for (std::uint32_t i = 0; i <= channel; ++i) ASSERT_TRUE(ls[channel]->put({}, {}, 1, 0));
  EXPECT_TRUE(drive({left.get(), right.get()}, [&] {
    std::uint64_t right_ones = 0;
    for (std::uint32_t made = 0; made < 5; ++made) right_ones += rs[made]->signal(1) == 5 - made;
    return right_ones == 5;
  }));
}

TEST_P(Connect, SameChannelTwiceAndOwnAddressAreRefused) {
  const Pair pair(GetParam());
  const auto twice = pair.left->connect(pair.right->address(), "right", 0, soon());
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().code, ErrorCode::already_exists);
  const auto self = pair.left->connect(pair.left->address(), "self", 1, soon());
  ASSERT_FALSE(self);
  EXPECT_EQ(self.error().code, ErrorCode::invalid_argument);
}

TEST_P(Connect, ManyEndpointsOfOneTransportWorkTogether) {
  const auto hub = make(GetParam());
  struct Spoke {
    std::unique_ptr<Transport> transport;
    std::unique_ptr<Endpoint> out, in;
  };
  std::vector<Spoke> spokes(24);
  std::vector<Transport*> all{hub.get()};
  for (auto& spoke : spokes) {
    spoke.transport = make(GetParam());
    spoke.out = spoke.transport->connect(hub->address(), "hub", 0, soon()).value();
    spoke.in = hub->connect(spoke.transport->address(), "spoke", 0, soon()).value();
    all.push_back(spoke.transport.get());
  }
  for (auto& spoke : spokes) {
    ASSERT_TRUE(spoke.out->send(pattern(20, 1)));
    ASSERT_TRUE(spoke.in->put({}, {}, 7, 0));
  }
  EXPECT_TRUE(drive(all, [&] {
    return std::all_of(spokes.begin(), spokes.end(), [](auto& s) { return s.out->signal(7) == 1; });
  }));
  Bytes buffer(20);
  for (auto& spoke : spokes)
    EXPECT_TRUE(drive(all, [&] { return spoke.in->receive(buffer).value().has_value(); }));
}

TEST_P(Connect, WrongSecretNeverConnects) {
  const auto left = make(GetParam()), right = make(GetParam());
  const auto name = GetParam().transport();
  const auto deadline = Deadline::in(300ms);
  auto l = left->connect(with_other_secret(right->address(), name), "right", 0, deadline);
  auto r = right->connect(with_other_secret(left->address(), name), "left", 0, deadline);
  ASSERT_TRUE(l && r);
  ASSERT_TRUE((*l)->put({}, {}, 0, 5));
  EXPECT_TRUE(drive({left.get(), right.get()}, [&] { return (*l)->failure() && (*r)->failure(); }));
  EXPECT_EQ((*r)->signal(0), 0U);
  Completion done;
  ASSERT_EQ((*l)->poll(std::span(&done, 1)), 1U);
  EXPECT_EQ(done.tag, 5U);
  EXPECT_EQ((*l)->failure()->peer, "right");
}

TEST_P(Connect, PeerThatNeverComesIsNamedAtTheDeadline) {
  const auto left = make(GetParam()), right = make(GetParam());
  const auto l = left->connect(right->address(), "rank 3", 0, Deadline::in(50ms));
  ASSERT_TRUE(l);
  EXPECT_TRUE(drive({left.get(), right.get()}, [&] { return (*l)->failure().has_value(); }));
  EXPECT_EQ((*l)->failure()->code, ErrorCode::deadline_exceeded);
  EXPECT_EQ((*l)->failure()->peer, "rank 3");
}

TEST_P(Connect, PeerThatIsGoneFailsTheEndpoint) {
  auto left = make(GetParam()), right = make(GetParam());
  const auto id = [&](const Transport& transport) {
    Reader in(transport.address());
    return AddressHeader::unpack(in, GetParam().transport()).value().id;
  };
  if (id(*left) < id(*right)) std::swap(left, right);  // only the one with the greater id dials
  const Bytes gone = right->address();
  right.reset();
  const auto l = left->connect(gone, "right", 0, soon());
  if (!l) {
    EXPECT_EQ(l.error().code, ErrorCode::peer_failed) << l.error().message();
    return;
  }
  EXPECT_TRUE(drive({left.get()}, [&] { return (*l)->failure().has_value(); }));
  EXPECT_EQ((*l)->failure()->code, ErrorCode::peer_failed) << (*l)->failure()->message();
}

TEST_P(Connect, OtherHostAndOtherNamespaceAreRefusedWithTheReason) {
  const auto left = make(GetParam()), right = make(GetParam());
  EXPECT_TRUE(left->reachable(right->address()));
  const auto far = left->reachable(of_other_host(right->address(), GetParam().transport(), false));
  ASSERT_FALSE(far);
  EXPECT_EQ(far.error().code, ErrorCode::not_supported);
  EXPECT_NE(far.error().cause.find("host"), std::string::npos) << far.error().cause;
  const auto walled = left->reachable(of_other_host(right->address(), GetParam().transport(), true));
  ASSERT_FALSE(walled);
  EXPECT_NE(walled.error().cause.find("namespace"), std::string::npos) << walled.error().cause;
}

TEST_P(Connect, NonsenseAsAddressIsRefused) {
  const auto left = make(GetParam());
  for (const Bytes& bytes : {Bytes{}, Bytes(5), pattern(200, 3)}) {
    const auto refused = left->connect(bytes, "nobody", 0, soon());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  }
  Bytes cut = make(GetParam())->address();
  cut.pop_back();
  EXPECT_FALSE(left->reachable(cut));
}

TEST_P(Connect, GarbageAtTheListenerHarmsNobody) {
  const auto left = make(GetParam()), right = make(GetParam());
  // Strangers connect to the listener and write noise.
  std::vector<UniqueFd> strangers;
  Reader in(right->address());
  ASSERT_TRUE(AddressHeader::unpack(in, GetParam().transport()));
  const std::string where = in.text();
  for (std::uint64_t i = 0; i < 20; ++i) {
    UniqueFd fd;
    if (GetParam().transport() == "shm") {
      fd.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      sockaddr_un to{};
      to.sun_family = AF_UNIX;
      std::memcpy(to.sun_path + 1, where.data(), where.size());
      ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to),
                          static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + where.size())),
                0);
    } else {
      fd.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      Reader port(right->address());
      (void)AddressHeader::unpack(port, GetParam().transport());
      (void)port.text();
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_port = htons(port.get<std::uint16_t>());
      ::inet_pton(AF_INET, where.c_str(), &to.sin_addr);
      ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    }
    const Bytes noise = pattern(i * 7, i);
    (void)!::send(fd.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    if (i % 2 == 0) strangers.push_back(std::move(fd));
    right->progress();
  }
  const auto l = left->connect(right->address(), "right", 0, soon()).value();
  const auto r = right->connect(left->address(), "left", 0, soon()).value();
  ASSERT_TRUE(l->put({}, {}, 0, 0));
  EXPECT_TRUE(drive({left.get(), right.get()}, [&] { return r->signal(0) == 1; }));
}

TEST(Handshake, SipHashAgreesWithItsReference) {
  // The first vectors of the reference implementation's vectors_sip128: key 00..0f, input 00, 01, ...
  Secret key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::uint8_t>(i);
  const Mac of_nothing{0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6,
                       0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93};
  const Mac of_one{0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44,
                   0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45};
  EXPECT_EQ(siphash128(key, {}), of_nothing);
  const Bytes zero(1);
  EXPECT_EQ(siphash128(key, zero), of_one);
}

}  // namespace
}  // namespace cenote::transport::test
