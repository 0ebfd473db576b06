// A held lease: its renewals, its sessions with agents, its end.
#include <fmt/format.h>
#include <grpcpp/channel.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "pool/client/calls.h"
#include "pool/client/session_watch.h"
#include "pool/proto/channel.h"

namespace cenote::pool::client {

namespace {

class HeldLease final : public Lease {
 public:
  HeldLease(ClientOptions options, std::shared_ptr<v1::Broker::Stub> broker, LeaseInfo info, Bytes token,
            KeyPair key, std::string reason, bool renew)
      : options_(std::move(options)),
        broker_(std::move(broker)),
        key_(std::move(key)),
        reason_(std::move(reason)),
        ttl_ms_(std::max<std::int64_t>(info.expires_unix_ms - info.granted_unix_ms, 1)),
        info_(std::move(info)),
        token_(std::move(token)),
        watch_(SessionWatch::create([this](const Error& error) { lose_session(error); })) {
    if (renew) renewer_ = std::thread([this] { keep(); });
  }

  ~HeldLease() override {
    stop_renewing();
    watch_.reset();  // its thread calls back
  }

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
                                                          Deadline deadline) override {
    const auto lease = info();
    for (const auto& device : lease.devices) watch_->forget(device.agent);
    {
      const std::lock_guard lock(mutex_);
      session_lost_.reset();
    }
    std::vector<remote::WorkerAddress> workers;
    for (std::size_t first = 0; first < lease.devices.size();) {
      auto end = first;
      while (end < lease.devices.size() && lease.devices[end].agent == lease.devices[first].agent) ++end;
      CENOTE_ASSIGN(auto worker, open_worker(lease, first, end, client_fabric_address, deadline));
      workers.push_back(std::move(worker));
      first = end;
    }
    return workers;
  }

  Result<std::unique_ptr<remote::RemoteDriver>> open(Deadline deadline, const CancelFlag* cancel) override {
    CENOTE_ASSIGN(auto fabric, transport::Fabric::create(options_.fabric));
    CENOTE_ASSIGN(auto workers, open_workers(fabric->address(), deadline));
    return remote::RemoteDriver::connect(std::move(fabric), std::move(workers), deadline, cancel,
                                         options_.worker_timeout);
  }

  Result<void> release(Deadline deadline) override {
    stop_renewing();
    for (const auto& device : info().devices) watch_->forget(device.agent);
    CallGate gate;
    v1::ReleaseReply reply;
    auto released = persist(gate, "release lease " + id(), options_.broker, options_.call_timeout, deadline,
                            nullptr, [&](grpc::ClientContext& context) {
                              const auto proof = prove("release", "broker");
                              if (!proof) return to_status(proof.error());
                              v1::ReleaseRequest request;
                              request.set_lease_id(id());
                              request.set_proof(std::string(as_text(proof->signature)));
                              request.set_proof_unix_ms(proof->unix_ms);
                              return broker_->ReleaseLease(&context, request, &reply);
                            });
    return released;
  }

 private:
  [[nodiscard]] std::string id() const { return info_.id; }  // never changes

  // Each proof is later than the one before: a verifier takes none twice.
  Result<Proof> prove(std::string_view purpose, std::string_view audience) {
    const std::lock_guard lock(proof_mutex_);
    last_proof_ms_ = std::max(unix_ms(), last_proof_ms_ + 1);
    return make_proof(key_, purpose, info_.id, audience, last_proof_ms_);
  }

  Result<remote::WorkerAddress> open_worker(const LeaseInfo& lease, std::size_t first, std::size_t end,
                                            std::span<const std::byte> client_fabric_address,
                                            Deadline deadline) {
    const auto& agent = lease.devices[first];
    const auto peer = fmt::format("{} ({})", agent.agent, agent.agent_endpoint);
    const auto stage = fmt::format("open lease {}", lease.id);
    const auto channel = pool::connect(agent.agent_endpoint, options_.credentials,
                                       {.role = tls::Role::agent, .name = agent.agent});
    const auto stub = v1::Agent::NewStub(channel);
    v1::OpenSessionReply reply;
    CallGate gate;
    CENOTE_TRY(persist(gate, stage, peer, kOpenTry, deadline, nullptr, [&](grpc::ClientContext& context) {
      const auto proof = prove("open", agent.agent);
      if (!proof) return to_status(proof.error());
      v1::OpenSessionRequest request;
      request.set_token(std::string(as_text(token())));
      request.set_proof(std::string(as_text(proof->signature)));
      request.set_proof_unix_ms(proof->unix_ms);
      request.set_client_fabric_address(std::string(as_text(client_fabric_address)));
      return stub->OpenSession(&context, request, &reply);
    }));
    if (static_cast<std::size_t>(reply.device_uuids_size()) != end - first) {
      return fail(Error{
          ErrorCode::protocol_error, stage,
          fmt::format("it serves {} devices of this lease, not {}", reply.device_uuids_size(), end - first)}
                      .with(peer));
    }
    remote::WorkerAddress worker;
    const auto address = as_bytes(reply.worker_fabric_address());
    worker.fabric_address.assign(address.begin(), address.end());
    worker.channel = reply.channel();
    worker.peer = peer;
    watch_->watch({channel, agent.agent, peer, lease.id, reply.channel()});
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
      v1::LeaseReply reply;
      const auto renewed =
          persist(gate_, "renew lease " + id(), options_.broker, options_.call_timeout, Deadline::never(),
                  nullptr, [&](grpc::ClientContext& context) { return renew(context, reply); });
      if (renewed) {
        const std::lock_guard lock(mutex_);
        info_.expires_unix_ms = reply.lease().expires_unix_ms();
        if (!reply.lease().token().empty()) {
          const auto token = as_bytes(reply.lease().token());
          token_.assign(token.begin(), token.end());
        }
      } else if (renewed.error().code != ErrorCode::cancelled && is_final(renewed.error())) {
        lose(renewed.error());
        return;
      }
    }
  }

  grpc::Status renew(grpc::ClientContext& context, v1::LeaseReply& reply) {
    const auto proof = prove("renew", "broker");
    if (!proof) return to_status(proof.error());
    // gRPC moves a connection forward only while a call waits on it. One that fails at once, again and again,
    // would never see the broker come back.
    context.set_wait_for_ready(true);
    v1::RenewRequest request;
    request.set_lease_id(id());
    request.set_ttl_seconds(static_cast<std::uint32_t>((ttl_ms_ + 999) / 1000));
    request.set_proof(std::string(as_text(proof->signature)));
    request.set_proof_unix_ms(proof->unix_ms);
    return broker_->RenewLease(&context, request, &reply);
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

  void lose_session(const Error& error) {
    std::unique_lock lock(mutex_);
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
    const std::lock_guard lock(join_mutex_);
    if (renewer_.joinable()) renewer_.join();
  }

  static constexpr Clock::duration kOpenTry = std::chrono::seconds(20);

  const ClientOptions options_;
  const std::shared_ptr<v1::Broker::Stub> broker_;
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

  std::mutex proof_mutex_;
  std::int64_t last_proof_ms_ = 0;
  std::mutex join_mutex_;
  std::thread renewer_;
  std::unique_ptr<SessionWatch> watch_;
};

}  // namespace

std::unique_ptr<Lease> make_lease(ClientOptions options, std::shared_ptr<v1::Broker::Stub> broker,
                                  LeaseInfo info, Bytes token, KeyPair key, std::string reason, bool renew) {
  return std::make_unique<HeldLease>(std::move(options), std::move(broker), std::move(info), std::move(token),
                                     std::move(key), std::move(reason), renew);
}

}  // namespace cenote::pool::client
