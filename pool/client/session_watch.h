// SessionWatch: hears of the end of a lease's sessions while their owner does nothing. One call waits at each
// agent until the session there is over; one thread waits for all of them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/result.h"

namespace grpc {
class Channel;
}

namespace cenote::pool::client {

struct WatchedSession {
  std::shared_ptr<grpc::Channel> channel;  ///< to its agent
  std::string agent;
  std::string peer;  ///< "agent-b (10.0.0.7:4701)", for errors
  std::string lease_id;
  std::uint32_t number = 0;  ///< OpenSessionReply.channel
};

/// Thread-safe.
class SessionWatch {
 public:
  /// `lost` is called from the watch's thread for each session that ended though its client did not end it:
  /// its worker died, its lease was ended, or its agent is gone. Told within 3 s of the death of a process
  /// (on a machine that is not overloaded), within about 20 s where a machine vanishes without a word.
  static std::unique_ptr<SessionWatch> create(std::function<void(const Error&)> lost);
  /// Ends the calls; waits for no peer, but for a call of `lost` that is being made.
  virtual ~SessionWatch() = default;
  /// From now on, until forget() or the session's end.
  virtual void watch(WatchedSession session) = 0;
  /// The sessions with that agent are told of no more; before a new one replaces them.
  virtual void forget(const std::string& agent) = 0;
};

}  // namespace cenote::pool::client
