// ListeningCore: what the transports that meet their peers at a listener share: who waits at the door, the
// endpoints, and what is watched. A transport's core derives from it; it lives as long as the transport and
// everything made from it, so these may be destroyed in any order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/log.h"
#include "runtime/process.h"
#include "transports/handshake.h"
#include "transports/reception.h"

namespace cenote::transport {

/// Somebody who dialed and is not (yet) an endpoint's: before his proof, or before connect() was called for
/// him.
struct GuestBase {
  Nonce nonce{};
  Clock::time_point since;
  bool proved = false;
  Hello hello;
};

inline constexpr std::size_t max_unproved = 256;
inline constexpr auto proof_time = std::chrono::seconds(10);

/// `Guest` is a GuestBase with its connection; `Address` has a `header`.
template <class Endpoint, class Guest, class Address>
class ListeningCore {
 public:
  virtual ~ListeningCore() = default;

  void add(Endpoint* endpoint) { endpoints.push_back(endpoint); }
  Result<void> watch(int fd, std::uint64_t serial, bool for_writing = false, bool again = false) {
    return reception.watch(fd, serial, for_writing, again);
  }
  /// A guest who proved to be `dialer`, asking for `channel`; it is handed over.
  bool take_guest(std::uint64_t dialer, std::uint32_t channel, std::uint64_t& serial, Guest& out) {
    const auto at = std::find_if(guests_.begin(), guests_.end(), [&](const auto& entry) {
      const Guest& guest = entry.second;
      return guest.proved && guest.hello.dialer == dialer && guest.hello.channel == channel;
    });
    if (at == guests_.end()) return false;
    serial = at->first;
    out = std::move(at->second);
    guests_.erase(at);
    return true;
  }
  void log_debug(const std::string& text) const {
    if (log != nullptr) log->debug("{} {}", self.header.kind, text);
  }
  /// What the people who run the machine want to hear of, though nobody's operation has failed.
  void log_warning(const std::string& text) const {
    if (log != nullptr) log->warn("{} {}", self.header.kind, text);
  }
  /// Fails every endpoint; nothing is served any more.
  void shut() {
    for (Endpoint* endpoint : endpoints) endpoint->close("its transport was destroyed");
    guests_.clear();
    reception.close();
  }

  Logger* log = nullptr;
  Address self;
  Bytes address;
  Reception reception;
  std::vector<Endpoint*> endpoints;
  std::uint64_t next_region = 1;
  bool happened = false;  ///< since the last progress()
  bool look_soon = true;  ///< at the sockets, at the next progress()

 protected:
  using Guests = std::unordered_map<std::uint64_t, Guest>;

  /// Takes in who has just dialed: watches the connection, sends the challenge. False: it cannot.
  virtual bool invite(UniqueFd fd, std::uint64_t serial, Guest& guest) = 0;
  /// Reads what a guest has sent. True: something came, and the guest is still there.
  virtual bool serve_guest(std::uint64_t serial) = 0;

  void accept_guests() {
    while (UniqueFd fd = reception.accept(has_room())) {
      Guest guest;
      guest.since = Clock::now();
      const std::uint64_t serial = reception.new_serial();
      if (random_bytes(std::span<std::uint8_t>(guest.nonce)) && invite(std::move(fd), serial, guest))
        guests_.emplace(serial, std::move(guest));
    }
  }
  /// A guest has said hello: it goes to the endpoint that waits for it, or waits for connect(). nullopt: it
  /// spoke no hello. True: it is still there.
  bool meet(std::uint64_t serial, const std::optional<Hello>& hello) {
    Guest& guest = guests_.find(serial)->second;
    if (!hello || !equal_in_constant_time(hello->proof, proof_of(Side::dialer, self.header.secret,
                                                                 guest.nonce, *hello, self.header.id))) {
      log_debug(hello ? "dropped who dialed: it does not know this side's secret"
                      : "dropped who dialed: it speaks another protocol");
      guests_.erase(serial);
      return false;
    }
    guest.proved = true;
    guest.hello = *hello;
    const auto waiting = std::find_if(endpoints.begin(), endpoints.end(), [&](const Endpoint* endpoint) {
      return endpoint->waits_for_guest() && endpoint->is(hello->dialer, hello->channel);
    });
    if (waiting == endpoints.end()) return true;
    Guest taken = std::move(guest);
    guests_.erase(serial);
    (*waiting)->adopt(serial, std::move(taken));
    return false;
  }
  /// Looks at the sockets: guests are served here, the rest goes to `event`.
  bool look_around(const std::function<void(std::uint64_t)>& event) {
    look_soon = false;
    const bool any = reception.look([this] { accept_guests(); },
                                    [&](std::uint64_t serial) {
                                      if (guests_.contains(serial)) {
                                        (void)serve_guest(serial);
                                      } else {
                                        event(serial);
                                      }
                                    });
    if (!guests_.empty()) drop_stale_guests();
    return any;
  }
  [[nodiscard]] Endpoint* endpoint_of(std::uint64_t serial) const {
    const auto found = std::find_if(endpoints.begin(), endpoints.end(),
                                    [&](const Endpoint* e) { return e->serial() == serial; });
    return found == endpoints.end() ? nullptr : *found;
  }

  Guests guests_;

 private:
  [[nodiscard]] bool has_room() const {
    const auto unproved =
        std::count_if(guests_.begin(), guests_.end(), [](const auto& guest) { return !guest.second.proved; });
    return static_cast<std::size_t>(unproved) < max_unproved;
  }
  void drop_stale_guests() {
    const auto now = Clock::now();
    std::erase_if(guests_, [&](const auto& guest) {
      return !guest.second.proved && now - guest.second.since > proof_time;
    });
  }
};

}  // namespace cenote::transport
