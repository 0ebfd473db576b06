#include "pool/agent/lease_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace cenote::pool::agent {

namespace {

constexpr std::uint32_t kWholeCompute = 1000;

Error refusal(const LeaseToken& token, std::string cause) {
  return Error{ErrorCode::permission_denied, "open lease " + token.lease_id, std::move(cause)}.with(
      token.client);
}

}  // namespace

LeaseGate::LeaseGate(GateOptions options) : options_(std::move(options)), proofs_(options_.agent) {}

void LeaseGate::trust(const PublicKey& broker) { broker_.assign(1, broker); }

void LeaseGate::raise_floor(const std::string& uuid, std::uint64_t epoch) {
  auto& known = floors_[uuid];
  known = std::max(known, epoch);
}

void LeaseGate::renewed(const std::string& lease_id, std::int64_t expires_unix_ms) {
  auto& known = renewals_[lease_id];
  known = std::max(known, expires_unix_ms);
}

void LeaseGate::ended(const std::string& lease_id, std::string reason, std::int64_t forget_unix_ms) {
  ended_[lease_id] = {std::move(reason), forget_unix_ms};
}

std::int64_t LeaseGate::expires_unix_ms(const LeaseToken& token) const {
  const auto renewal = renewals_.find(token.lease_id);
  return renewal == renewals_.end() ? token.expires_unix_ms
                                    : std::max(token.expires_unix_ms, renewal->second);
}

bool LeaseGate::exclude_each_other(const TokenDevice& a, const TokenDevice& b) const {
  const auto device = options_.devices.find(a.uuid);
  if (a.uuid != b.uuid || device == options_.devices.end()) return false;
  const auto total = device->second;
  // Subtracted, not added: the numbers are a token's word and may be any.
  const auto share = [total](const TokenDevice& d) {
    return d.memory_bytes == 0 ? total : std::min(d.memory_bytes, total);
  };
  const auto compute = [](const TokenDevice& d) { return std::min(d.compute_share_millis, kWholeCompute); };
  return share(a) > total - share(b) || compute(a) > kWholeCompute - compute(b);
}

Result<LeaseToken> LeaseGate::open(const Claim& claim, const GateClock& clock) {
  if (broker_.empty()) {
    return fail(Error{
        ErrorCode::permission_denied, "open lease",
        "agent " + options_.agent + " has not registered with its broker yet, so it cannot check signatures"}
                    .fix("try again in a moment; see the agent's log if it stays so"));
  }
  CENOTE_ASSIGN(auto token, unseal(claim.token, broker_.front()));
  CENOTE_TRY(check_ended(token));
  CENOTE_TRY(check_in_force(token, expires_unix_ms(token) + clock.outage_grace_ms, clock.now_unix_ms,
                            options_.clock_drift_ms));
  CENOTE_TRY(check_devices(token));
  const Proof proof{claim.proof_unix_ms, Bytes(claim.proof.begin(), claim.proof.end())};
  CENOTE_TRY(proofs_.admit(token.client_key, "open", token.lease_id, proof, clock.now_unix_ms));
  for (const auto& device : token.devices) {
    if (device.agent == options_.agent) remember(device);
  }
  return token;
}

Result<void> LeaseGate::close(const LeaseToken& token, std::span<const std::byte> proof,
                              std::int64_t proof_unix_ms, const GateClock& clock) {
  return proofs_.admit(token.client_key, "close", token.lease_id,
                       Proof{proof_unix_ms, Bytes(proof.begin(), proof.end())}, clock.now_unix_ms);
}

Result<void> LeaseGate::check_ended(const LeaseToken& token) const {
  const auto over = ended_.find(token.lease_id);
  if (over == ended_.end()) return {};
  return fail(refusal(token, "the lease has ended: " + over->second.reason).fix("ask for a new one"));
}

Result<void> LeaseGate::still_good(const LeaseToken& token) const {
  CENOTE_TRY(check_ended(token));
  return check_devices(token);
}

Result<void> LeaseGate::check_devices(const LeaseToken& token) const {
  bool mine = false;
  for (const auto& device : token.devices) {
    if (device.agent != options_.agent) continue;
    mine = true;
    if (!options_.devices.contains(device.uuid)) {
      return fail(refusal(token, fmt::format("agent {} has no device {}", options_.agent, device.uuid))
                      .on(device.uuid));
    }
    CENOTE_TRY(check_fence(token, device));
  }
  if (!mine) return fail(refusal(token, "it names no device of agent " + options_.agent));
  return {};
}

Result<void> LeaseGate::check_fence(const LeaseToken& token, const TokenDevice& device) const {
  const auto fenced = [&](std::uint64_t newer, std::string_view why) {
    return fail(refusal(token, fmt::format("fenced: its epoch {} of device {} is older than {}, {}",
                                           device.epoch, device.uuid, newer, why))
                    .on(device.uuid)
                    .fix("ask for a new lease"));
  };
  if (const auto floor = floors_.find(device.uuid); floor != floors_.end() && device.epoch < floor->second) {
    return fenced(floor->second, "and the broker has ended every lease below that");
  }
  const auto seen = seen_.find(device.uuid);
  if (seen == seen_.end()) return {};
  for (const auto& other : seen->second) {
    if (other.epoch > device.epoch && exclude_each_other(other, device)) {
      return fenced(other.epoch, "the device was granted again since");
    }
  }
  return {};
}

// A share that fences nothing which a newer and larger one does not fence is dropped: the list stays short.
void LeaseGate::remember(const TokenDevice& device) {
  auto& seen = seen_[device.uuid];
  const auto covers = [](const TokenDevice& a, const TokenDevice& b) {
    const auto memory = [](const TokenDevice& d) {
      return d.memory_bytes == 0 ? UINT64_MAX : d.memory_bytes;
    };
    return a.epoch >= b.epoch && memory(a) >= memory(b) && a.compute_share_millis >= b.compute_share_millis;
  };
  for (const auto& other : seen) {
    if (covers(other, device)) return;
  }
  std::erase_if(seen, [&](const TokenDevice& other) { return covers(device, other); });
  seen.push_back(device);
}

void LeaseGate::forget(std::int64_t now_unix_ms) {
  std::erase_if(ended_, [&](const auto& over) { return over.second.forget_unix_ms < now_unix_ms; });
  // A day: far longer than any client keeps a token that it does not renew.
  std::erase_if(renewals_, [&](const auto& renewal) { return renewal.second < now_unix_ms - 86'400'000; });
}

}  // namespace cenote::pool::agent
