// What pool_client.cpp and lease.cpp share: one call, tried again while the peer cannot be reached. Not API.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "pool/client/network.h"
#include "pool/client/pool_client.h"
#include "runtime/deadline.h"
#include "runtime/result.h"

namespace cenote::pool::client {

inline std::int64_t unix_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Whoever ends the call, other than the peer and time, has.
inline std::optional<Error> given_up(const CallTerms& terms, const std::string& peer) {
  const char* why = nullptr;
  if (terms.cancel != nullptr && terms.cancel->raised()) why = "cancelled";
  if (terms.gate.is_shut()) why = "the caller is going away";
  if (why == nullptr) return std::nullopt;
  return Error{ErrorCode::cancelled, terms.stage, why}.with(peer);
}

/// Tries `call(terms)` until it is answered or refused, the deadline passes, the gate is shut or the cancel
/// raised. `terms`: of all tries together; one takes at most `one_try`.
template <class Call>
std::invoke_result_t<Call, const CallTerms&> persist(const CallTerms& terms, const std::string& peer,
                                                     Clock::duration one_try, const Call& call) {
  auto pause = std::chrono::milliseconds(50);
  for (;;) {
    auto once = terms;
    once.deadline = Deadline::at(std::min(terms.deadline.when(), Clock::now() + one_try));
    auto answer = call(std::as_const(once));
    if (answer) return answer;
    const bool away = unreachable(answer.error());
    if (!away && answer.error().code != ErrorCode::cancelled) return answer;
    if (auto ended = given_up(terms, peer)) return fail(std::move(*ended));
    if (!away || terms.deadline.left() <= pause) return answer;
    if (!terms.gate.sleep(pause, terms.cancel)) return fail(*given_up(terms, peer));
    pause = std::min(pause * 2, std::chrono::milliseconds(500));
  }
}

/// The client over any network; PoolClient::connect() is the one over gRPC.
std::unique_ptr<PoolClient> client_over(ClientOptions options, std::shared_ptr<Network> network);

/// A lease that `client` holds. `renew`: keep it alive.
std::unique_ptr<Lease> make_lease(ClientOptions options, std::shared_ptr<Network> network, LeaseInfo info,
                                  Bytes token, KeyPair key, std::string reason, bool renew);

}  // namespace cenote::pool::client
