// A peer over UCX that knows the secret, passes the handshake, introduces itself, and then does what no
// transport would.
#pragma once

#include "tests/unit/transports/mallory.h"
#include "transports/meeting_place.h"
#include "transports/ucx/link.h"
#include "transports/ucx/worker.h"

namespace cenote::transport::test {

/// The hostile process's own UCX, one for all of its connections, as a transport has.
struct HostileUcx {
  explicit HostileUcx(const std::string& tls) {
    const auto opened = worker.open(
        tls, [](auto*, auto, auto) {}, nullptr);
    EXPECT_TRUE(opened) << opened.error().message();
  }
  ucx::Worker worker;
  std::shared_ptr<ucx::Link> link;
};

class UcxMallory {
 public:
  enum class Says : std::uint8_t { introduction = 1, farewell };
  /// Dials, proves itself, and has the victim's introduction; its own is still to be said.
  UcxMallory(Victim& victim, HostileUcx& ucx) : victim_(victim), ucx_(ucx) { join(); }
  void introduce() {
    Writer body;
    body.put(std::uint64_t{4711}).raw(ucx_.worker.address());
    say(static_cast<std::uint8_t>(Says::introduction), body.bytes());
  }
  /// A packet on the socket.
  void say(std::uint8_t type, std::span<const std::byte> body) {
    Writer packet;
    packet.put(static_cast<std::uint32_t>(body.size() + 1)).put(type).raw(body);
    say_raw(packet.bytes());
  }
  void say_raw(std::span<const std::byte> bytes) {
    ASSERT_EQ(::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT),
              static_cast<ssize_t>(bytes.size()));
  }
  /// The frame as it is, but for the session, and but for the sequence unless it is meant so.
  bool send(ucx::Frame frame, std::span<const std::byte> data = {}, bool own_sequence = false) {
    frame.session = session_;
    if (!own_sequence) frame.sequence = sequence_++;
    return until([&] {
      return ucx_.link->post(frame, data, ucx::Payload::copied) != 0 || victim_.endpoint->failure();
    });
  }
  /// False: UCX has no room for it now. Reads nothing.
  bool send_at_once(ucx::Frame frame) {
    frame.session = session_;
    frame.sequence = sequence_;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
    param.flags = UCP_AM_SEND_FLAG_EAGER;
    const auto* result = ucx_.worker.api().am_send_nbx(ucx_.link->get(), ucx::Worker::message_id, &frame,
                                                       sizeof frame, nullptr, 0, &param);
    if (result != nullptr) return false;
    ++sequence_;
    return true;
  }
  bool until(const std::function<bool()>& done) const {
    return victim_.until([&] {
      (void)ucx_.worker.progress();
      return done();
    });
  }
  void expect_failed(ErrorCode code, const std::string& what) const {
    ASSERT_TRUE(until([&] { return victim_.endpoint->failure().has_value(); })) << what << " was taken";
    victim_.expect_failed(code, what);
  }
  RemoteKey key() const { return RegionKey{who_.header.id, 1, 2, 4096}.pack(); }
  std::uint64_t session() const { return session_; }

 private:
  Bytes read(std::size_t count) const {
    Bytes bytes(count);
    std::size_t got = 0;
    EXPECT_TRUE(until([&] {
      const auto now = ::recv(fd_.get(), bytes.data() + got, count - got, MSG_DONTWAIT);
      if (now > 0) got += static_cast<std::size_t>(now);
      return got == count || now == 0;
    }));
    bytes.resize(got);
    return bytes;
  }
  void join() {
    const auto them = MeetingAddress::parse(victim_.transport().address(), "ucx").value();
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(them.place.port);
    ::inet_pton(AF_INET, them.place.host.c_str(), &to.sin_addr);
    fd_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    const auto challenge = unpack_challenge(read(Challenge::size));
    ASSERT_TRUE(challenge);
    say_raw(pack(who_.hello(them.header, *challenge)));
    victim_.connect(MeetingAddress{who_.header, {"127.0.0.1", 1}}.bytes());
    ASSERT_EQ(read(sizeof(Mac)).size(), sizeof(Mac));
    std::uint32_t size = 0;
    const Bytes head = read(sizeof size);
    ASSERT_EQ(head.size(), sizeof size);
    std::memcpy(&size, head.data(), sizeof size);
    const Bytes packet = read(size);
    Reader in(packet);
    ASSERT_EQ(in.get<Says>(), Says::introduction);
    session_ = in.get<std::uint64_t>();
    const auto rest = in.raw(in.left());
    Bytes address(rest.begin(), rest.end());
    address.resize(address.size() + 4096);
    if (!ucx_.link) ucx_.link = ucx::Link::open(ucx_.worker, address).value();
  }

  Victim& victim_;
  HostileUcx& ucx_;
  Identity who_{"ucx"};
  UniqueFd fd_;
  std::uint64_t session_ = 0;
  std::uint32_t sequence_ = 0;
};

}  // namespace cenote::transport::test
