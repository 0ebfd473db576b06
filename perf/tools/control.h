// Control: the conversation of the two ends beside what is measured, over a stream socket: who they are, what
// is to be done, that they still live, and why one of them gave up.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "runtime/bytes.h"
#include "runtime/deadline.h"
#include "runtime/frame_channel.h"
#include "runtime/result.h"

namespace cenote::perf {

enum class Topic : std::uint8_t {
  hello = 1,
  address = 2,
  memory = 3,
  plan = 4,
  ready = 5,
  figures = 6,
  finish = 7,
  alive = 8,
  gave_up = 9,
};

/// One thread. Both ends say every 200 ms that they live; who hears nothing for `silence` gives up. Errors of
/// all calls: peer_failed (it is gone, or says why it gave up), deadline_exceeded (it is silent), cancelled,
/// protocol_error; each names the peer.
class Control {
 public:
  Control(UniqueFd socket, std::string peer, Clock::duration silence, const CancelFlag* cancel);

  [[nodiscard]] const std::string& peer() const { return peer_; }
  [[nodiscard]] int fd() const { return channel_.fd(); }
  [[nodiscard]] bool cancelled() const { return cancel_ != nullptr && cancel_->raised(); }

  Result<void> tell(Topic topic, std::span<const std::byte> payload = {});
  /// The next thing the peer says, which is to be this. `meanwhile` is called between looks, or null.
  Result<Bytes> hear(Topic topic, const std::function<void()>& meanwhile = {});
  /// What it says next, whatever it is about.
  Result<std::pair<Topic, Bytes>> hear_any(const std::function<void()>& meanwhile = {});
  /// To be called now and then while measuring; cheap until something is due.
  Result<void> tick(Clock::time_point now) {
    if (now < due_) [[likely]]
      return {};
    return look(now);
  }
  /// Tells the peer why this side ends, without waiting.
  void give_up(const Error& error);
  /// Why the peer gave up, where it says so before the deadline.
  std::optional<Error> why_gave_up(Deadline deadline);

 private:
  Result<void> look(Clock::time_point now);
  Result<void> take_in(Clock::time_point now);
  [[nodiscard]] Error gave_up() const;

  FrameChannel channel_;
  std::string peer_;
  Clock::duration silence_;
  const CancelFlag* cancel_;
  Clock::time_point due_, heard_;
  std::deque<std::pair<Topic, Bytes>> said_;
  std::optional<std::string> reason_;  ///< the peer's, for giving up
};

}  // namespace cenote::perf
