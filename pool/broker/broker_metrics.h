// BrokerMetrics: what a broker has done since it began, and what it holds now, for Prometheus.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "pool/broker/messages.h"
#include "runtime/metrics.h"

namespace cenote::pool {

/// Thread-safe.
class BrokerMetrics {
 public:
  /// Errors: none but bugs (a name that is none).
  static Result<std::unique_ptr<BrokerMetrics>> create();

  /// The store took these, and the state moved on.
  void committed(std::span<const Command> commands, std::span<const Event> events, double seconds);
  void store_failed() { store_failures_->add(); }
  void heartbeat() { heartbeats_->add(); }
  void refused(const Error& error);

  /// All of it, in Prometheus' text format; `now`: what the broker holds.
  Result<std::string> text(const TopView& now);

 private:
  BrokerMetrics() = default;
  Result<void> make();

  Metrics metrics_;
  Counter *granted_ = nullptr, *renewed_ = nullptr, *heartbeats_ = nullptr, *registered_ = nullptr,
          *lost_ = nullptr, *store_failures_ = nullptr;
  Counter* ended_[3]{};  ///< by EndCause
  Histogram* store_seconds_ = nullptr;
};

}  // namespace cenote::pool
