// One socket to the helper, shared by all threads of the program: each asks, and waits for its own answer. No
// thread of its own: whoever waits reads for the others too.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "pool/dropin/helper_wire.h"
#include "pool/dropin/session_wire.h"
#include "runtime/deadline.h"
#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace cenote::pool::dropin {

/// Thread-safe. Closing the socket, which the destructor does, ends the helper. A child of fork() may destroy
/// its copy, which tells the helper nothing; its calls are refused.
class HelperChannel {
 public:
  /// `words`: see StartedHelper::take_words(); -1 = none.
  HelperChannel(UniqueFd socket, UniqueFd words);

  /// The helper gets until `deadline`; a little later this call gives up by itself. Errors: those of the
  /// helper, peer_failed (it is gone), deadline_exceeded (it does not answer), protocol_error.
  Result<ReplyBody> call(Ask ask, Deadline deadline);
  /// Says it, now or with what is said next: does not wait.
  void tell(Ask ask);
  /// Why a lease is over, or the helper is; nullopt while all is well. Reads what has arrived, never waits.
  std::optional<Error> lost(LeaseNumber lease);
  void forget(LeaseNumber lease);

 private:
  using Slot = std::optional<ReplyBody>;

  Result<void> check_process() const;
  Result<void> send(const Request& request, Deadline deadline);
  void say_unsaid(std::unique_lock<std::mutex>& lock);
  Result<ReplyBody> wait_for(std::uint64_t id, std::unique_lock<std::mutex>& lock, Deadline deadline);
  /// Reads for everybody, until `deadline` or the first bytes; the lock is open meanwhile.
  void read(std::unique_lock<std::mutex>& lock, Deadline deadline);
  void sort(Reply reply);
  void give_up(const Error& met);

  const UniqueFd socket_, words_;
  const pid_t owner_;
  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  FrameBuffer arrived_;
  bool reading_ = false, sending_ = false;  ///< by one thread each, with the lock open
  std::uint64_t last_id_ = 0;
  std::map<std::uint64_t, Slot> waiting_;
  std::map<LeaseNumber, Error> lost_;
  std::vector<Request> unsaid_;
  std::vector<LeaseNumber> unclaimed_;  ///< leases granted to a call that had given up
  std::optional<Error> broken_;
};

}  // namespace cenote::pool::dropin
