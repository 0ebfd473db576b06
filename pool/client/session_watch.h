// SessionWatch: hears of the end of a lease's sessions while their owner does nothing. One call waits at each
// agent until the session there is over; one thread waits for all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "pool/client/network.h"
#include "runtime/result.h"

namespace cenote::pool::client {

struct WatchedSession {
  std::shared_ptr<AgentLine> line;  ///< to its agent
  std::string agent;
  std::string peer;  ///< "agent-b (10.0.0.7:4701)", for errors
  std::string lease_id;
  std::uint32_t number = 0;   ///< Opened.channel
  std::uint64_t opening = 0;  ///< the owner's own
};

/// Thread-safe.
class SessionWatch {
 public:
  using Lost = std::function<void(const WatchedSession&, const Error&)>;

  /// `lost` is called from the watch's thread, once for each session that ended though its client did not end
  /// it: its worker died, its lease was ended, or its agent is gone. Told within 3 s of the death of a
  /// process (on a machine that is not overloaded), within about 20 s where a machine vanishes without a
  /// word. It may call watch() and forget(), not destroy the watch. `calls`: of the network of the lines.
  SessionWatch(std::unique_ptr<AwaitCalls> calls, Lost lost);
  /// Ends the calls; waits for no peer, but for a call of `lost` that is being made.
  ~SessionWatch();
  SessionWatch(const SessionWatch&) = delete;
  SessionWatch& operator=(const SessionWatch&) = delete;

  /// From now on, until forget() or the session's end.
  void watch(WatchedSession session);
  /// The sessions with that agent are told of no more; before a new one replaces them. A call of `lost` that
  /// has begun on the watch's thread goes on.
  void forget(const std::string& agent);

 private:
  struct Waiting {
    WatchedSession session;
    bool last_chance = false, forgotten = false;
  };

  void start(WatchedSession session, bool last_chance);
  void run();
  std::optional<Error> judge(Waiting& waiting, const Result<AwaitedEnd>& end);

  const std::unique_ptr<AwaitCalls> calls_;
  const Lost lost_;
  std::mutex mutex_;  ///< guards what follows
  std::map<std::uint64_t, Waiting> waiting_;
  std::uint64_t last_id_ = 0;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace cenote::pool::client
