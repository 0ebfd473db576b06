// AgentMetrics: what an agent's workers did since it began, and what its GPUs do now, for Prometheus.
#pragma once

#include <memory>
#include <string>

#include "pool/agent/core.h"
#include "pool/agent/worker_host.h"
#include "runtime/metrics.h"

namespace cenote::pool::agent {

/// Thread-safe.
class AgentMetrics {
 public:
  /// Errors: none but bugs (a name that is none). `workers` outlives this.
  static Result<std::unique_ptr<AgentMetrics>> create(WorkerHost& workers);
  ~AgentMetrics();

  /// The same workers; those that start are counted.
  [[nodiscard]] WorkerHost& host();
  void worker_ended(const WorkerExit& exit) { (exit.failed ? died_ : over_)->add(); }
  void broker_reached(bool reached) { broker_->set(reached ? 1 : 0); }

  /// All of it, in Prometheus' text format.
  Result<std::string> text(const AgentReport& now);

 private:
  class Counting;
  AgentMetrics();
  Result<void> make(WorkerHost& workers);

  Metrics metrics_;
  Counter *over_ = nullptr, *died_ = nullptr;
  Gauge* broker_ = nullptr;
  std::unique_ptr<Counting> counting_;
};

}  // namespace cenote::pool::agent
