#include "pool/client/pool_client.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "pool/client/calls.h"
#include "pool/client/network.h"
#include "runtime/process.h"

namespace cenote::pool::client {

namespace {

constexpr auto kAskAgain = std::chrono::milliseconds(50);

/// A server that misses a certificate hangs up without a word that gRPC would pass on.
void explain_missing_certificate(const ClientOptions& options, Error& error) {
  if (!options.credentials.certificate.empty() || !unreachable(error)) return;
  const bool hung_up = error.cause == "the TLS handshake failed" || error.cause == "it closed the connection";
  if (!hung_up) return;
  error.code = ErrorCode::permission_denied;
  error.cause = "the broker refused the connection: a client certificate is required (" + error.cause + ")";
  error.remedy = "see tls.dir: cenote needs a certificate there that the pool's authority issued";
}

class Client final : public PoolClient {
 public:
  Client(ClientOptions options, std::shared_ptr<Network> network)
      : options_(std::move(options)), network_(std::move(network)) {}

  Result<std::unique_ptr<Lease>> lease(const LeaseSpec& spec, Deadline deadline,
                                       const CancelFlag* cancel) override {
    CENOTE_ASSIGN(auto key, KeyPair::generate());
    std::array<std::byte, 16> request_id{};
    CENOTE_TRY(random_bytes(request_id));
    const GrantCall call{spec, key.public_key(), to_hex(request_id)};
    CallGate gate;
    const auto patience = deadline.left();
    const auto wait_until = Deadline::in(spec.wait);
    for (;; deadline = Deadline::in(patience)) {
      auto granted = ask("lease from broker", gate, deadline, cancel,
                         [&](const CallTerms& terms) { return network_->grant(terms, call); });
      if (granted) {
        return make_lease(options_, network_, std::move(granted->lease), std::move(granted->token),
                          std::move(key), std::move(granted->reason), true);
      }
      if (granted.error().code != ErrorCode::resource_exhausted || wait_until.passed())
        return fail(std::move(granted).error());
      if (!gate.sleep(std::min<Clock::duration>(wait_until.left(), kAskAgain), cancel)) {
        return fail(ErrorCode::cancelled, "lease from broker", "cancelled while waiting for free GPUs");
      }
    }
  }

  Result<std::unique_ptr<Lease>> adopt(const LeaseFile& file, bool renew) override {
    CENOTE_ASSIGN(auto key, KeyPair::from_private(file.private_key));
    return make_lease(options_, network_, file.lease, file.token, std::move(key), {}, renew);
  }

  Result<std::vector<LeaseInfo>> leases(Deadline deadline, const CancelFlag* cancel) override {
    CallGate gate;
    return ask("list leases of broker", gate, deadline, cancel,
               [&](const CallTerms& terms) { return network_->leases(terms); });
  }

  Result<PoolState> top(Deadline deadline, const CancelFlag* cancel) override {
    CallGate gate;
    return ask("ask broker for its state", gate, deadline, cancel,
               [&](const CallTerms& terms) { return network_->top(terms); });
  }

 private:
  template <class Call>
  std::invoke_result_t<Call, const CallTerms&> ask(const char* stage, CallGate& gate, Deadline deadline,
                                                   const CancelFlag* cancel, const Call& call) {
    auto answer = persist({stage, gate, deadline, cancel}, options_.broker, options_.call_timeout, call);
    if (!answer) explain_missing_certificate(options_, answer.error());
    return answer;
  }

  const ClientOptions options_;
  const std::shared_ptr<Network> network_;
};

}  // namespace

std::unique_ptr<PoolClient> client_over(ClientOptions options, std::shared_ptr<Network> network) {
  return std::make_unique<Client>(std::move(options), std::move(network));
}

}  // namespace cenote::pool::client
