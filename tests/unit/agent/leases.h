// Tokens, proofs and doubles for the agent's tests.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pool/agent/core.h"
#include "pool/agent/lease_gate.h"

namespace cenote::pool::agent::testing {

inline constexpr std::int64_t kNow = 1'700'000'000'000;

inline KeyPair new_key() { return std::move(*KeyPair::generate()); }

struct Signed {
  Bytes token;
  Bytes proof;
  std::int64_t at;
  [[nodiscard]] Claim claim() const { return {token, proof, at}; }
};

/// A broker and a client with keys, and what they would write. `gpu-0` and `gpu-1` of agent "a".
struct Parties {
  KeyPair broker = new_key();
  KeyPair client = new_key();

  [[nodiscard]] LeaseToken token(const std::string& id = "L1", std::uint64_t epoch = 1,
                                 const std::string& device = "gpu-0") const {
    LeaseToken token;
    token.lease_id = id;
    token.client = "alice";
    token.client_key = client.public_key();
    token.not_before_unix_ms = kNow - 1000;
    token.expires_unix_ms = kNow + 60'000;
    token.devices.push_back({.uuid = device, .agent = "a", .memory_bytes = 1024, .epoch = epoch});
    return token;
  }
  [[nodiscard]] Signed sign(const LeaseToken& token, std::int64_t at = kNow,
                            const std::string& purpose = "open", const std::string& audience = "a") const {
    return {*seal(token, broker), make_proof(client, purpose, token.lease_id, audience, at)->signature, at};
  }
};

inline std::vector<LocalDevice> two_devices() {
  return {{.uuid = "gpu-0", .model = "H200", .memory_bytes = 4096, .ordinal = 0},
          {.uuid = "gpu-1", .model = "A100", .memory_bytes = 2048, .ordinal = 1}};
}

/// A host whose workers are entries of a map; the test ends them.
class FakeHost final : public WorkerHost {
 public:
  struct Key {
    std::string lease;
    std::uint64_t generation;
    auto operator<=>(const Key&) const = default;
  };

  Result<Bytes> start(const WorkerSetup& setup, Deadline) override {
    if (before_start) before_start();
    const std::lock_guard lock(mutex_);
    known.insert({setup.lease_id, setup.generation});
    setups.push_back(setup);
    if (refuse) return fail(ErrorCode::resource_exhausted, "start worker", "no more processes");
    live.insert({setup.lease_id, setup.generation});
    const auto text = "worker " + std::to_string(setup.generation);
    const auto bytes = as_bytes(text);
    return Bytes(bytes.begin(), bytes.end());
  }
  /// Means nothing to it before start(), as to the real one.
  void stop(const std::string& lease, std::uint64_t generation) override {
    const std::lock_guard lock(mutex_);
    if (known.contains({lease, generation})) stopped.push_back({lease, generation});
  }
  [[nodiscard]] std::vector<DeviceUse> load(const std::string&, std::uint64_t) const override {
    return {{512, 7, 0}};
  }

  /// Ends what was asked to end, as the real host's thread does.
  void reap(AgentCore& core) {
    std::vector<Key> ends;
    {
      const std::lock_guard lock(mutex_);
      ends.swap(stopped);
      for (const auto& key : ends) live.erase(key);
    }
    for (const auto& key : ends) core.worker_ended(key.lease, key.generation, {});
  }

  std::mutex mutex_;
  bool refuse = false;
  std::function<void()> before_start;
  std::vector<WorkerSetup> setups;
  std::set<Key> live, known;
  std::vector<Key> stopped;
};

}  // namespace cenote::pool::agent::testing
