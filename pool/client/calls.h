// What pool_client.cpp and lease.cpp share: one gRPC call with a deadline that another thread can end, tried
// again while the peer cannot be reached. Not API.
#pragma once

#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "pool/client/pool_client.h"
#include "pool/proto/cenote.grpc.pb.h"
#include "pool/proto/status.h"
#include "runtime/deadline.h"
#include "runtime/result.h"

namespace cenote::pool::client {

inline std::int64_t unix_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// gRPC itself could not reach the peer, or it did not answer; what the peer refused is another matter.
inline bool unreachable(const Error& error) {
  return (error.code == ErrorCode::peer_failed &&
          error.native == static_cast<int>(grpc::StatusCode::UNAVAILABLE)) ||
         (error.code == ErrorCode::deadline_exceeded &&
          error.native == static_cast<int>(grpc::StatusCode::DEADLINE_EXCEEDED));
}

/// Ends calls of other threads: the one in flight and every later one.
class CallGate {
 public:
  /// Runs `call(context)` with at most `deadline`, unless the gate is shut.
  template <class Call>
  grpc::Status run(Deadline deadline, const Call& call) {
    grpc::ClientContext context;
    const auto left = std::min<Clock::duration>(deadline.left(), std::chrono::hours(1));
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::duration_cast<std::chrono::system_clock::duration>(left));
    {
      const std::lock_guard lock(mutex_);
      if (shut_) return {grpc::StatusCode::CANCELLED, "the caller is going away"};
      current_ = &context;
    }
    const auto status = call(context);
    const std::lock_guard lock(mutex_);
    current_ = nullptr;
    return status;
  }
  void shut() {
    const std::lock_guard lock(mutex_);
    shut_ = true;
    if (current_ != nullptr) current_->TryCancel();
    changed_.notify_all();
  }
  /// False = the gate was shut meanwhile.
  bool sleep(Clock::duration span) {
    std::unique_lock lock(mutex_);
    return !changed_.wait_for(lock, span, [this] { return shut_; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  grpc::ClientContext* current_ = nullptr;
  bool shut_ = false;
};

/// Tries `call(context)` until it is answered or refused, `deadline` passes or `cancel` is raised.
template <class Call>
Result<void> persist(CallGate& gate, const std::string& stage, const std::string& peer,
                     Clock::duration one_try, Deadline deadline, const CancelFlag* cancel, const Call& call) {
  auto pause = std::chrono::milliseconds(50);
  for (;;) {
    const auto until = std::min(deadline.when(), Clock::now() + one_try);
    const auto status = gate.run(Deadline::at(until), call);
    if (status.ok()) return {};
    auto error = to_error(status, stage, peer);
    if (!unreachable(error) || deadline.left() <= pause) return fail(std::move(error));
    if (cancel != nullptr && cancel->raised())
      return fail(Error{ErrorCode::cancelled, stage, "cancelled"}.with(peer));
    if (!gate.sleep(pause))
      return fail(Error{ErrorCode::cancelled, stage, "the caller is going away"}.with(peer));
    pause = std::min(pause * 2, std::chrono::milliseconds(500));
  }
}

/// From the wire, with the devices of one agent together.
LeaseInfo read_lease(const v1::Lease& lease);

/// A lease that `client` holds. `renew`: keep it alive.
std::unique_ptr<Lease> make_lease(ClientOptions options, std::shared_ptr<v1::Broker::Stub> broker,
                                  LeaseInfo info, Bytes token, KeyPair key, std::string reason, bool renew);

}  // namespace cenote::pool::client
