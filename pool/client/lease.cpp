// A held lease: its renewals, its sessions with agents, its end.
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "pool/client/calls.h"
#include "pool/client/network.h"
#include "pool/client/session_watch.h"

namespace cenote::pool::client {

namespace {

class HeldLease final : public Lease {
 public:
  HeldLease(ClientOptions options, std::shared_ptr<Network> network, LeaseInfo info, Bytes token, KeyPair key,
            std::string reason, bool renew)
      : options_(std::move(options)),
        network_(std::move(network)),
        key_(std::move(key)),
        reason_(std::move(reason)),
        ttl_ms_(std::max<std::int64_t>(info.expires_unix_ms - info.granted_unix_ms, 1)),
        info_(std::move(info)),
        token_(std::move(token)),
        watch_(network_->await_calls(),
               [this](const WatchedSession& session, const Error& error) { lose_session(session, error); }) {
    if (renew) renewer_ = std::thread([this] { keep(); });
    renewer_id_ = renewer_.get_id();
  }

  ~HeldLease() override { stop_renewing(); }

  [[nodiscard]] LeaseInfo info() const override {
    const std::lock_guard lock(mutex_);
    return info_;
  }
  [[nodiscard]] const std::string& reason() const override { return reason_; }
  [[nodiscard]] std::optional<Error> lost() const override {
    const std::lock_guard lock(mutex_);
    return lost_;
  }
  [[nodiscard]] LeaseFile file() const override {
    const std::lock_guard lock(mutex_);
    return {options_.broker, info_, token_, key_.private_key()};
  }
  void on_loss(std::function<void(const Error&)> tell) override {
    std::unique_lock lock(mutex_);
    tell_ = std::move(tell);
    if (lost_ && tell_) tell_once(lock);
  }

  [[nodiscard]] std::optional<Error> session_lost() const override {
    const std::lock_guard lock(mutex_);
    return session_lost_;
  }
  void on_session_loss(std::function<void(const Error&)> tell) override {
    const std::lock_guard lock(mutex_);
    tell_session_ = std::move(tell);
  }

  Result<std::vector<remote::WorkerAddress>> open_workers(std::span<const std::byte> client_fabric_address,
                                                          Deadline deadline,
                                                          const CancelFlag* cancel) override {
    const auto lease = info();
    const auto opening = forget_sessions(true);
    const Bytes fabric_address(client_fabric_address.begin(), client_fabric_address.end());
    std::vector<remote::WorkerAddress> workers;
    for (std::size_t first = 0; first < lease.devices.size();) {
      auto end = first;
      while (end < lease.devices.size() && lease.devices[end].agent == lease.devices[first].agent) ++end;
      CENOTE_ASSIGN(auto worker, open_worker(lease, first, end, fabric_address, opening, {deadline, cancel}));
      workers.push_back(std::move(worker));
      first = end;
    }
    return workers;
  }

  Result<std::unique_ptr<remote::RemoteDriver>> open(Deadline deadline, const CancelFlag* cancel) override {
    CENOTE_ASSIGN(auto fabric, transport::Fabric::create(options_.fabric));
    CENOTE_ASSIGN(const auto workers, open_workers(fabric->address(), deadline, cancel));
    return remote::RemoteDriver::connect(std::move(fabric), workers, deadline, cancel,
                                         options_.worker_timeout);
  }

  Result<void> release(Deadline deadline, const CancelFlag* cancel) override {
    stop_renewing();
    forget_sessions(false);
    CallGate gate;
    return persist({"release lease " + id(), gate, deadline, cancel}, options_.broker, options_.call_timeout,
                   [&](const CallTerms& terms) -> Result<void> {
                     CENOTE_ASSIGN(auto proof, prove("release", "broker"));
                     return network_->release(terms, {id(), std::move(proof)});
                   });
  }

 private:
  struct Patience {
    Deadline deadline;
    const CancelFlag* cancel;
  };

  [[nodiscard]] std::string id() const { return info_.id; }  // never changes

  // Each proof is later than the one before: a verifier takes none twice.
  Result<Proof> prove(std::string_view purpose, std::string_view audience) {
    const std::lock_guard lock(proof_mutex_);
    last_proof_ms_ = std::max(unix_ms(), last_proof_ms_ + 1);
    return make_proof(key_, purpose, info_.id, audience, last_proof_ms_);
  }

  Result<remote::WorkerAddress> open_worker(const LeaseInfo& lease, std::size_t first, std::size_t end,
                                            const Bytes& fabric_address, std::uint64_t opening,
                                            Patience patience) {
    const auto& agent = lease.devices[first];
    const auto peer = fmt::format("{} ({})", agent.agent, agent.agent_endpoint);
    const auto stage = fmt::format("open lease {}", lease.id);
    const auto line = network_->line(agent.agent, agent.agent_endpoint);
    CallGate gate;
    CENOTE_ASSIGN(auto opened,
                  persist({stage, gate, patience.deadline, patience.cancel}, peer, kOpenTry,
                          [&](const CallTerms& terms) -> Result<Opened> {
                            CENOTE_ASSIGN(auto proof, prove("open", agent.agent));
                            return line->open(terms, {token(), std::move(proof), fabric_address});
                          }));
    if (opened.devices != end - first) {
      return fail(
          Error{ErrorCode::protocol_error, stage,
                fmt::format("it serves {} devices of this lease, not {}", opened.devices, end - first)}
              .with(peer));
    }
    remote::WorkerAddress worker;
    worker.fabric_address = std::move(opened.worker_fabric_address);
    worker.channel = opened.channel;
    worker.peer = fmt::format("lease {} on {}", lease.id, peer);
    watch_.watch({line, agent.agent, peer, lease.id, opened.channel, opening});
    for (auto i = first; i < end; ++i) {
      worker.device_names.push_back(
          fmt::format("lease {} gpu {} ({} on {})", lease.id, i, lease.devices[i].model, agent.agent));
    }
    return worker;
  }

  [[nodiscard]] Bytes token() const {
    const std::lock_guard lock(mutex_);
    return token_;
  }

  // Renews at a third of the ttl, so that two renewals may fail before the lease is in danger; while the
  // broker cannot be reached, as often as persist() tries.
  void keep() {
    while (gate_.sleep(std::chrono::milliseconds(std::max<std::int64_t>(ttl_ms_ / 3, 20)))) {
      auto renewed = persist({"renew lease " + id(), gate_, Deadline::never()}, options_.broker,
                             options_.call_timeout, [&](const CallTerms& terms) { return renew(terms); });
      if (renewed) {
        const std::lock_guard lock(mutex_);
        info_.expires_unix_ms = renewed->expires_unix_ms;
        if (!renewed->token.empty()) token_ = std::move(renewed->token);
      } else if (renewed.error().code != ErrorCode::cancelled && is_final(renewed.error())) {
        lose(renewed.error());
        return;
      }
    }
  }

  Result<Renewed> renew(const CallTerms& terms) {
    CENOTE_ASSIGN(auto proof, prove("renew", "broker"));
    return network_->renew(terms,
                           {id(), static_cast<std::uint32_t>((ttl_ms_ + 999) / 1000), std::move(proof)});
  }

  // Only these say that the lease itself is gone; a broker with a full disk may still renew it in a second.
  static bool is_final(const Error& error) {
    return error.code == ErrorCode::not_found || error.code == ErrorCode::permission_denied ||
           error.code == ErrorCode::invalid_argument;
  }

  void lose(Error error) {
    std::unique_lock lock(mutex_);
    lost_ = std::move(error);
    if (tell_) tell_once(lock);
  }

  // What the watch is about to tell of an earlier opening is no news any more: lose_session() looks at the
  // number.
  std::uint64_t forget_sessions(bool for_new_ones) {
    std::unique_lock lock(mutex_);
    const auto opening = ++opening_;
    if (for_new_ones) session_lost_.reset();
    const auto devices = info_.devices;
    lock.unlock();
    for (const auto& device : devices) watch_.forget(device.agent);
    return opening;
  }

  void lose_session(const WatchedSession& session, const Error& error) {
    std::unique_lock lock(mutex_);
    if (session.opening != opening_) return;
    if (!session_lost_) session_lost_ = error;
    const auto tell = tell_session_;
    lock.unlock();
    if (tell) tell(error);
  }

  void tell_once(std::unique_lock<std::mutex>& lock) {
    const auto tell = std::exchange(tell_, {});
    const auto error = *lost_;
    lock.unlock();
    tell(error);
  }

  void stop_renewing() {
    gate_.shut();
    if (std::this_thread::get_id() == renewer_id_) return;  // it tells of the loss, and is through with it
    const std::lock_guard lock(join_mutex_);
    if (renewer_.joinable()) renewer_.join();
  }

  static constexpr Clock::duration kOpenTry = std::chrono::seconds(20);

  const ClientOptions options_;
  const std::shared_ptr<Network> network_;
  const KeyPair key_;
  const std::string reason_;
  const std::int64_t ttl_ms_;
  CallGate gate_;

  mutable std::mutex mutex_;
  LeaseInfo info_;
  Bytes token_;
  std::optional<Error> lost_;
  std::function<void(const Error&)> tell_, tell_session_;
  std::optional<Error> session_lost_;
  std::uint64_t opening_ = 0;

  std::mutex proof_mutex_;
  std::int64_t last_proof_ms_ = 0;
  std::mutex join_mutex_;
  std::thread renewer_;
  std::thread::id renewer_id_;
  SessionWatch watch_;  ///< last: its thread calls back
};

}  // namespace

std::unique_ptr<Lease> make_lease(ClientOptions options, std::shared_ptr<Network> network, LeaseInfo info,
                                  Bytes token, KeyPair key, std::string reason, bool renew) {
  return std::make_unique<HeldLease>(std::move(options), std::move(network), std::move(info),
                                     std::move(token), std::move(key), std::move(reason), renew);
}

}  // namespace cenote::pool::client
