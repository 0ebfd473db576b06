// SideChannel: the socket that two transports keep beside a data path which is not a socket (verbs). Over it
// they prove to each other who they are (handshake.h), agree on the data path, say farewell, and notice at
// once that the other's process has ended. Small framed messages; non-blocking; never trusted: what does not
// parse is a protocol_error.
#pragma once

#include <sys/socket.h>

#include <array>
#include <functional>
#include <string>

#include "runtime/unique_fd.h"
#include "transports/listening_core.h"
#include "transports/meeting_place.h"
#include "transports/socket.h"

namespace cenote::transport {

/// Who listens where.

/// Somebody at the door, with his socket and what he has said so far.
struct SideGuest : GuestBase {
  UniqueFd fd;
  Bytes got;
};

class SideChannel {
 public:
  static constexpr std::size_t max_body = 4096;
  struct Parties {
    AddressHeader self, peer;
    std::uint32_t channel = 0;
  };
  /// Takes a message; an error ends the channel.
  using Taker = std::function<Result<void>(std::uint8_t type, std::span<const std::byte> body)>;

  explicit SideChannel(Parties parties)
      : parties_(std::move(parties)),
        process_(parties_.self.host, parties_.peer.host, parties_.peer.process) {}

  /// The transport with the greater id dials, the other adopts a guest who has proved himself.
  [[nodiscard]] bool dials() const { return parties_.self.id > parties_.peer.id; }
  Result<void> dial(const MeetingPlace& to);
  Result<void> adopt(UniqueFd fd, const GuestBase& guest);

  /// Sends as soon as the socket takes it; kept until then. `body` is copied.
  void post(std::uint8_t type, std::span<const std::byte> body);
  /// True: something left. Errors: as read().
  Result<bool> flush();
  /// Reads what is there: the handshake's rest, then messages. True: something came. Errors: peer_failed
  /// (it ended), permission_denied (it could not prove itself), protocol_error, system_error, the taker's.
  Result<bool> read(const Taker& take);
  /// What a peer's end looks like whose connection somebody else holds. To be asked often. Errors:
  /// peer_failed.
  Result<void> look_at_process() {
    if (!process_.ended_long_ago()) return {};
    return fail(ErrorCode::peer_failed, "talk to peer", PeerProcess::ended_held);
  }
  /// Last words: what was posted goes out as far as the socket takes it now, then the socket is closed.
  void hang_up();

  [[nodiscard]] bool waiting() const { return stage_ == Stage::waiting; }
  [[nodiscard]] bool ready() const { return stage_ == Stage::ready; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] bool has_unsent() const { return sent_ < out_.size(); }

 private:
  enum class Stage : std::uint8_t { waiting, greeting, proving, ready };
  Result<bool> read_some();
  Result<void> shake_hands();
  Result<void> answer_challenge();
  Result<void> check_welcome();
  Result<void> parse(const Taker& take);

  Parties parties_;
  PeerProcess process_;
  Stage stage_ = Stage::waiting;
  UniqueFd fd_;
  Nonce acceptor_nonce_{};
  Hello hello_;
  Bytes in_, out_;
  std::size_t sent_ = 0;
};

/// The part of a core that lets guests in. `Address` has a `header`.
template <class Endpoint, class Address>
class SideCore : public ListeningCore<Endpoint, SideGuest, Address> {
 protected:
  bool invite(UniqueFd fd, std::uint64_t serial, SideGuest& guest) override {
    if (!this->watch(fd.get(), serial)) return false;
    const Bytes challenge = pack(Challenge{guest.nonce});
    const auto sent = ::send(fd.get(), challenge.data(), challenge.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    guest.fd = std::move(fd);
    return sent == static_cast<ssize_t>(challenge.size());
  }
  bool serve_guest(std::uint64_t serial) override {
    const auto found = this->guests_.find(serial);
    SideGuest& guest = found->second;
    std::array<std::byte, Hello::size> buffer;
    const std::size_t room = guest.proved ? 1 : Hello::size - guest.got.size();
    const auto count = ::recv(guest.fd.get(), buffer.data(), room, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    // After its proof a guest has nothing to say until it is welcome.
    if (count <= 0 || guest.proved) {
      this->guests_.erase(found);
      return false;
    }
    guest.got.insert(guest.got.end(), buffer.begin(), buffer.begin() + count);
    return guest.got.size() < Hello::size || this->meet(serial, unpack_hello(guest.got));
  }
};

}  // namespace cenote::transport
