// Peers that know the secret, pass the handshake, and then do what no transport would.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <limits>

#include "runtime/unique_fd.h"
#include "tests/unit/transports/pair.h"
#include "transports/handshake.h"
#include "transports/region_key.h"
#include "transports/shm/control_channel.h"
#include "transports/shm/layout.h"
#include "transports/shm/mapping.h"
#include "transports/shm/shm.h"
#include "transports/tcp/frame.h"
#include "transports/tcp/note.h"
#include "transports/tcp/tcp.h"

namespace cenote::transport::test {

/// The victim: a transport with memory, an endpoint to the hostile peer, and an honest friend.
struct Victim {
  explicit Victim(const Kind& kind) : pair(kind), memory(region(*pair.right, 4096)) { pair.settle(); }
  Transport& transport() const { return *pair.right; }
  void connect(const Bytes& address) {
    auto made = transport().connect(address, "mallory", 0, soon());
    ASSERT_TRUE(made) << made.error().message();
    endpoint = std::move(*made);
  }
  bool until(const std::function<bool()>& done) const { return drive({pair.right.get()}, done); }
  void expect_failed(ErrorCode code, const std::string& what) const {
    ASSERT_TRUE(until([&] { return endpoint->failure().has_value(); })) << what << " was taken";
    EXPECT_EQ(endpoint->failure()->code, code) << what << ": " << endpoint->failure()->message();
    EXPECT_EQ(endpoint->failure()->peer, "mallory") << what;
  }
  void expect_others_well() {
    const std::uint64_t before = pair.to_left->signal(5);
    ASSERT_TRUE(pair.to_right->put({}, {}, 5, 0));
    ASSERT_TRUE(pair.until([&] { return pair.to_left->signal(5) == before + 1; }));
    EXPECT_FALSE(pair.to_left->failure());
  }
  RegionKey key() const { return *RegionKey::unpack(memory->key()); }

  Pair pair;
  std::unique_ptr<Region> memory;
  std::unique_ptr<Endpoint> endpoint;
};

/// Who it is: it has the greatest id, so it dials. It listens, but answers nobody.
struct Identity {
  explicit Identity(std::string kind) : header(AddressHeader::make(std::move(kind)).value()) {
    header.id = std::numeric_limits<std::uint64_t>::max();
  }
  AddressHeader header;
  Hello hello(const AddressHeader& acceptor, const Challenge& challenge) const {
    Hello message;
    message.dialer = header.id;
    message.proof = proof_of(Side::dialer, acceptor.secret, challenge.nonce, message, acceptor.id);
    return message;
  }
};

/// A blocking socket to the victim's listener.
inline UniqueFd dial_tcp(const Victim& victim) {
  Reader in(victim.transport().address());
  (void)AddressHeader::unpack(in, "tcp");
  const std::string host = in.text();
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(in.get<std::uint16_t>());
  ::inet_pton(AF_INET, host.c_str(), &to.sin_addr);
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) fd.reset();
  return fd;
}

class TcpMallory {
 public:
  /// Dials, proves itself, and becomes an endpoint of the victim's.
  explicit TcpMallory(Victim& victim) { join(victim); }
  /// As much as the socket takes.
  std::size_t write(std::span<const std::byte> bytes) const {
    const auto sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent < 0 ? 0 : static_cast<std::size_t>(sent);
  }
  Bytes read(const Victim& victim, std::size_t count) const {
    Bytes bytes(count);
    std::size_t got = 0;
    EXPECT_TRUE(victim.until([&] {
      const auto now = ::recv(fd_.get(), bytes.data() + got, count - got, MSG_DONTWAIT);
      if (now > 0) got += static_cast<std::size_t>(now);
      return got == count || now == 0;
    }));
    bytes.resize(got);
    return bytes;
  }
  RemoteKey key() const { return RegionKey{who_.header.id, 1, 2, 4096}.pack(); }

 private:
  void join(Victim& victim) {
    Reader in(victim.transport().address());
    const auto them = AddressHeader::unpack(in, "tcp").value();
    fd_ = dial_tcp(victim);
    ASSERT_TRUE(fd_);
    const auto challenge = unpack_challenge(read(victim, Challenge::size));
    ASSERT_TRUE(challenge);
    write(pack(who_.hello(them, *challenge)));
    Writer address;
    who_.header.pack(address);
    address.text("127.0.0.1").put(std::uint16_t{1});
    victim.connect(address.take());
    ASSERT_EQ(read(victim, sizeof(Mac)).size(), sizeof(Mac));
  }

  Identity who_{"tcp"};
  UniqueFd fd_;
};

class ShmMallory {
 public:
  /// Dials, proves itself, and has the victim's welcome; its own memory is still to be sent.
  explicit ShmMallory(Victim& victim) { join(victim); }
  /// Sends good memory: the connection stands.
  void finish(const Victim& victim) {
    const int fds[] = {own_inbox_.fd.get(), own_door_.fd.get()};
    ASSERT_TRUE(control.send(shm::PacketType::resources, {}, fds));
    for (int i = 0; i < 4; ++i) victim.transport().progress();
    ASSERT_FALSE(victim.endpoint->failure()) << victim.endpoint->failure()->message();
  }
  shm::Packet read(const Victim& victim, shm::PacketType type) {
    shm::Packet packet;
    EXPECT_TRUE(victim.until([&] {
      auto got = control.receive();
      if (!got) return true;
      if (!*got || (*got)->type != type) return false;
      packet = std::move(**got);
      return true;
    }));
    return packet;
  }
  /// A packet of any size with any descriptors.
  void write_raw(shm::PacketType type, std::size_t body, const std::vector<int>& fds) const {
    Bytes bytes(1 + body);
    bytes[0] = static_cast<std::byte>(type);
    iovec part{bytes.data(), bytes.size()};
    alignas(cmsghdr) char space[CMSG_SPACE(16 * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (!fds.empty()) {
      header.msg_control = space;
      header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* c = CMSG_FIRSTHDR(&header);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
    }
    ASSERT_GT(::sendmsg(control.fd(), &header, MSG_NOSIGNAL), 0);
  }
  /// The victim's, which a peer may write to.
  shm::Inbox& inbox() const { return *static_cast<shm::Inbox*>(inbox_.base()); }
  int good_inbox() const { return own_inbox_.fd.get(); }
  int good_door() const { return own_door_.fd.get(); }
  shm::Inbox& own_inbox() const { return *static_cast<shm::Inbox*>(own_inbox_.mapping.base()); }
  RemoteKey key() const { return RegionKey{who_.header.id, 1, 2, 4096}.pack(); }

  shm::ControlChannel control;

 private:
  void join(Victim& victim) {
    Reader in(victim.transport().address());
    const auto them = AddressHeader::unpack(in, "shm").value();
    const std::string theirs = in.text();
    const std::string mine = "cenote-test-" + std::to_string(::getpid()) + "-" +
                             std::to_string(reinterpret_cast<std::uintptr_t>(this));
    listener_ = socket();
    const auto [here, here_size] = name(mine);
    ASSERT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&here), here_size), 0);
    ASSERT_EQ(::listen(listener_.get(), 64), 0);
    UniqueFd fd = socket();
    const auto [there, there_size] = name(theirs);
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&there), there_size), 0);
    control = shm::ControlChannel(std::move(fd));
    const auto challenge = unpack_challenge(read(victim, shm::PacketType::challenge).body);
    ASSERT_TRUE(challenge);
    ASSERT_TRUE(control.send(shm::PacketType::hello, pack(who_.hello(them, *challenge))));
    Writer address;
    who_.header.pack(address);
    address.text(mine);
    victim.connect(address.take());
    shm::Packet welcome = read(victim, shm::PacketType::welcome);
    ASSERT_EQ(welcome.fds.size(), 2U);
    inbox_ = shm::import(welcome.fds[0], shm::inbox_size, shm::PeerAccess::read_write).value();
    own_inbox_ = shm::create("test-inbox", shm::inbox_size, shm::PeerAccess::read_write).value();
    own_door_ = shm::create("test-door", shm::page_size, shm::PeerAccess::read_only).value();
  }

  static UniqueFd socket() { return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }
  static std::pair<sockaddr_un, socklen_t> name(const std::string& text) {
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    std::memcpy(at.sun_path + 1, text.data(), text.size());
    return {at, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size())};
  }

  Identity who_{"shm"};
  UniqueFd listener_;
  shm::Mapping inbox_;
  shm::SharedMemory own_inbox_, own_door_;
};

}  // namespace cenote::transport::test
