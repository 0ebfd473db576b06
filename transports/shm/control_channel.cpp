#include "transports/shm/control_channel.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace cenote::transport::shm {
namespace {

constexpr std::size_t max_unsent = 4096;

using FdBuffer = std::array<char, CMSG_SPACE(ControlChannel::max_fds * sizeof(int))>;

Error gone(const char* cause) { return Error{ErrorCode::peer_failed, "talk to peer", cause}; }

void take_fds(msghdr& header, std::vector<UniqueFd>& out) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      out.emplace_back(fd);
    }
  }
}

}  // namespace

Result<bool> ControlChannel::write(const Packet& packet) {
  std::byte type{static_cast<std::uint8_t>(packet.type)};
  iovec parts[2] = {{&type, 1}, {const_cast<std::byte*>(packet.body.data()), packet.body.size()}};
  msghdr header{};
  header.msg_iov = parts;
  header.msg_iovlen = 2;
  alignas(cmsghdr) FdBuffer space{};
  if (!packet.fds.empty()) {
    header.msg_control = space.data();
    header.msg_controllen = CMSG_SPACE(packet.fds.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(packet.fds.size() * sizeof(int));
    std::array<int, max_fds> fds{};
    for (std::size_t i = 0; i < std::min(packet.fds.size(), max_fds); ++i) fds[i] = packet.fds[i].get();
    std::memcpy(space.data() + CMSG_LEN(0), fds.data(), sizeof fds);
  }
  while (::sendmsg(fd_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    full_ = errno == EAGAIN;
    if (full_ || errno == ENOBUFS || errno == ETOOMANYREFS) return false;
    if (errno == EPIPE || errno == ECONNRESET)
      return fail(gone("it closed its end: process ended or endpoint destroyed"));
    return fail(cenote::system_error("send to peer over a unix socket", errno));
  }
  return true;
}

Result<void> ControlChannel::send(PacketType type, std::span<const std::byte> body,
                                  std::span<const int> fds) {
  Packet packet;
  packet.type = type;
  packet.body.assign(body.begin(),
                     body.begin() + static_cast<std::ptrdiff_t>(std::min(body.size(), max_body)));
  for (const int fd : fds) {
    packet.fds.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!packet.fds.back()) return fail(cenote::system_error("copy a descriptor for the peer", errno));
  }
  if (unsent_.empty()) {
    CENOTE_ASSIGN(const bool sent, write(packet));
    if (sent) return {};
  }
  if (unsent_.size() >= max_unsent)
    return fail(ErrorCode::resource_exhausted, "talk to peer", "it has not read its socket for 4096 packets");
  if (!packet.fds.empty()) ++unsent_with_fds_;
  unsent_.push(std::move(packet));
  return {};
}

void ControlChannel::wake() {
  const auto type = static_cast<std::uint8_t>(PacketType::wake);
  (void)::send(fd_.get(), &type, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

Result<void> ControlChannel::flush() {
  while (!unsent_.empty()) {
    CENOTE_ASSIGN(const bool sent, write(unsent_.front()));
    if (!sent) break;
    if (!unsent_.pop().fds.empty()) --unsent_with_fds_;
  }
  return {};
}

Result<std::optional<Packet>> ControlChannel::receive() {
  std::array<std::byte, 1 + max_body> buffer;
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) FdBuffer space{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = space.data();
  header.msg_controllen = space.size();
  ssize_t count = -1;
  do {
    count = ::recvmsg(fd_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // The kernel says once, before what was sent, that the peer left something unread when it closed.
  } while (count < 0 && (errno == EINTR || (errno == ECONNRESET && !std::exchange(told_reset_, true))));
  if (count < 0) {
    if (errno == EAGAIN) return std::nullopt;
    if (errno == ECONNRESET) return fail(gone("it closed its end: process ended or endpoint destroyed"));
    return fail(cenote::system_error("receive from peer over a unix socket", errno));
  }
  Packet packet;
  take_fds(header, packet.fds);
  if (count == 0) return fail(gone("it closed its end: process ended or endpoint destroyed"));
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
    return fail(ErrorCode::protocol_error, "talk to peer", "it sent a packet that is too long");
  packet.type = static_cast<PacketType>(buffer[0]);
  packet.body.assign(buffer.begin() + 1, buffer.begin() + count);
  return packet;
}

}  // namespace cenote::transport::shm
