// Reception: where a transport meets who dials, and where it sleeps: its listener, the end of interrupt(),
// and one epoll descriptor over these and over the sockets of its endpoints.
//
// Who cannot be let in (too many are there already, no descriptor is left) stays with the listener, which is
// not looked at for a while then: it would keep a sleeper awake for nothing.
//
// Not thread-safe but for interrupt().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "runtime/deadline.h"
#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace cenote::transport {

class Reception {
 public:
  /// Errors: system_error.
  Result<void> open(UniqueFd listener, const std::string& stage);
  /// Watches a socket; `serial` comes back with its events. `again`: it was watched before.
  Result<void> watch(int fd, std::uint64_t serial, bool for_writing = false, bool again = false);
  [[nodiscard]] std::uint64_t new_serial() { return next_serial_++; }
  [[nodiscard]] int sleep_fd() const { return epoll_.get(); }
  [[nodiscard]] bool is_open() const { return static_cast<bool>(listener_); }
  /// Nobody can dial any more.
  void close() { listener_.reset(); }

  /// The next who dialed, non-blocking; none when there is nobody, or no `room`.
  UniqueFd accept(bool room);

  /// Asks epoll, without waiting. `dialed`: somebody waits to be accepted; `event`: something happened on
  /// what has this serial. True: one of them was called.
  bool look(const std::function<void()>& dialed, const std::function<void(std::uint64_t)>& event);
  /// For a progress() without a reason to look: whether it is time all the same, which it is a thousand
  /// times a second. The clock is read rarely: it costs as much as a message.
  [[nodiscard]] bool due() { return --turns_left_ == 0 && late(); }

  void interrupt();
  [[nodiscard]] bool interrupted() const { return interrupted_.load(std::memory_order_relaxed); }
  void forget_interrupt() { interrupted_.store(false, std::memory_order_relaxed); }

 private:
  bool late();
  void heed(bool listener);

  UniqueFd epoll_, listener_, wakeup_, timer_;
  std::uint64_t next_serial_ = 16;
  std::atomic<bool> interrupted_{false};
  std::uint32_t turns_ = 16, turns_left_ = 16;  ///< calls of due() between two looks at the clock
  Clock::time_point counted_{}, next_look_{};
};

}  // namespace cenote::transport
